"""The error codes of groups, with Kafka's names and numbers."""

from __future__ import annotations

from enum import IntEnum

from pyreplog.partition.protocol.error_codes import ErrorCode


class GroupErrorCode(IntEnum):
    """The error code of a request of a group, or of one member or partition in it.

    REQUEST_TIMED_OUT and NOT_COORDINATOR as the outcome of a commit leave it unknown: the offsets may be found to be
    committed later. So does COORDINATOR_NOT_AVAILABLE as the outcome of a SyncGroup. Clients try all of them again.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    TRANSACTION_ABORTABLE = 120


UNKNOWN_OUTCOMES = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Codes of appends that may be committed later, if they have an offset."""

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


def code_of_append(code: ErrorCode) -> GroupErrorCode:
    """Return the code of a commit whose append failed with a code of partitions."""
    if code is ErrorCode.NONE:
        return GroupErrorCode.NONE
    if code in _NOT_LEADER:
        return GroupErrorCode.NOT_COORDINATOR
    if code in _TOO_LARGE:
        return GroupErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if code in _PASSED_ON:
        return GroupErrorCode(int(code))
    if code in UNKNOWN_OUTCOMES:
        return GroupErrorCode.REQUEST_TIMED_OUT
    return GroupErrorCode.COORDINATOR_NOT_AVAILABLE


def code_of_store(code: GroupErrorCode) -> GroupErrorCode:
    """Return the code of a JoinGroup or SyncGroup whose group was not stored: clients know fewer codes there."""
    if code is GroupErrorCode.REQUEST_TIMED_OUT:
        return GroupErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is GroupErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        return GroupErrorCode.UNKNOWN_SERVER_ERROR
    return code
