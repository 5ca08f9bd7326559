"""InitProducerId: ids of idempotent producers."""

from __future__ import annotations

from functools import partial

from pyreplog.errors import ReplogError
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.error_codes import KafkaErrorCode
from pyreplog.kafka.wire.messages import InitProducerIdRequest, InitProducerIdResponse


def handle_init_producer_id(api: ApiContext, request: RequestContext, message: InitProducerIdRequest) -> Outcome:
    """Give an idempotent producer an id that no other one ever had, and epoch 0."""
    if message.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=KafkaErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=-1, producer_epoch=-1
        )
    return api.run(partial(_next, api))


def _next(api: ApiContext) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=api.producer_ids.next(), producer_epoch=0)
    except ReplogError:  # the client asks again
        code = KafkaErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
