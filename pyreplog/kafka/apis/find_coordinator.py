"""FindCoordinator: which broker looks after a group."""

from __future__ import annotations

import logging
from typing import Any

from pyreplog.errors import ReplogError
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext, then
from pyreplog.kafka.apis.leaders import current_leader
from pyreplog.kafka.apis.metadata import wait_for_leaders
from pyreplog.kafka.error_codes import KafkaErrorCode
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.wire.messages import (
    FindCoordinatorCoordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_KEYS_FROM = 4
_GROUP = 0
_WAIT_MS = 5_000


def handle_find_coordinator(api: ApiContext, request: RequestContext, message: FindCoordinatorRequest) -> Outcome:
    """Answer a FindCoordinator request; the topic that keeps groups is made first, if there is none."""
    if message.key_type != _GROUP or api.topic(OFFSETS_TOPIC) is not None:
        return _respond(api, request, message)

    def create() -> bool:
        try:
            api.coordinators.create_offsets_topic()
        except ReplogError as error:  # the client asks again
            logger.warning("topic %s was not made, which is tried again: %s", OFFSETS_TOPIC, error)
            return False
        return True

    def wait(is_made: bool) -> Any:
        if not is_made:
            return _respond(api, request, message)
        return then(wait_for_leaders(api, [OFFSETS_TOPIC], _WAIT_MS), lambda _: _respond(api, request, message))

    return then(api.run(create), wait)


def _respond(api: ApiContext, request: RequestContext, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if request.version >= _KEYS_FROM:
        return FindCoordinatorResponse(
            coordinators=[_find(api, message.key_type, key) for key in message.coordinator_keys]
        )
    found = _find(api, message.key_type, message.key)
    return FindCoordinatorResponse(0, found.error_code, found.error_message, found.node_id, found.host, found.port)


def _find(api: ApiContext, kind: int, key: str) -> FindCoordinatorCoordinator:
    code, text = KafkaErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker that can be reached leads its partition"
    if kind != _GROUP:
        return FindCoordinatorCoordinator(key, -1, "", -1, code, "expected a group: this broker has no transactions")
    current = current_leader(api, TopicPartition(OFFSETS_TOPIC, api.groups.partition_of(key)))
    if current is None:
        return FindCoordinatorCoordinator(key, -1, "", -1, code, text)
    broker, _ = current
    return FindCoordinatorCoordinator(key, broker.node_id, broker.host, broker.port, KafkaErrorCode.NONE, None)
