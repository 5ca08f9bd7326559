"""Positions of all origins in a topic: adding entries in batches gives the positions of adding them one at a time."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.subscription_state import SubscriptionState
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.origins.origin import Origin

from .exchanging import origin, span

OWN, FORMER = origin("a"), ((origin("x"), 8), (origin("y"), 15))
ORIGINS = {1: origin("b"), 2: origin("c")}
ENTRIES = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(1, 3)), max_size=20)
"""For each entry: the key of its origin (0: published here, 3: unknown); how many offsets of that origin are left out
before it, where -1 overlaps with the entry before; its number of messages."""


class Entry(NamedTuple):
    key: int
    first: int
    offset: int
    count: int


def log_of(drawn: list[tuple[int, int, int]]) -> list[Entry]:
    log, ends, offset = list[Entry](), dict[int, int](), 0
    for key, gap, count in drawn:
        first = -1 if key == 0 else max(ends.get(key, 0) + gap, 0)
        ends[key] = first + count
        log.append(Entry(key, first, offset, count))
        offset += count
    return log


def batch_of(entries: list[Entry]) -> MessageBatch:
    """Return the columns from which positions are made."""
    keys, firsts, offsets, counts = np.array(entries, np.int64).reshape(-1, 4).T
    return cast(
        MessageBatch,
        SimpleNamespace(
            entry_origin_key=keys.astype(np.uint64), entry_origin_first=firsts, entry_first=offsets,
            entry_count=counts.astype(np.int32), end=entries[-1].offset + entries[-1].count,
        ),
    )  # fmt: skip


def scan(log: list[Entry], start: int, *, former: bool) -> dict[int, tuple[Origin, int]]:
    """Return the message at each offset, entry by entry. Messages that do not ascend at their origin are left out."""
    ends, messages = dict[Origin, int](), dict[int, tuple[Origin, int]]()
    for key, first, offset, count in log:
        at, number = (OWN, offset) if key == 0 or key not in ORIGINS else (ORIGINS[key], first)
        if former and key == 0:
            at = next((identity for identity, end in FORMER if offset < end), OWN)
        if at != OWN and offset >= start:
            if number >= ends.get(at, 0):
                ends[at] = number + count
            else:
                at, number = OWN, offset
        for step in range(count):
            messages[offset + step] = at, number + step
    return {offset: message for offset, message in messages.items() if offset >= start}


@given(ENTRIES, st.lists(st.integers(0, 20), max_size=4), st.booleans(), st.integers(0, 20))
def test_batches_give_what_a_scan_gives(
    drawn: list[tuple[int, int, int]], cuts: list[int], former: bool, begins: int
) -> None:
    log = log_of(drawn)
    start = log[min(begins, len(log) - 1)].offset if log else 0
    positions = TopicPositions(OWN, start, ORIGINS.get, FORMER if former else ())
    edges = sorted({0, *(min(cut, len(log)) for cut in cuts), len(log)})
    for begin, end in pairwise(edges):
        ends = positions.add(batch_of(log[begin:end]))
        assert ends[OWN] == positions.end == max(log[end - 1].offset + log[end - 1].count, start)
    for offset, (at, number) in scan(log, start, former=former).items():
        one = np.array([offset]), np.array([offset + 1])
        translated = {
            letter: (int(starts[0]), int(ends[0]))
            for letter, (starts, ends) in positions.translation.to_origins(one).items()
        }
        assert translated == {at: (number, number + 1)}


def test_the_base_of_a_seek_has_of_removed_messages_only_those_that_were_passed() -> None:
    """Those of the topic, and of another origin, that were removed here may be stored in other clusters."""
    log = log_of([(0, 0, 10), (1, 0, 10), (0, 0, 10), (1, 0, 10)])
    positions = TopicPositions(OWN, 0, ORIGINS.get)
    positions.add(batch_of(log))
    state = SubscriptionState(frozenset({"token"}))
    state.acks.add(OWN, *span(1, 22))
    state.acks.add(ORIGINS[1], *span(3, 8))
    base = positions.base_of_seek(state, 35, 15)
    assert offsets(base, OWN) == [1, *range(20, 30)], "foreign offsets name no message"
    assert offsets(base, ORIGINS[1]) == [3, *range(5, 15)]
    positions.trim(15)
    assert offsets(positions.base_of_seek(state, 35, 15), ORIGINS[1]) == [3, *range(5, 15)]


def test_messages_of_an_origin_that_are_kept_are_found_among_its_offsets() -> None:
    positions = TopicPositions(OWN, 0, ORIGINS.get)
    positions.add(batch_of(log_of([(0, 0, 10), (1, 0, 10), (0, 0, 10), (1, 5, 10)])))

    def kept(origin: Origin, numbers: range, start: int) -> list[int]:
        ranges = OriginRanges()
        ranges.add(origin, *positions.kept(origin, span(*numbers), start))
        return offsets(ranges, origin)

    assert kept(OWN, range(5, 25), 0) == [*range(5, 10), *range(20, 25)], "those between are of another origin"
    assert kept(OWN, range(5, 25), 22) == [22, 23, 24]
    first, end = kept(ORIGINS[1], range(1000), 0)[0], positions.ends()[ORIGINS[1]]
    assert kept(ORIGINS[1], range(end), 0) == [*range(first, first + 10), *range(end - 10, end)]
    assert kept(ORIGINS[1], range(end), 15) == [*range(first + 5, first + 10), *range(end - 10, end)]


def offsets(ranges: OriginRanges, of: Origin) -> list[int]:
    return [offset for start, end in zip(*ranges.between(of), strict=True) for offset in range(int(start), int(end))]
