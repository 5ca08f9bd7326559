"""Messages that are delivered later or again: delayed messages by due time, messages to be replayed, and counts.

The counts of redeliveries are only in memory: a new owner of the topic starts at 0.
"""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.topic.model.dispatch.offsets import Offsets

_FINEST, _COARSEST = 13, 19
"""Widths of buckets, as powers of two of µs: 8 ms to 524 ms."""


class DelayedDeliveryTracker:
    """Delayed messages in buckets by due time.

    A message is never early. It is late by at most an eighth of its delay (8 ms if that is short), and by half a
    second.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, RangeSet] = {}
        self._heap: list[int] = []
        self.ranges = 0
        """Number of ranges that it holds; its memory grows with them."""
        self.messages = 0

    @property
    def first_us(self) -> int | None:
        """When the next messages are due."""
        return self._heap[0] if self._heap else None

    def add(self, offsets: Offsets, due_us: int, now_us: int) -> None:
        """Add messages with ascending offsets that are all due at one time."""
        self._add_all(offsets, _rounded(np.full(1, due_us, np.int64), now_us)[0].item())

    def add_each(self, offsets: Offsets, due_us: Offsets, now_us: int) -> None:
        """Add messages with ascending offsets, each with its own due time."""
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
        """Return all delayed messages."""
        waiting = RangeSet()
        for bucket in self._buckets.values():
            waiting.add_ranges(*bucket.intersect())
        return waiting

    def pop(self, now_us: int) -> list[RangeSet]:
        """Remove and return the messages that are due."""
        due = []
        while self._heap and self._heap[0] <= now_us:
            bucket = self._buckets.pop(heapq.heappop(self._heap))
            self.ranges -= len(bucket)
            self.messages -= bucket.total
            due.append(bucket)
        return due


def _rounded(due_us: Offsets, now_us: int) -> Offsets:
    """Return due times, each rounded up to that of its bucket."""
    waits = np.maximum(due_us - now_us, 1)
    powers = np.clip(np.log2(waits).astype(np.int64) - 3, _FINEST, _COARSEST)
    rounded: Offsets = (due_us + (1 << powers) - 1) >> powers << powers
    return rounded


NEIGHBOURS = 256
"""Ranges with gaps of at most so many messages are read together."""

Ranges = tuple[Offsets, Offsets]
"""Starts and ends, ascending and disjoint."""


class Replay:
    """Messages to be delivered again: those that are due, lowest offset first, and those that are not due yet."""

    def __init__(self) -> None:
        self.ready = RangeSet()
        """Messages that are due; do not modify."""
        self.waiting = DelayedDeliveryTracker()
        """Messages that are not due yet."""

    @property
    def messages(self) -> int:
        """Number of messages that are to be read again."""
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
        """Remove and return the first ranges that are due and close to each other, at most `most` messages."""
        if not self.ready:
            return None
        starts, ends = self.ready.intersect(most=1024)
        starts, ends = neighbours(starts, ends, most)
        self.ready.remove_ranges(starts, ends)
        return starts, ends

    def forget(self, offsets: Offsets) -> None:
        """Forget acknowledged messages that are due. Those that are not due are filtered when they are read."""
        self.ready.remove_offsets(offsets)

    def forget_range(self, start: int, end: int) -> None:
        self.ready.remove(start, end)


def neighbours(starts: Offsets, ends: Offsets, most: int) -> Ranges:
    """Return the first ranges up to the first wide gap, at most `most` messages."""
    gaps = np.flatnonzero(starts[1:] - ends[:-1] > NEIGHBOURS)
    stop = int(gaps[0]) + 1 if len(gaps) else len(starts)
    before = np.cumsum(ends[:stop] - starts[:stop]) - (ends[:stop] - starts[:stop])
    stop = int(np.searchsorted(before, most))
    cut = ends[:stop].copy()
    cut[-1] = min(int(cut[-1]), int(starts[stop - 1]) + most - int(before[stop - 1]))
    return starts[:stop], cut


REASONS_BYTES_MAX = 4 << 20
"""Most bytes of memory for the reasons of one subscription; beyond, the oldest are forgotten."""

REASON_OVERHEAD = 200
"""Estimated bytes of a reason in addition to its text."""


class RedeliveryCause(StrEnum):
    """The cause of a redelivery; the values are those of a dead letter's property."""

    NACK = "nack"
    ACK_TIMEOUT = "ack_timeout"
    CONSUMER_LOST = "consumer_lost"
    """The consumer was closed or lost, or another one became the active one."""
    REDELIVER = "redeliver"
    """The consumer asked for all of its messages again."""


class Failure(NamedTuple):
    """The reason why a message is a dead letter.

    Attributes:
        redeliveries: how often it was delivered again.
        cause: cause of its last return.
        reason: the last reason that a consumer gave; None: none was given.
    """

    redeliveries: int
    cause: RedeliveryCause
    reason: str | None


