"""What a log tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogStats:
    """A moment of a log.

    start, end, synced_end: entry numbers. *_position: bytes since the log began. last_time: append time of the last
    record, microseconds since the epoch. ready_segments: prepared ahead. state_bytes: private memory of the indexes.
    trouble: what the log's threads fail at and try again (retention, preparing, syncing sealed segments), or "".
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
