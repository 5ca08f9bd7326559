"""FindCoordinator: which broker looks after a group or a transactional id."""

from __future__ import annotations

from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.error_codes import KafkaErrorCode
from pyreplog.kafka.wire.messages import (
    FindCoordinatorCoordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_KEYS_FROM = 4


def handle_find_coordinator(api: ApiContext, request: RequestContext, message: FindCoordinatorRequest) -> Outcome:
    """Answer a FindCoordinator request."""
    code, text = KafkaErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no coordinators"
    if request.version < _KEYS_FROM:
        return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[FindCoordinatorCoordinator(key, -1, "", -1, code, text) for key in message.coordinator_keys]
    )
