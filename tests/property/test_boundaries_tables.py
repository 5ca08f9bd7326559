"""Lookups of tables, reports and streams beside brute force, at the values that occur and those one beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.errors import OutOfRangeError, TrimmedError
from pyreplog.offload.index import ObjectIndex
from pyreplog.offload.manifest import LogIdentity, SealedObject
from pyreplog.reports.cursors import CursorHistory
from pyreplog.reports.records.duplicates import _is_within
from pyreplog.reports.snapshot import SubscriptionSnapshot
from pyreplog.spark.stream.logs import LogPartition
from pyreplog.tables import objects, scan
from pyreplog.tables.cluster import entry_scan
from pyreplog.tables.objects import ObjectSlice
from pyreplog.tables.offsets import LAST
from pyreplog.tables.ranges import bounded, common, is_among
from pyreplog.tables.slices import LogName, RecordFilter

few = st.integers(0, 6)


@st.composite
def disjoint(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Ranges that ascend; some touch each other."""
    at, rows = 0, []
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4)):
        rows.append((at + gap, at + gap + length))
        at += gap + length
    return tuple(rows)


def numbers_in(ranges: tuple[tuple[int, int], ...] | None) -> set[int]:
    return set(range(25)) if ranges is None else {number for low, stop in ranges for number in range(low, stop)}


@given(some=st.none() | disjoint(), others=st.none() | disjoint())
def test_ranges_have_in_common_what_lies_in_both(some: Any, others: Any) -> None:
    both = common(some, others)
    assert numbers_in(both) == numbers_in(some) & numbers_in(others)
    assert all(low < stop for low, stop in both or ())
    for number in range(-1, 25):
        assert is_among(number, others or ()) == (others is not None and number in numbers_in(others))


@given(low=st.integers(-2, 6), high=st.sampled_from([LAST, *range(7)]), first=few, more=few, lenient=st.booleans())
def test_offsets_that_are_wanted_of_those_there_are(low: int, high: int, first: int, more: int, lenient: bool) -> None:
    """The end is an offset that one may begin at, too."""
    end = first + more
    if not lenient and 0 <= low < first:
        with pytest.raises(TrimmedError):
            bounded("x", low, high, first, end, lenient=lenient)
    elif (not lenient and max(low, high) > end) or 0 <= high < low:
        with pytest.raises(OutOfRangeError):
            bounded("x", low, high, first, end, lenient=lenient)
    else:
        start, stop = bounded("x", low, high, first, end, lenient=lenient)
        wanted = [n for n in range(first, end) if n >= low and (high == LAST or n < high)]
        assert list(range(start, stop)) == wanted and first <= start <= end and first <= stop <= end


class _Columns:
    """A batch of few columns."""

    def __init__(self, numbers: list[int], times: list[int], ledgers: list[int]) -> None:
        self.entry = self.offset = np.array(numbers, np.int64)
        self.timestamp = self.publish_time = np.array(times, np.int64)
        self.ledger, self.position = np.array(ledgers, np.int64), np.arange(len(numbers))
        self.entry_count = np.ones(len(numbers), np.int64)
        self.kept = list(range(len(numbers)))

    def __len__(self) -> int:
        return len(self.kept)

    def select(self, rows: Any) -> _Columns:
        self.kept = rows.tolist()
        return self


rows_of = st.lists(st.tuples(few, few, st.integers(0, 14)), max_size=8)
bounds_of = st.none() | st.tuples(few, few)


@settings(max_examples=400)
@given(rows=rows_of, entries=bounds_of, times=bounds_of, ledgers=st.none() | disjoint(), acked=disjoint())
def test_wanted_rows_are_those_within_the_bounds(
    rows: list[tuple[int, int, int]], entries: Any, times: Any, ledgers: Any, acked: Any
) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    apart = [bound for low, stop in acked for bound in (low, stop)]

    def is_within(value: int, bounds: Any) -> bool:
        return bounds is None or bounds[0] <= value < bounds[1]

    batch: Any = _Columns(*columns)
    scan.select(batch, RecordFilter(entries, times, ledgers))
    assert batch.kept == [
        at for at, (number, time, ledger) in enumerate(rows)
        if is_within(number, entries) and is_within(time, times) and (ledgers is None or ledger in numbers_in(ledgers))
    ]  # fmt: skip
    batch = _Columns(*columns)
    entry_scan._select(batch, RecordFilter(entries, times), np.array(apart, np.int64).tobytes())
    assert batch.kept == [
        at for at, (number, time, _) in enumerate(rows)
        if is_within(number, entries) and is_within(time, times) and number not in numbers_in(acked)
    ]  # fmt: skip


