"""What a failure of the log means to who asked."""

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
    """The status of the reply."""
    if isinstance(error, OtherRecordError):
        return ReplyStatus.REFUSED
    if isinstance(error, InvalidRecordsError | RecordTooLargeError):
        return ReplyStatus.INVALID
    plain = request.kind == ADD and not request.flags & RECOVERY
    return ReplyStatus.READ_ONLY if isinstance(error, DiskFullError) and plain else ReplyStatus.UNKNOWN


def is_final(error: Exception) -> bool:
    """Whether nothing that the log says can be relied on any more."""
    known = CorruptionError | DiskError | InvalidRecordsError | OtherRecordError | RecordTooLargeError
    return not isinstance(error, known)
