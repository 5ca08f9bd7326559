"""Maps errors of metadata changes to Kafka's error codes. All codes are in `partition.protocol.error_codes`."""

from __future__ import annotations

from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchTopicError,
    OutcomeUnknownError,
    ReplogError,
    TopicExistsError,
    WrongTypeError,
)
from pyreplog.partition.protocol.error_codes import ErrorCode


def error_code_of(error: BaseException) -> ErrorCode:
    """Return the error code of a failed metadata change."""
    if isinstance(error, NoSuchTopicError):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, TopicExistsError):
        return ErrorCode.TOPIC_ALREADY_EXISTS
    if isinstance(error, (InvalidArgumentError, WrongTypeError)):
        return ErrorCode.INVALID_REQUEST
    if isinstance(error, (OutcomeUnknownError, ReplogError)):  # the client checks the outcome and retries
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.UNKNOWN_SERVER_ERROR
