"""What a log tells of itself."""

from __future__ import annotations

import uuid as uuid_module
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog


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

    @classmethod
    def of(cls, log: CommitLog) -> LogStats:
        """As the log stands now."""
        _, end, _, last_time = log._state
        table = log._segment_table()
        indexes = [row[2].index for row in table if row[2] is not None and row[2].index is not None]
        return cls(
            path=str(log.path),
            uuid=str(uuid_module.UUID(bytes=log.uuid)),
            durability=log.config.durability,
            start=log.start,
            end=log.end,
            synced_end=log.synced_end,
            start_position=log.start_position,
            end_position=end,
            segments=len(table),
            segment_bytes=log._segment_bytes,
            epoch=log._pool.epoch,
            last_time=last_time,
            ready_segments=log._pool.ready,
            state_bytes=sum(index.memory_bytes for index in indexes if index is not None),
            trouble=log._housekeeper.trouble,
        )
