"""Messages to be read and delivered again: at once, or after a while."""

from __future__ import annotations

import numpy as np

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.dispatch.delayed_delivery_tracker import DelayedDeliveryTracker
from pyreplog.topic.model.dispatch.offsets import Offsets

NEIGHBOURS = 256
"""Ranges so many messages apart are read together."""

Ranges = tuple[Offsets, Offsets]
"""Starts and ends, ascending and disjoint."""


class Replay:
    """Offsets that are due, lowest first, and those that are not."""

    def __init__(self) -> None:
        self.ready = RangeSet()
        """Messages that are due; to be looked at only."""
        self.waiting = DelayedDeliveryTracker()
        """Messages whose time has not come."""

    @property
    def messages(self) -> int:
        """How many are to be read again."""
        return self.ready.total + self.waiting.messages

    @property
    def ranges(self) -> int:
        return len(self.ready) + self.waiting.ranges

    def add(self, offsets: Offsets) -> None:
        self.ready.add_offsets(offsets)

    def add_ranges(self, ranges: Ranges) -> None:
        self.ready.add_ranges(*ranges)

    def add_later(self, offsets: Offsets, due_us: int, now_us: int) -> None:
        if due_us <= now_us:
            self.add(offsets)
        else:
            self.waiting.add(offsets, due_us, now_us)

    def take(self, most: int) -> Ranges | None:
        """Take the first ranges that are due and lie near each other, up to `most` messages."""
        if not self.ready:
            return None
        starts, ends = self.ready.intersect(most=1024)
        starts, ends = neighbours(starts, ends, most)
        self.ready.remove_ranges(starts, ends)
        return starts, ends

    def forget(self, offsets: Offsets) -> None:
        """Forget acknowledged messages that are due. For those that wait it is noticed when they are read."""
        self.ready.remove_offsets(offsets)

    def forget_range(self, start: int, end: int) -> None:
        self.ready.remove(start, end)


def neighbours(starts: Offsets, ends: Offsets, most: int) -> Ranges:
    """The first ranges up to the first wide gap, and `most` messages of them at most."""
    gaps = np.flatnonzero(starts[1:] - ends[:-1] > NEIGHBOURS)
    stop = int(gaps[0]) + 1 if len(gaps) else len(starts)
    before = np.cumsum(ends[:stop] - starts[:stop]) - (ends[:stop] - starts[:stop])
    stop = int(np.searchsorted(before, most))
    cut = ends[:stop].copy()
    cut[-1] = min(int(cut[-1]), int(starts[stop - 1]) + most - int(before[stop - 1]))
    return starts[:stop], cut
