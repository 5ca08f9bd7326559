"""The replies to requests when the log fails."""

from __future__ import annotations

from pyreplog.bookie.protocol import ADD, RECOVERY, ReplyStatus, Request
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    DiskFullError,
    InvalidRecordsError,
    OtherRecordError,
    RecordTooLargeError,
)


def status_of(error: Exception, request: Request) -> ReplyStatus:
    """Return the status of the reply to a request that failed with this error of the log."""
    if isinstance(error, OtherRecordError):
        return ReplyStatus.REFUSED
    if isinstance(error, InvalidRecordsError | RecordTooLargeError):
        return ReplyStatus.INVALID
    plain = request.kind == ADD and not request.flags & RECOVERY
    return ReplyStatus.READ_ONLY if isinstance(error, DiskFullError) and plain else ReplyStatus.UNKNOWN


def is_final(error: Exception) -> bool:
    """Return whether an error means that the log cannot be relied on any more."""
    passing = CorruptionError | DiskError | InvalidRecordsError | OtherRecordError | RecordTooLargeError
    return not isinstance(error, passing)
