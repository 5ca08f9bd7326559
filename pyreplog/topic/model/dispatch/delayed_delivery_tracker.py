"""Offsets by the time at which they are due, in buckets of time that are the coarser the longer the wait."""

from __future__ import annotations

import heapq

import numpy as np

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.dispatch.offsets import Offsets

_FINEST, _COARSEST = 13, 19
"""Powers of two of µs: 8 ms to 524 ms."""


class DelayedDeliveryTracker:
    """Never early; late by an eighth of the wait at most (8 ms for short ones), and by half a second."""

    def __init__(self) -> None:
        self._buckets: dict[int, RangeSet] = {}
        self._heap: list[int] = []
        self.ranges = 0
        """How many ranges it holds: its memory grows with them."""
        self.messages = 0

    @property
    def first_us(self) -> int | None:
        """When the next messages are due."""
        return self._heap[0] if self._heap else None

    def add(self, offsets: Offsets, due_us: int, now_us: int) -> None:
        """Ascending offsets that are all due at one time."""
        self._add_all(offsets, _rounded(np.full(1, due_us, np.int64), now_us)[0].item())

    def add_each(self, offsets: Offsets, due_us: Offsets, now_us: int) -> None:
        """Ascending offsets, each with its time."""
        times = _rounded(due_us, now_us)
        for time in np.unique(times).tolist():
            self._add_all(offsets[times == time], time)

    def _add_all(self, offsets: Offsets, time_us: int) -> None:
        if not len(offsets):
            return
        bucket = self._buckets.get(time_us)
        if bucket is None:
            bucket = self._buckets[time_us] = RangeSet()
            heapq.heappush(self._heap, time_us)
        self.ranges -= len(bucket)
        self.messages -= bucket.total
        bucket.add_offsets(offsets)
        self.ranges += len(bucket)
        self.messages += bucket.total

    def all(self) -> RangeSet:
        """All messages that wait."""
        waiting = RangeSet()
        for bucket in self._buckets.values():
            waiting.add_ranges(*bucket.intersect())
        return waiting

    def pop(self, now_us: int) -> list[RangeSet]:
        """Take the messages that are due."""
        due = []
        while self._heap and self._heap[0] <= now_us:
            bucket = self._buckets.pop(heapq.heappop(self._heap))
            self.ranges -= len(bucket)
            self.messages -= bucket.total
            due.append(bucket)
        return due


def _rounded(due_us: Offsets, now_us: int) -> Offsets:
    """Times, each rounded up to its bucket's."""
    waits = np.maximum(due_us - now_us, 1)
    powers = np.clip(np.log2(waits).astype(np.int64) - 3, _FINEST, _COARSEST)
    rounded: Offsets = (due_us + (1 << powers) - 1) >> powers << powers
    return rounded