@given(sizes=st.lists(st.integers(0, 3), max_size=8), most=st.integers(1, 7), rows=st.integers(1, 4))
def test_rows_of_one_arrow_batch(sizes: list[int], most: int, rows: int) -> None:
    options: Any = SimpleNamespace(batch_bytes=most, batch_rows=rows)
    expected, start = [], 0
    while start < len(sizes):
        stop = start + 1
        while stop < len(sizes) and stop - start < rows and sum(sizes[start : stop + 1]) <= most:
            stop += 1
        expected.append((start, stop))
        start = stop
    assert list(entry_scan._cuts(np.array(sizes, np.int64), options)) == expected


@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=10), block=st.integers(1, 3), low=st.integers(-1, 10),
    high=st.integers(-1, 10), by_time=st.booleans(),
)  # fmt: skip
def test_a_range_of_an_object_loses_none_of_its_records(
    steps: list[int], block: int, low: int, high: int, by_time: bool
) -> None:
    """To within a block of its index; records of one time may be in several blocks."""
    keys = [sum(steps[: at + 1]) for at in range(len(steps))] if by_time else list(range(len(steps)))
    places = [HEADER_BYTES + 64 * at for at in range(len(keys))]
    stop, heads = HEADER_BYTES + 64 * len(keys), range(block, len(keys), block)
    columns = (np.array([of[at] for at in heads], np.int64) for of in (range(len(keys)), places, keys))
    nothing: Any = None
    index = ObjectIndex(nothing, *columns)
    identity: LogIdentity = nothing
    item = SealedObject(
        base=0, first_entry=0, epoch=0, stop=stop, entries=len(keys), crc32c=0, index_bytes=0, index_crc32c=0,
        time_low=keys[0], time_high=keys[-1] + steps[0],
    )  # fmt: skip
    part = ObjectSlice(
        LogName("u", "u", bytes(16)),
        "u/0",
        0,
        0,
        HEADER_BYTES,
        stop,
        stop,
        storage=nothing,
        item=item,
        identity=identity,
    )
    cut = objects._in_times if by_time else objects._in_entries
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_index", lambda _: index)
        ranges = cut(part, (low, high))
    wanted = [place for place, key in zip(places, keys, strict=True) if low <= key < high]
    if ranges is None:
        assert not wanted
    else:
        assert all(ranges.start <= place < ranges.until for place in wanted)
        if wanted:  # no more than a block too many, in front and behind
            inside = [key for place, key in zip(places, keys, strict=True) if ranges.start <= place < ranges.until]
            assert sum(key < low for key in inside) <= block and sum(key >= high for key in inside) < block


marks_of = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=5)


@given(steps=marks_of, time=st.integers(-1, 12))
def test_the_mark_at_a_time_is_found(steps: list[tuple[int, int]], time: int) -> None:
    """A move counts from its own moment on."""
    marks, at = [], 0
    for step, mark in steps:
        at += step
        marks.append((at, mark))
    told = SubscriptionSnapshot.mark_at(  # type: ignore[misc]
        SimpleNamespace(marks=np.array(marks, np.int64).reshape(-1, 2)), time  # type: ignore[arg-type]
    )  # fmt: skip
    assert told == next((mark for us, mark in reversed(marks) if us <= time), None)
    course: Any = SimpleNamespace(_marks=list(marks), moved_us=None)
    first = max(sum(us <= time for us, _ in marks) - 1, 0)
    assert [tuple(row) for row in CursorHistory.since(course, time, 0).tolist()] == marks[first:]


@given(runs=disjoint(), values=st.lists(st.integers(-1, 25), max_size=10))
def test_numbers_within_runs_are_found(runs: Any, values: list[int]) -> None:
    """First and last of each run are within."""
    bounds = np.array([bound for low, stop in runs for bound in (low, stop - 1)], np.int64)
    mask = _is_within(np.array(values, np.int64), bounds)
    assert mask.tolist() == [value in numbers_in(runs) for value in values]


@given(sizes=st.lists(st.integers(1, 2), max_size=6), start=st.integers(0, 3), place=st.integers(-1, 16))
def test_the_last_entry_that_begins_at_a_position_or_before(sizes: list[int], start: int, place: int) -> None:
    positions = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    partition: Any = SimpleNamespace(
        reader=SimpleNamespace(start=start),
        end=start + len(sizes),
        bytes_before=lambda offset: positions[offset - start],
    )
    wanted = max((number for number, at in enumerate(positions) if at <= place), default=0)
    assert LogPartition.offset_at(partition, place) == start + wanted
