"""The view of a replica's log that the state machines of leaders and followers have."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History


class ReplicaLog(NamedTuple):
    """The present state of a replica's log.

    Attributes:
        history: where each leader epoch began.
        start: where the log begins.
        end: where the log ends.
        synced: up to where the log is synced to disk.
        log_start: offset before which records were deleted, though a segment may still hold them; if it is below
            `start`, `start` counts.
    """

    history: History
    start: LogPosition
    end: LogPosition
    synced: LogPosition
    log_start: int = 0
