"""Error codes of brokers as exceptions, and the codes after which requests are retried."""

from __future__ import annotations

from pyreplog.errors import (
    AppendRefusedError,
    OutOfRangeError,
    PartitionError,
    PartitionStorageError,
    PartitionUnavailableError,
    ProducerFencedError,
    ReplogError,
    TrimmedError,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

RETRIED = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.KAFKA_STORAGE_ERROR,
})  # fmt: skip
"""Codes after which the same request may succeed later, possibly at another broker."""
UNKNOWN_OUTCOME = frozenset({
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR,
})  # fmt: skip
"""Codes after which the records of a produce may be in the log."""
_REFUSED = frozenset({
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
})  # fmt: skip


def error_of(name: TopicPartition, code: ErrorCode, message: str) -> ReplogError:
    """Return the exception of an error code, for a request that had no effect.

    UNKNOWN_TOPIC_OR_PARTITION is temporary: a broker that leads a partition according to the metadata may not have
    created the replica yet. Only the metadata show that a partition does not exist.
    """
    reason = f"{message} ({code.name})" if message else code.name
    kind: type[PartitionError] = PartitionError
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return OutOfRangeError(f"partition {name}: {reason}")
    if code in _REFUSED:
        kind = AppendRefusedError
    elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
        kind = ProducerFencedError
    elif code is ErrorCode.KAFKA_STORAGE_ERROR:
        kind = PartitionStorageError
    elif code in RETRIED:
        kind = PartitionUnavailableError
    return kind(str(name), code.name, reason)


def out_of_range(name: TopicPartition, offset: int, start: int, end: int) -> ReplogError:
    """Return the exception for reading an offset that the log does not have."""
    if offset < start:
        return TrimmedError(f"partition {name}: offset {offset} was removed, the log begins at {start}")
    return OutOfRangeError(f"partition {name}: offset {offset} is not written yet, the log ends at {end}")
