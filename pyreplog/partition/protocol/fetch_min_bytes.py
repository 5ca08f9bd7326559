"""When a parked fetch has its minimal bytes, without a check at each append (as Kafka's DelayedFetch does).

A fetch of several partitions waits until the sum of its readable bytes reaches its minimum. While `missing` bytes are
missing, and n partitions can still add some, at least one of them has to add missing / n: only that one wakes the
fetch. Each early wake-up reduces the missing bytes by an n-th, so there are at most n log(min_bytes) of them,
regardless of the number of appends. A record without an offset may cause one more: each leader epoch and each segment
has one such record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyreplog.stream.log_position import LogPosition


class FetchedPart(NamedTuple):
    """One partition of a parked fetch.

    Attributes:
        start: where the fetch begins.
        end: up to where it may read now.
        max_bytes: most bytes of this partition that count.
    """

    start: LogPosition
    end: LogPosition
    max_bytes: int

    @property
    def readable(self) -> int:
        """Number of bytes that count: 0 if these records have no offsets, because consumers do not get those."""
        if self.end.entry <= self.start.entry:
            return 0
        return min(self.end.position - self.start.position, self.max_bytes)


def wake_positions(parts: Sequence[FetchedPart], min_bytes: int) -> list[int | None] | None:
    """Return the position of each partition at which a fetch is to be checked again; None: it can be answered.

    The position is None for a partition that already has its `max_bytes`.

    Args:
        parts: the partitions of the fetch, in their present state.
        min_bytes: minimum for all partitions together.
    """
    missing = min_bytes - sum(part.readable for part in parts)
    if missing <= 0:
        return None
    rising = [part.readable < part.max_bytes for part in parts]
    share = -(-missing // max(sum(rising), 1))
    return [
        max(part.end.position, part.start.position) + min(share, part.max_bytes - part.readable) if rises else None
        for part, rises in zip(parts, rising, strict=True)
    ]