class Reasons:
    """The last reason that a consumer gave for each message; bounded."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # by offset, oldest first
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def note(self, offsets: Offsets, reason: str) -> None:
        """Note one reason for several messages."""
        size = _size(reason)
        for offset in offsets.tolist():
            self._drop(offset)
            self._texts[offset] = reason
            self._bytes += size
            while self._bytes > REASONS_BYTES_MAX:
                self._drop(next(iter(self._texts)))

    def get(self, offset: int) -> str | None:
        return self._texts.get(offset)

    def forget(self, offsets: Offsets) -> None:
        for offset in offsets.tolist() if self._texts else ():
            self._drop(offset)

    def forget_range(self, start: int, end: int) -> None:
        if not self._texts:
            return
        if end - start < len(self._texts):
            removed = [offset for offset in range(start, end) if offset in self._texts]
        else:
            removed = [offset for offset in self._texts if start <= offset < end]
        for offset in removed:
            self._drop(offset)

    def clear(self) -> None:
        self._texts.clear()
        self._bytes = 0

    def _drop(self, offset: int) -> None:
        text = self._texts.pop(offset, None)
        if text is not None:
            self._bytes -= _size(text)


def _size(reason: str) -> int:
    return REASON_OVERHEAD + 4 * len(reason)


class Redeliveries:
    """Counts every redelivery, whatever the cause, so that a message that crashes its consumers becomes a dead letter.

    Only messages that were delivered twice and are not acknowledged have a count.
    """

    def __init__(self) -> None:
        self._returned = RangeSet()  # delivered before, and not with a consumer now
        self._counts: dict[int, int] = {}
        self._causes = {cause: RangeSet() for cause in RedeliveryCause if cause is not RedeliveryCause.NACK}
        """Messages that came back for another cause than a nack, including dead letters."""
        self._reasons = Reasons()
        self._has_details = False  # there may be causes or reasons

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def awaited(self) -> bool:
        """Whether any message was returned and not delivered again yet."""
        return bool(self._returned)

    def returned(self, offsets: Offsets, cause: RedeliveryCause | None) -> None:
        """Note ascending offsets that were returned.

        cause: None for dead letters that were not published: they keep their cause.
        """
        self._returned.add_offsets(offsets)
        if cause is not None and cause is not RedeliveryCause.NACK:
            self._causes[cause].add_offsets(offsets)
            self._has_details = True

    def explain(self, offsets: Offsets, reason: str) -> None:
        """Note the reason that a consumer gave for refusing messages."""
        self._reasons.note(offsets, reason)
        self._has_details = True

    def count(self, offset: int) -> int:
        """Return how often a message was delivered again."""
        return self._counts.get(offset, 0)

    def beyond(self, offsets: Offsets, most: int) -> Offsets:
        """Return those of ascending offsets that were delivered again `most` times, and were returned."""
        if not self._returned:
            return offsets[:0]
        again = offsets[self._returned.mask(offsets)]
        return again[[self.count(offset) >= most for offset in again.tolist()]] if most and len(again) else again

    def delivered(self, offsets: Offsets) -> dict[int, int]:
        """Count a delivery; return how often each message was delivered again, by offset, if it was."""
        if not self._returned:
            return {}
        again = offsets[self._returned.mask(offsets)]
        self._returned.remove_offsets(again)
        if self._has_details:
            self._forget_causes(again)
        counts = {at: self._counts.get(at, 0) + 1 for at in again.tolist()}
        self._counts.update(counts)
        return counts

    def died(self, offsets: Offsets) -> dict[int, Failure]:
        """Note that messages become dead letters; return their failures, by offset. The causes stay known."""
        self._returned.remove_offsets(offsets)
        return {at: Failure(self.count(at), self._cause(at), self._reasons.get(at)) for at in offsets.tolist()}

    def _cause(self, offset: int) -> RedeliveryCause:
        return next((cause for cause, offsets in self._causes.items() if offset in offsets), RedeliveryCause.NACK)

    def _forget_causes(self, offsets: Offsets) -> None:
        for messages in self._causes.values():
            if messages:
                messages.remove_offsets(offsets)

    def _update_details(self) -> None:
        self._has_details = bool(self._reasons) or any(self._causes.values())

    def forget(self, offsets: Offsets) -> None:
        """Forget acknowledged messages."""
        if self._returned:
            self._returned.remove_offsets(offsets)
        if self._has_details:
            self._forget_causes(offsets)
            self._reasons.forget(offsets)
            self._update_details()
        if self._counts:
            for at in offsets.tolist():
                self._counts.pop(at, None)

    def forget_range(self, start: int, end: int) -> None:
        self._returned.remove(start, end)
        if self._has_details:
            for messages in self._causes.values():
                messages.remove(start, end)
            self._reasons.forget_range(start, end)
            self._update_details()
        if not self._counts:
            return
        if end - start < len(self._counts):
            removed = [at for at in range(start, end) if at in self._counts]
        else:
            removed = [at for at in self._counts if start <= at < end]
        for at in removed:
            del self._counts[at]

    def clear(self) -> None:
        """Forget all deliveries."""
        self._returned.clear()
        for messages in self._causes.values():
            messages.clear()
        self._reasons.clear()
        self._has_details = False
        self._counts.clear()
