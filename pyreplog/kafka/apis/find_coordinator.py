"""FindCoordinator: the broker that coordinates a group, or the transactions of a transactional id."""

from __future__ import annotations

import logging
from typing import Any

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, completed_future, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.leaders import current_leader, wait_for_leaders
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.wire.messages import (
    FindCoordinatorCoordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_log import TRANSACTION_STATE

logger = logging.getLogger(__name__)

_KEYS_FROM = 4
_GROUP, _TRANSACTION = 0, 1
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_STATE}
_WAIT_MS = 5_000


def handle_find_coordinator(api: ApiContext, request: RequestContext, message: FindCoordinatorRequest) -> Outcome:
    """Return the coordinators of keys. Their internal topic is created first if it does not exist."""
    topic = _TOPICS.get(message.key_type)
    if topic is None or api.topic(topic) is not None:
        return _respond(api, request, message)
    return transform(create_internal_topic(api, topic), lambda _: _respond(api, request, message))


def create_internal_topic(api: ApiContext, topic: str) -> AppendFuture[Any]:
    """Create the internal topic of groups, or of transactions, if it does not exist.

    Returns:
        A future that is done when the topic has leaders, or after a time-out.
    """
    if api.topic(topic) is not None:
        return completed_future()

    def create() -> None:
        try:
            if topic == OFFSETS_TOPIC:
                api.coordinators.create_offsets_topic()
            else:
                api.broker.transactions.create_topic()
        except ReplogError as error:  # the client retries
            logger.warning("topic %s was not created; clients retry: %s", topic, error)

    return transform(api.run(create), lambda _: wait_for_leaders(api, [topic], _WAIT_MS))


def _respond(api: ApiContext, request: RequestContext, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if request.version >= _KEYS_FROM:
        return FindCoordinatorResponse(
            coordinators=[_find(api, message.key_type, key) for key in message.coordinator_keys]
        )
    found = _find(api, message.key_type, message.key)
    return FindCoordinatorResponse(0, found.error_code, found.error_message, found.node_id, found.host, found.port)


def _find(api: ApiContext, kind: int, key: str) -> FindCoordinatorCoordinator:
    code, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker that can be reached leads its partition"
    if kind not in _TOPICS:
        text = f"key_type: expected {_GROUP}, a group, or {_TRANSACTION}, a transactional id, found {kind}"
        return FindCoordinatorCoordinator(key, -1, "", -1, ErrorCode.INVALID_REQUEST, text)
    if kind == _GROUP:
        partition: TopicPartition | None = TopicPartition(OFFSETS_TOPIC, api.groups.partition_of(key))
    else:
        partition = api.broker.transactions.partition_for(key)
    current = None if partition is None else current_leader(api, partition)
    if current is None:
        return FindCoordinatorCoordinator(key, -1, "", -1, code, text)
    broker, _ = current
    return FindCoordinatorCoordinator(key, broker.node_id, broker.host, broker.port, ErrorCode.NONE, None)
