"""Sets of ranges against sets of integers, their bytes, and what does not belong into them."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, WrongTypeError

SPACE = 2000
offsets = st.integers(0, SPACE)


def int64s(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def pairs(ranges: RangeSet) -> list[tuple[int, int]]:
    starts, ends = ranges.intersect()
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


class AgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ranges, self.members = RangeSet(), set[int]()

    @rule(start=offsets, length=st.integers(0, 90))
    def add(self, start: int, length: int) -> None:
        new = set(range(start, start + length))
        assert self.ranges.add(start, start + length) == len(new - self.members)
        self.members |= new

    @rule(start=offsets, length=st.integers(0, 90))
    def remove(self, start: int, length: int) -> None:
        gone = set(range(start, start + length))
        assert self.ranges.remove(start, start + length) == len(gone & self.members)
        self.members -= gone

    @rule(start=offsets, step=st.integers(1, 7), count=st.integers(0, 400), add=st.booleans(), seed=st.integers(0, 9))
    def many(self, start: int, step: int, count: int, add: bool, seed: int) -> None:
        some = list(range(start, start + step * count, step))
        if seed:
            random.Random(seed).shuffle(some)
        if add:
            assert self.ranges.add_offsets(int64s(some)) == len(set(some) - self.members)
            self.members |= set(some)
        else:
            assert self.ranges.remove_offsets(int64s(some)) == len(set(some) & self.members)
            self.members -= set(some)

    @rule(start=offsets, add=st.booleans())
    def many_ranges(self, start: int, add: bool) -> None:
        starts = int64s([start, start + 40, start + 30])
        covered = {offset for at in starts.tolist() for offset in range(at, at + 20)}
        if add:
            assert self.ranges.add_ranges(starts, starts + 20) == len(covered - self.members)
            self.members |= covered
        else:
            assert self.ranges.remove_ranges(starts, starts + 20) == len(covered & self.members)
            self.members -= covered

    @rule(most=st.integers(1, 50))
    def pop(self, most: int) -> None:
        popped = self.ranges.pop_first(most)
        if popped is None:
            assert not self.members
            return
        start, end = popped
        assert start == min(self.members) and 1 <= end - start <= most
        assert end - start == most or end not in self.members
        assert set(range(start, end)) <= self.members
        self.members -= set(range(start, end))

    @rule(start=offsets, length=st.integers(0, 300), most=st.integers(1, 20))
    def ask(self, start: int, length: int, most: int) -> None:
        end = start + length
        assert self.ranges.covers(start, end) == (set(range(start, end)) <= self.members)
        assert self.ranges.missing(start, end) == len(set(range(start, end)) - self.members)
        assert (start in self.ranges) == (start in self.members)
        assert self.ranges.next_present(start) == min((o for o in self.members if o >= start), default=None)
        starts, ends = self.ranges.intersect(start, end, most)
        offsets = [o for a, b in zip(starts, ends, strict=True) for o in range(a, b)]
        wanted = sorted(self.members & set(range(start, end)))
        assert offsets == wanted[: len(offsets)] and len(starts) <= most
        assert len(starts) == most or offsets == wanted

    @rule()
    def through_bytes(self) -> None:
        data = self.ranges.dump()
        self.ranges = RangeSet.load(data)
        assert self.ranges.dump() == data

    @invariant()
    def agrees(self) -> None:
        ranges = pairs(self.ranges)
        assert sorted(self.members) == [offset for start, end in ranges for offset in range(start, end)]
        assert all(end < after for (_, end), (after, _) in pairwise(ranges)), "two touch"
        assert (len(self.ranges), self.ranges.total) == (len(ranges), len(self.members))
        assert (self.ranges.first, self.ranges.last) == (
            min(self.members, default=None),
            max(self.members, default=None),
        )
        everything = np.arange(SPACE + 100, dtype=np.int64)
        assert self.ranges.mask(everything).tolist() == [offset in self.members for offset in everything.tolist()]


TestAgainstASet = AgainstASet.TestCase
TestAgainstASet.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 300), max_size=60), st.lists(st.integers(0, 320), max_size=60))
@settings(deadline=None)
def test_the_mask_of_a_range_set_follows_the_order_asked(members: list[int], asked: list[int]) -> None:
    ranges = RangeSet()
    ranges.add_offsets(int64s(members))
    assert ranges.mask(int64s(asked)).tolist() == [offset in members for offset in asked]


def test_chunks_of_a_range_set_cover_all_of_it() -> None:
    ranges = RangeSet()
    ranges.add_offsets(np.arange(0, 30_000, 3))
    chunks = list(ranges.chunks(999))
    assert [len(starts) for starts, _ in chunks] == [999] * 10 + [10]
    assert np.concatenate([starts for starts, _ in chunks]).tolist() == list(range(0, 30_000, 3))
    assert all((ends - starts == 1).all() for starts, ends in chunks)


def test_memory_follows_the_ranges() -> None:
    """16 bytes each when they come in order, half as much again in any order, nothing when they are gone."""
    count = 100_000
    ordered, shuffled = RangeSet(), RangeSet()
    ordered.add_offsets(np.arange(0, 2 * count, 2))
    shuffled.add_offsets(np.random.default_rng(1).permutation(count).astype(np.int64) * 2)
    assert len(ordered) == len(shuffled) == count
    assert ordered.nbytes < 17 * count and shuffled.nbytes < 26 * count
    shuffled.add_offsets(np.random.default_rng(2).permutation(count)[: count * 9 // 10].astype(np.int64) * 2 + 1)
    assert shuffled.nbytes < 60 * len(shuffled)
    ordered.remove(0, 2 * count)
    assert (ordered.nbytes, len(ordered), bool(ordered)) == (0, 0, False)


def test_the_ends_of_the_world() -> None:
    ranges = RangeSet()
    assert ranges.add(0, OFFSET_END) == ranges.total == OFFSET_END
    assert ranges.remove(5, OFFSET_END - 5) == OFFSET_END - 10
    assert pairs(RangeSet.load(ranges.dump())) == [(0, 5), (OFFSET_END - 5, OFFSET_END)]


@pytest.mark.parametrize("start, end", [(-1, 4), (5, 4), (0, OFFSET_END + 1)])
def test_impossible_ranges_are_refused(start: int, end: int) -> None:
    ranges = RangeSet()
    for call in (ranges.add, ranges.remove, ranges.covers, ranges.missing, ranges.intersect):
        with pytest.raises(InvalidArgumentError, match="expected 0 <= start"):
            call(start, end)
    with pytest.raises(InvalidArgumentError, match="expected 0 <= start"):
        ranges.add_ranges(int64s([1, start]), int64s([2, end]))
    assert not ranges


def test_malformed_arrays_of_ranges_are_refused() -> None:
    ranges = RangeSet()
    with pytest.raises(WrongTypeError, match="float64"):
        ranges.add_offsets(np.array([1.5]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="expected 2 of them"):
        ranges.add_ranges(int64s([1, 2]), int64s([2]))
    for bad in (-1, OFFSET_END):
        with pytest.raises(InvalidArgumentError):
            ranges.add_offsets(int64s([1, bad]))
    with pytest.raises(InvalidArgumentError, match="1 or more"):
        ranges.pop_first(0)
    assert not ranges


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\x01\x00",
        b"\x00\x01\x00\x01",
        b"\x80\x00\x01",
        b"\xff" * 20,
        b"\x01\x80",
        b"\x02" + b"\xff" * 8 + b"\x3f",
    ],
    ids=["no length", "empty", "touching", "long zero", "no number", "cut", "too far"],
)
def test_bytes_that_are_no_set(data: bytes) -> None:
    with pytest.raises(InvalidRecordsError):
        RangeSet.load(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_set_or_an_error(data: bytes) -> None:
    try:
        ranges = RangeSet.load(data)
    except InvalidRecordsError:
        return
    assert ranges.dump() == data
