"""Topics as lists of entry sizes, and acknowledgements counted one by one, for comparison with cursors."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import EntryPosition, TopicPosition

NOW = 1_000_000


def int64s(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


class Entries(NamedTuple):
    """The columns of a MessageBatch that describe its entries."""

    entry_first: np.ndarray
    entry_count: np.ndarray
    entry_size: np.ndarray
    entries_before: np.ndarray
    bytes_before: np.ndarray


class Topic:
    """Entries with these numbers of messages and bytes; without sizes, 10 bytes for each message."""

    def __init__(self, counts: list[int], sizes: list[int] | None = None) -> None:
        self.counts = counts
        self.sizes = [10 * count for count in counts] if sizes is None else sizes
        self.firsts = [0, *accumulate(counts)]
        self.bytes = [0, *accumulate(self.sizes)]
        self.end = TopicPosition(self.firsts[-1], len(counts), self.bytes[-1])

    @classmethod
    def random(cls, seed: int, entries: int, most: int) -> Topic:
        rng = random.Random(seed)
        return cls([rng.randint(1, most) for _ in range(entries)], [rng.choice([0, 1, 100]) for _ in range(entries)])

    def entry_of(self, offset: int) -> int:
        return bisect_right(self.firsts, offset) - 1

    def place(self, entry: int) -> EntryPosition:
        return EntryPosition(
            7, entry, self.firsts[entry], self.counts[entry], self.sizes[entry], entry, self.bytes[entry]
        )

    def locate(self, offset: int) -> EntryPosition:
        """Return the entry of a message; for the end of the topic, that of the last message."""
        return self.place(self.entry_of(min(offset, self.end.offset - 1)))

    def total(self, offset: int) -> TopicPosition:
        entry = min(self.entry_of(offset), len(self.counts))
        return TopicPosition(offset, entry, self.bytes[entry])

    def columns(self, start: int, stop: int) -> Entries:
        """Return the columns of the entries from start up to stop."""
        return Entries(
            int64s(self.firsts[start:stop]),
            int64s(self.counts[start:stop]),
            int64s(self.sizes[start:stop]),
            int64s(range(start, stop)),
            int64s(self.bytes[start:stop]),
        )


def acknowledge(cursor: Cursor, topic: Topic, offsets: Iterable[int]) -> None:
    """Acknowledge as a driver does, which locates unknown entries."""
    wanted = int64s(offsets)
    while len(unknown := cursor.acknowledge(wanted, topic.end.offset, NOW)):
        assert set(unknown.tolist()) <= set(wanted.tolist())
        cursor.note(topic.locate(int(unknown[0])))
        wanted = unknown


def acknowledge_range(cursor: Cursor, topic: Topic, start: int, stop: int) -> None:
    wanted = [(start, stop)]
    while wanted:
        low, high = wanted.pop()
        unknown = cursor.acknowledge_range(low, high, topic.end.offset, NOW)
        if unknown:
            cursor.note(topic.locate(unknown[0][0]))
        wanted += unknown


def cumulative(cursor: Cursor, topic: Topic, to: int, *, before: bool = False) -> None:
    """Acknowledge all messages below `to`. before: locate the entry of the message before it, not the entry at it."""
    start = cursor.cumulative_start(to)
    place = cursor.find(start) or topic.locate(start - 1 if before and start else start)
    cursor.cumulative(place, to, topic.end.offset, NOW)


class Counted(NamedTuple):
    """The values that counting one by one gives."""

    mark: TopicPosition
    messages: int
    entries: int
    size: int
    ranges: int


def count(topic: Topic, acked: set[int]) -> Counted:
    mark = next(offset for offset in range(topic.end.offset + 1) if offset not in acked)
    total = topic.total(mark)
    done = [
        entry
        for entry, first in enumerate(topic.firsts[:-1])
        if first + topic.counts[entry] > mark and all(o in acked for o in range(first, first + topic.counts[entry]))
    ]
    beyond = {offset for offset in acked if offset > mark}
    ranges = sum(offset - 1 not in beyond for offset in beyond)
    return Counted(total, len(beyond), len(done), sum(topic.sizes[entry] for entry in done), ranges)


def counted(cursor: Cursor) -> Counted:
    acks = cursor.acks
    return Counted(cursor.mark, acks.acked_messages, acks.acked_entries, acks.acked_bytes, acks.ranges)


def check(cursor: Cursor, topic: Topic, acked: set[int]) -> None:
    """Check that all values of the cursor equal those of counting one by one."""
    end = topic.end
    by_hand = count(topic, acked)
    assert counted(cursor) == by_hand
    everything = np.arange(end.offset, dtype=np.int64)
    assert cursor.mask(everything).tolist() == [offset in acked for offset in range(end.offset)]
    left = [
        entry
        for entry, first in enumerate(topic.firsts[:-1])
        if not all(o in acked for o in range(first, first + topic.counts[entry]))
    ]
    assert cursor.backlog(end) == (end.offset - len(acked), len(left), sum(topic.sizes[entry] for entry in left))
