"""Deadlines of many waiters, in buckets of one tick.

A hashed timing wheel (Varghese and Lauck, SOSP 1987) in the form that Kafka's timer has: only buckets that
hold something exist, and a priority queue of buckets lets time jump from one to the next. A fixed ring of
slots would look at every timer once per round and at every empty slot once per tick; here the dict is the
hash, so there are no rounds, the next deadline is known, and an empty wheel holds no memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from pyreplog.errors import InvalidArgumentError

T = TypeVar("T", bound=Hashable)


class TimingWheel(Generic[T]):
    """Items with deadlines, which `expire` hands out when their time has come.

    `add` and `cancel` cost O(1); the first item of a tick also pays O(log of the ticks in use). Deadlines are
    rounded up to the tick: an item is never handed out early, and late by less than one tick.

    The wheel has neither a thread nor a clock nor a lock: its owner tells it the time and serialises the
    calls. `next_deadline_us` alone may be called from any thread at any time.
    """

    __slots__ = ("_buckets", "_tick_us", "_ticks")

    def __init__(self, tick_us: int) -> None:
        """`tick_us`: microseconds per tick, 1 or more; else InvalidArgumentError."""
        if tick_us < 1:
            raise InvalidArgumentError(f"a tick takes 1 us or more, not {tick_us}")
        self._tick_us = tick_us
        # Buckets are dicts for their order: a set would hand out its items in another order in every process.
        self._buckets: dict[int, dict[T, None]] = {}
        self._ticks: list[int] = []  # a heap with every tick of _buckets, and ticks whose bucket is gone

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, deadline_us: int) -> None:
        """Holds `item` until `deadline_us` (microseconds, on the clock that `expire` is told); it may lie in
        the past.

        Adding the same item with the same deadline again changes nothing.
        """
        tick = self._tick_of(deadline_us)
        bucket = self._buckets.get(tick)
        if bucket is None:
            heappush(self._ticks, tick)
            bucket = self._buckets[tick] = {}
        bucket[item] = None

    def cancel(self, item: T, deadline_us: int) -> bool:
        """Takes out `item`, which was added with this deadline. Returns whether it was there."""
        tick = self._tick_of(deadline_us)
        bucket = self._buckets.get(tick)
        if bucket is None or item not in bucket:
            return False
        del bucket[item]
        if not bucket:
            del self._buckets[tick]
            self._forget_empty_ticks()
        return True

    def expire(self, now_us: int) -> list[T]:
        """Takes out and returns the items whose time has come: by tick, within a tick by arrival."""
        now = now_us // self._tick_us
        due: list[T] = []
        while self._ticks and (self._ticks[0] <= now or self._ticks[0] not in self._buckets):
            due += self._buckets.pop(heappop(self._ticks), ())
        self._forget_empty_ticks()
        return due

    def next_deadline_us(self) -> int | None:
        """When `expire` is to be called next, in microseconds; None: nothing waits.

        Exact after `expire`; after a `cancel` it may name a moment at which nothing is due any more.
        """
        ticks = self._ticks
        try:
            return ticks[0] * self._tick_us
        except IndexError:
            return None

    def _tick_of(self, deadline_us: int) -> int:
        return -(-deadline_us // self._tick_us)

    def _forget_empty_ticks(self) -> None:
        # Rebuilding when more than half is stale costs O(log n) per emptied bucket. A sorted list is a heap.
        if len(self._ticks) > 2 * len(self._buckets):
            self._ticks = sorted(self._buckets)
