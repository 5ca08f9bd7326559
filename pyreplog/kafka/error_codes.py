"""Which code a client is told when a change fails. All codes are in `partition.protocol.error_codes`."""

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
    """Return the code for a change of metadata that failed."""
    if isinstance(error, NoSuchTopicError):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, TopicExistsError):
        return ErrorCode.TOPIC_ALREADY_EXISTS
    if isinstance(error, (InvalidArgumentError, WrongTypeError)):
        return ErrorCode.INVALID_REQUEST
    if isinstance(error, (OutcomeUnknownError, ReplogError)):  # the client looks, and tries again
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.UNKNOWN_SERVER_ERROR
