"""Columns whose rows are alike, and sums of runs, as plain Python finds them."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyreplog._native.tables.column_runs import are_numbers_alike, are_strings_alike, sums_by_unit
from pyreplog.errors import InvalidArgumentError

LOW, HIGH = -(1 << 63), (1 << 63) - 1
TIMES = st.one_of(st.integers(-200, 200), st.integers(LOW, LOW + 200), st.integers(HIGH - 200, HIGH))


@given(st.lists(st.tuples(TIMES, st.integers(-(1 << 31), (1 << 31) - 1))), st.sampled_from([1, 7, 60, HIGH]))
@example([(HIGH, 1), (HIGH - 1, 2), (LOW, 3), (LOW + 1, 4)], 60)
@example([(-1, 5), (0, 6)], 60)
@example([(LOW, 1), (-2, 2)], HIGH)
def test_sums_by_unit_are_those_of_plain_python(rows: list[tuple[int, int]], unit: int) -> None:
    times, values = (np.array([row[column] for row in rows], kind) for column, kind in ((0, np.int64), (1, np.int32)))
    wanted = []
    for number, some in groupby(rows, lambda row: row[0] // unit):
        actual_values = [value for _, value in some]
        wanted.append((number, len(actual_values), sum(actual_values), max(actual_values)))
    assert sums_by_unit(times, values, unit) == wanted


@pytest.mark.parametrize(("times", "values", "unit"), [(2, 1, 60), (1, 2, 60), (1, 1, 0), (1, 1, -1)])
def test_sums_of_what_does_not_fit(times: int, values: int, unit: int) -> None:
    with pytest.raises(InvalidArgumentError):
        sums_by_unit(np.zeros(times, np.int64), np.zeros(values, np.int32), unit)


@given(st.lists(st.integers(0, 1), max_size=9), st.integers(0, 3))
def test_columns_of_equal_numbers_are_found(values: list[int], start: int) -> None:
    column = np.array([5] * start + values, np.int32)[start:]
    assert are_numbers_alike(column) == (len(set(values)) <= 1)


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "abab"]), max_size=6), st.integers(0, 2))
def test_columns_of_equal_strings_are_found(values: list[str], start: int) -> None:
    column = pa.array(["x"] * start + values, pa.string()).slice(start)
    _, offsets, data = column.buffers()
    verdict = are_strings_alike(offsets, data or b"", column.offset, len(column))
    assert verdict == (len(set(values)) <= 1)


@pytest.mark.parametrize(("start", "count"), [(0, 3), (2, 1), (-1, 1), (0, -1), (1 << 62, 1 << 62), (3, 0)])
def test_strings_that_are_not_there(start: int, count: int) -> None:
    with pytest.raises(InvalidArgumentError):
        are_strings_alike(np.array([0, 1, 2], np.int32), b"aa", start, count)


@pytest.mark.parametrize("ends", [[0, 4], [-1, 1], [2, 1], [0, 1 << 30]])
def test_strings_beyond_their_bytes_are_not_alike(ends: list[int]) -> None:
    assert not are_strings_alike(np.array(ends, np.int32), b"aa", 0, 1)
