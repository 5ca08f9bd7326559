"""LogStats: the state of a log at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogStats:
    """The state of a log at one moment.

    Attributes:
        path: directory of the log.
        uuid: identity of the log.
        durability: as in `LogConfig`.
        start: number of the first entry.
        end: number of the first entry that readers may not read.
        synced_end: number of the first entry that is not known to be on disk.
        start_position: position of the first segment, bytes from the beginning of the log.
        end_position: position behind the last record, bytes from the beginning of the log.
        segments: number of segment files that hold entries.
        segment_bytes: size of a segment file, bytes.
        epoch: a number that grows with every truncation, and with every torn tail that is cut.
        last_time: append time of the last record, microseconds since 1970-01-01 UTC.
        ready_segments: segments that are prepared ahead of need.
        state_bytes: private memory of the indexes, bytes.
        trouble: the error of a background task that is retried (retention, preparing, syncing sealed segments), or
            "".
    """

    path: str
    uuid: str
    durability: str
    start: int
    end: int
    synced_end: int
    start_position: int
    end_position: int
    segments: int
    segment_bytes: int
    epoch: int
    last_time: int
    ready_segments: int
    state_bytes: int
    trouble: str
