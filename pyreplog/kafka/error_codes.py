"""The error codes of Kafka's protocol that are not those of one partition; see `partition.protocol.error_codes`."""

from __future__ import annotations

from enum import IntEnum

from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchTopicError,
    OutcomeUnknownError,
    ReplogError,
    TopicExistsError,
    WrongTypeError,
)


class KafkaErrorCode(IntEnum):
    """The error code of a request, with Kafka's names and numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    SASL_AUTHENTICATION_FAILED = 58
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100


def error_code_of(error: BaseException) -> KafkaErrorCode:
    """Return the code for a change of metadata that failed."""
    if isinstance(error, NoSuchTopicError):
        return KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, TopicExistsError):
        return KafkaErrorCode.TOPIC_ALREADY_EXISTS
    if isinstance(error, (InvalidArgumentError, WrongTypeError)):
        return KafkaErrorCode.INVALID_REQUEST
    if isinstance(error, (OutcomeUnknownError, ReplogError)):  # the client looks, and tries again
        return KafkaErrorCode.REQUEST_TIMED_OUT
    return KafkaErrorCode.UNKNOWN_SERVER_ERROR
