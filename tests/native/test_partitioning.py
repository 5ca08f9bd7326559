"""Hashes of keys, and columns of some rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mmh3
import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.topic.partitioning import gather, hash_column, hash_keys
from pyreplog.errors import InvalidArgumentError, WrongTypeError


@given(st.lists(st.none() | st.binary(max_size=12) | st.binary(max_size=9).map(bytearray)))
def test_keys_are_hashed_one_by_one(keys: list[Any]) -> None:
    hashes, keyed = hash_keys(keys)
    assert (hashes.dtype, keyed.dtype) == (np.uint32, np.bool_)
    assert keyed.tolist() == [key is not None for key in keys]
    assert hashes.tolist() == [0 if key is None else mmh3.hash(bytes(key), 0, signed=False) for key in keys]


@given(st.lists(st.binary(max_size=12)), st.data())
def test_columns_are_hashed_and_gathered(values: list[bytes], data: st.DataObject) -> None:
    column = (np.cumsum([0, *map(len, values)]), b"".join(values))
    arrow = pyarrow.array([b"before", *values], pyarrow.binary()).slice(1)
    rows = data.draw(st.lists(st.integers(0, len(values) - 1))) if values else []
    for each_column in (column, arrow):
        assert hash_column(each_column).tolist() == hash_keys(values)[0].tolist()
        offsets, gathered = gather(each_column, np.array(rows, np.int64))
        assert offsets.dtype == np.int64
        pieces = [bytes(gathered[start:end]) for start, end in pairwise(offsets.tolist())]
        assert pieces == [values[row] for row in rows]


@pytest.mark.parametrize("row", [-1, 2, 1 << 40])
def test_rows_that_are_not_there_are_refused(row: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"expected 0 to 1, found {row}"):
        gather((np.array([0, 1, 2]), b"ab"), np.array([0, row]))


@pytest.mark.parametrize("offsets", [[0, 3], [2, 1], [-1, 1]])
def test_columns_with_bad_offsets_are_refused(offsets: list[int]) -> None:
    for call in (hash_column, lambda column: gather(column, np.array([0]))):
        with pytest.raises(InvalidArgumentError, match="offsets"):
            call((np.array(offsets), b"ab"))


@pytest.mark.parametrize("keys", [b"ab", "ab", 5, None, ["text"], [b"a", 5]])
def test_hash_keys_refuses_invalid_keys(keys: Any) -> None:
    with pytest.raises(WrongTypeError, match="key"):
        hash_keys(keys)
