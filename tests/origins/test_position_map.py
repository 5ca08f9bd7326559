"""Positions of an origin's messages, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyreplog.errors import InvalidArgumentError
from pyreplog.origins.position_map import PositionMap

ENTRIES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), max_size=12)
"""Of each entry: offsets at the origin that are left out before it, messages of others before it, its messages."""


def extend(positions: PositionMap, entries: list[tuple[int, int, int]]) -> None:
    positions.extend(*np.array(entries, np.int64).reshape(-1, 3).T)


def build(entries: list[tuple[int, int, int]], batches: int = 1) -> tuple[PositionMap, dict[int, int]]:
    positions, expected, columns = PositionMap(), dict[int, int](), []
    first = offset = 0
    for gap, others, messages in entries:
        first, offset = first + gap, offset + others
        columns.append((first, offset, messages))
        expected |= zip(range(first, first + messages), range(offset, offset + messages), strict=True)
        first, offset = first + messages, offset + messages
    for at in range(batches):
        extend(positions, columns[at * len(columns) // batches : (at + 1) * len(columns) // batches])
    return positions, expected


def each(start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A range for each offset."""
    return np.arange(start, end), np.arange(start, end) + 1


@given(ENTRIES, st.integers(1, 4), st.integers(0, 70))
def test_position_map_equals_a_dictionary_in_both_directions(
    entries: list[tuple[int, int, int]], batches: int, below: int
) -> None:
    positions, expected = build(entries, batches)
    end = max(expected, default=-1) + 1
    for _ in range(2):
        back = sorted((offset, first) for first, offset in expected.items())
        assert positions.to_local(each(0, 80))[0].tolist() == [offset for offset, _ in back]
        assert positions.to_origin(each(0, 80))[0].tolist() == [first for _, first in back]
        assert positions.first == min(expected, default=end) and positions.end == end
        positions.trim(below)
        expected = {first: offset for first, offset in expected.items() if offset >= below}


def test_adjacent_positions_are_one_run() -> None:
    for batches in range(1, 5):
        positions, _ = build([(0, 0, 3), (0, 0, 2), (0, 1, 2), (1, 0, 1)], batches)
        whole = np.zeros(1, np.int64), np.array([20])
        assert [edge.tolist() for edge in positions.to_origin(whole)] == [[0, 5, 8], [5, 7, 9]]
        assert len(positions) == 3


def test_memory_follows_what_is_kept() -> None:
    """24 bytes for each run, and half as much in reserve; what was trimmed is given back."""
    positions = PositionMap()
    count, step = 100_000, 1000
    for at in range(0, 10 * count, step):
        numbers = np.arange(at, at + step) * 2
        positions.extend(numbers, numbers, np.ones(step, np.int64))
        positions.trim(2 * (at + step - count))
        assert positions.nbytes <= 24 * 1.6 * (count + step)
    assert len(positions) == count
    positions.trim(2 * 10 * count - 20)
    assert len(positions) == 10 and positions.nbytes < 4096


def test_adding_rarely_copies_what_is_there() -> None:
    """From 64 runs to 10,000 in steps of one: memory is taken about 13 times, for half as many runs more."""
    positions, one = PositionMap(), np.ones(1, np.int64)
    sizes = set()
    for number in range(0, 20_000, 2):
        positions.extend(one * number, one * number, one)
        sizes.add(positions.nbytes)
    assert len(positions) == 10_000 and len(sizes) < 20


@pytest.mark.parametrize(("first", "offset", "messages"), [(4, 9, 1), (9, 4, 1), (9, 9, 0), (-1, 9, 1)])
def test_messages_that_do_not_ascend_are_refused(first: int, offset: int, messages: int) -> None:
    positions, _ = build([(0, 0, 5)])
    with pytest.raises(InvalidArgumentError, match="expected messages from 5, here 5, on"):
        extend(positions, [(first, offset, messages)])
    assert (len(positions), positions.end) == (1, 5)
    extend(positions, [(7, 8, 1)])


@given(ENTRIES, st.integers(1, 4), st.integers(0, 70), st.integers(0, 70))
def test_runs_between_are_what_was_added_there(
    entries: list[tuple[int, int, int]], batches: int, start: int, size: int
) -> None:
    positions, expected = build(entries, batches)
    firsts, offsets, counts = positions.runs_between(start, start + size)
    messages = {
        first + step: offset + step
        for first, offset, count in zip(firsts.tolist(), offsets.tolist(), counts.tolist(), strict=True)
        for step in range(count)
    }
    assert messages == {first: offset for first, offset in expected.items() if start <= offset < start + size}
    again = PositionMap()
    again.extend(firsts, offsets, counts)
    assert len(again) == len(firsts), "neighbours are one run"
