"""Positions of an origin's messages, against a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidArgumentError
from pyreplog.origins.position_map import PositionMap

ENTRIES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), max_size=12)
"""Of each entry: offsets at the origin that are left out before it, messages of others before it, its messages."""


def build(entries: list[tuple[int, int, int]]) -> tuple[PositionMap, dict[int, int]]:
    positions, expected = PositionMap(), dict[int, int]()
    first = offset = 0
    for gap, others, messages in entries:
        first, offset = first + gap, offset + others
        positions.add(first, offset, messages)
        expected |= zip(range(first, first + messages), range(offset, offset + messages), strict=True)
        first, offset = first + messages, offset + messages
    return positions, expected


@given(ENTRIES, st.integers(0, 70))
def test_it_maps_both_ways_as_a_dictionary_does(entries: list[tuple[int, int, int]], below: int) -> None:
    positions, expected = build(entries)
    back = {offset: first for first, offset in expected.items()}
    for _ in range(2):
        for number in range(-1, 80):
            assert positions.local_of(number) == expected.get(number)
            assert positions.origin_of(number) == back.get(number)
        positions.trim(below)
        back = {offset: first for offset, first in back.items() if offset >= below}
        expected = {first: offset for offset, first in back.items()}
    assert sum(count for _, _, count in positions.runs()) == len(expected)


def test_neighbours_are_one_run() -> None:
    positions, _ = build([(0, 0, 3), (0, 0, 2), (0, 1, 2), (1, 0, 1)])
    assert positions.runs() == [(0, 0, 5), (5, 6, 2), (8, 8, 1)]
    assert len(positions) == 3


@pytest.mark.parametrize(("first", "offset", "messages"), [(4, 9, 1), (9, 4, 1), (9, 9, 0), (-1, 9, 1)])
def test_positions_ascend(first: int, offset: int, messages: int) -> None:
    positions, _ = build([(0, 0, 5)])
    with pytest.raises(InvalidArgumentError, match="expected messages from 5, here 5, on"):
        positions.add(first, offset, messages)
