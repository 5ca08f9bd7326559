"""TimingWheel: deadlines of many waiters, in buckets of one tick.

A hashed timing wheel (Varghese and Lauck, SOSP 1987) in the form of Kafka's timer: only buckets with items exist, and a
priority queue of buckets lets the time jump from one to the next. A fixed ring of slots would visit every timer once a
round, and every empty slot once a tick. Here a dict is the hash, so there are no rounds, the next deadline is known,
and an empty wheel holds no memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from pyreplog.errors import InvalidArgumentError

T = TypeVar("T", bound=Hashable)


class TimingWheel(Generic[T]):
    """Items with deadlines; `expire` returns those whose deadline has passed.

    `add` and `cancel` cost O(1); the first item of a tick also costs O(log of the ticks in use). Deadlines are rounded
    up to the tick: an item never expires early, and less than one tick late.

    The wheel has no thread, clock or lock: its owner passes the time and serialises the calls. Only `next_deadline_us`
    may be called from any thread at any time.
    """

    __slots__ = ("_buckets", "_tick_us", "_ticks")

    def __init__(self, tick_us: int) -> None:
        """tick_us: microseconds per tick. Raises InvalidArgumentError if that is less than 1."""
        if tick_us < 1:
            raise InvalidArgumentError(f"a tick takes 1 us or more, not {tick_us}")
        self._tick_us = tick_us
        # Buckets are dicts for their order: the order of a set would differ between processes.
        self._buckets: dict[int, dict[T, None]] = {}
        self._ticks: list[int] = []  # a heap with every tick of _buckets, and stale ticks without a bucket

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, deadline_us: int) -> None:
        """Add an item. To add the same item with the same deadline again changes nothing.

        deadline_us: microseconds of the clock of `expire`; it may lie in the past.
        """
        tick = self._tick_of(deadline_us)
        bucket = self._buckets.get(tick)
        if bucket is None:
            heappush(self._ticks, tick)
            bucket = self._buckets[tick] = {}
        bucket[item] = None

    def cancel(self, item: T, deadline_us: int) -> bool:
        """Remove an item that was added with this deadline; return whether the wheel held it."""
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
        """Remove and return the items whose deadline has passed: by tick, and within a tick in the order of `add`.

        now_us: the time, microseconds.
        """
        now = now_us // self._tick_us
        due: list[T] = []
        while self._ticks and (self._ticks[0] <= now or self._ticks[0] not in self._buckets):
            due += self._buckets.pop(heappop(self._ticks), ())
        self._forget_empty_ticks()
        return due

    def next_deadline_us(self) -> int | None:
        """Return the time, in microseconds, at which `expire` has to be called next; None: the wheel is empty.

        The time is exact after `expire`. After a `cancel` it may be a time at which no item expires.
        """
        ticks = self._ticks
        try:
            return ticks[0] * self._tick_us
        except IndexError:
            return None

    def _tick_of(self, deadline_us: int) -> int:
        return -(-deadline_us // self._tick_us)

    def _forget_empty_ticks(self) -> None:
        # A rebuild when more than half are stale costs O(log n) per emptied bucket. A sorted list is a heap.
        if len(self._ticks) > 2 * len(self._buckets):
            self._ticks = sorted(self._buckets)
