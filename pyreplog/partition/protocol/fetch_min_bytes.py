"""When a parked fetch has the bytes that it waits for, without a look at each append (KAFKA's DelayedFetch looks).

A fetch of several partitions waits until the sum of what it can read reaches its minimum. While `missing` bytes lack,
and n partitions can still bring some, at least one of them has to bring missing / n: the fetch is woken by that one
alone. Each wake-up in vain takes an n-th off what lacks, so there are at most n log(min_bytes) of them, whatever the
number of appends is. A record without an offset may cause one more: each leader epoch and each segment has one such
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyreplog.stream.log_position import LogPosition


class FetchedPart(NamedTuple):
    """One partition of a parked fetch.

    Attributes:
        start: where it reads from.
        end: up to where it may read now.
        max_bytes: what of it counts at most.
    """

    start: LogPosition
    end: LogPosition
    max_bytes: int

    @property
    def readable(self) -> int:
        """How many bytes count: 0 if all records there are without an offset, because consumers do not get those."""
        if self.end.entry <= self.start.entry:
            return 0
        return min(self.end.position - self.start.position, self.max_bytes)


def wake_positions(parts: Sequence[FetchedPart], min_bytes: int) -> list[int | None] | None:
    """Return the position of each partition at which a fetch is to be looked at again; None: it can be answered.

    A partition that can bring no more has None.

    Args:
        parts: the partitions, as they are now.
        min_bytes: of all together.
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
