"""What a failure of the log means to who asked."""

from __future__ import annotations

from pyreplog.bookie.protocol import ADD, RECOVERY, Request, Status
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    DiskFullError,
    InvalidRecordsError,
    OtherRecordError,
    RecordTooLargeError,
)


def status_of(error: Exception, request: Request) -> Status:
    """The status of the reply."""
    if isinstance(error, OtherRecordError):
        return Status.REFUSED
    if isinstance(error, InvalidRecordsError | RecordTooLargeError):
        return Status.INVALID
    plain = request.kind == ADD and not request.flags & RECOVERY
    return Status.READ_ONLY if isinstance(error, DiskFullError) and plain else Status.UNKNOWN


def is_final(error: Exception) -> bool:
    """Whether nothing that the log says can be relied on any more."""
    known = CorruptionError | DiskError | InvalidRecordsError | OtherRecordError | RecordTooLargeError
    return not isinstance(error, known)
