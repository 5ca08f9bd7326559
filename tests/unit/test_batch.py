"""Batches: their columns, their records, and what of both stays valid."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy
import pytest

import pyreplog

VALUES = [b"%d" % n * (n % 7) for n in range(500)]


@pytest.fixture
def log(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 20) as log:
        yield log


def whole(log) -> pyreplog.RecordBatch:
    (batch,) = log.read()
    return batch


@pytest.mark.parametrize("index", [500, -501, 2**70, -(2**70)])
def test_an_index_out_of_range(log, index):
    log.append_batch(VALUES)
    with pytest.raises(IndexError):
        whole(log)[index]


def test_an_index_that_is_no_number(log):
    log.append_batch(VALUES)
    with pytest.raises(TypeError):
        whole(log)["1"]
    assert whole(log)[numpy.int64(3)].value == VALUES[3]


def test_records_that_were_kept_stay_what_they_were(log):
    log.append_batch(VALUES)
    kept = [record for record in whole(log) if record.entry % 3 != 1]
    assert [(record.entry, record.value) for record in kept] == [(n, VALUES[n]) for n in range(500) if n % 3 != 1]
    assert [record.value for record in list(whole(log))] == VALUES


def test_a_value_is_found_under_any_spelling_of_its_name(log):
    log.append(b"v")
    record = log.get(0)
    name = "".join(["val", "ue"])  # another object than the name in the code
    assert getattr(record, name) == record.value == type(record).value.__get__(record) == b"v"
    with pytest.raises(AttributeError):
        record.values  # noqa: B018


@pytest.mark.parametrize("first", [0, 100, 300_000])
def test_many_records_behind_one_of_another_length(log, first):
    values = [bytes(first), *VALUES]
    log.append_batch(values)
    batch = whole(log)
    assert batch.values() == values
    assert batch.size.tolist() == [len(value) for value in values]
    assert batch.entry.tolist() == list(range(len(values)))
    assert (numpy.diff(batch.position) == batch.stride[:-1]).all()


def test_columns_outlive_their_batch_and_are_not_writable(log):
    log.append_batch([bytes(n % 50) for n in range(20_000)])
    columns = [batch.size for batch in log.read(batch_bytes=1 << 18)]
    assert len(columns) > 2
    list(log.read())  # uses memory that was given back
    assert numpy.concatenate(columns).tolist() == [n % 50 for n in range(20_000)]
    assert columns[0].dtype == numpy.int64
    with pytest.raises(ValueError, match="read-only"):
        columns[0][0] = 1


def test_records_are_selected_by_integers_of_one_dimension(log):
    log.append_batch([b"a", b"b", b"c"])
    batch = whole(log)
    assert batch.select(numpy.array([0, 2], numpy.uint8)).values() == [b"a", b"c"]
    for wrong in ([0.0, 1.0], [[0, 1]], [[0.5]], [True], ["a"], [None]):
        with pytest.raises(pyreplog.WrongTypeError, match=r"^indices: expected integers of one dimension, found"):
            batch.select(wrong)
    for outside in ([-1], [3], [0, 3]):
        with pytest.raises(IndexError, match="out of range"):
            batch.select(outside)


def test_columns_of_an_empty_batch(log):
    log.append(b"v")
    empty = whole(log).select([])
    assert len(empty) == len(empty.entry) == len(empty.size) == 0
    assert list(empty) == empty.values() == []


def test_an_iterator_of_records_stays_at_its_batch(tmp_path: Path) -> None:
    """It reuses a record, which keeps alive the segment of the first batch alone."""
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([b"a", b"b", b"c"])
        (batch,) = log.read()
        other = batch.select([2])
        records = iter(batch)
        next(records)
        with contextlib.suppress(TypeError):
            records.__init__(other)  # type: ignore[misc]
        assert [record.value for record in records] == [b"b", b"c"]
