"""A replica's log, as the machines that lead and follow see it."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History


class ReplicaLog(NamedTuple):
    """A replica's log, as it is now.

    Attributes:
        history: where each leader epoch began.
        start: where it begins.
        end: where it ends.
        synced: up to where it is on the disk.
        log_start: offset before which records were deleted, though a segment may hold them still; never before `start`
            in effect.
    """

    history: History
    start: LogPosition
    end: LogPosition
    synced: LogPosition
    log_start: int = 0
