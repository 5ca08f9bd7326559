"""Maps error codes of appends to `__consumer_offsets` to error codes for clients of groups."""

from __future__ import annotations

from pyreplog.partition.protocol.error_codes import ErrorCode

UNKNOWN_OUTCOMES = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Codes of appends that may still be committed, if they have an offset."""

_TOO_LARGE = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
_NOT_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
_PASSED_ON = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})


def code_of_append(code: ErrorCode) -> ErrorCode:
    """Return the error code of an offset commit for the error code of its append."""
    if code is ErrorCode.NONE:
        return ErrorCode.NONE
    if code in _NOT_LEADER:
        return ErrorCode.NOT_COORDINATOR
    if code in _TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if code in _PASSED_ON:
        return code
    if code in UNKNOWN_OUTCOMES:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def code_of_store(code: ErrorCode) -> ErrorCode:
    """Return the code of a JoinGroup, SyncGroup or heartbeat whose append failed: clients know fewer codes there."""
    if code is ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return code
