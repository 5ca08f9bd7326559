"""A log with record batches that version 2 of the format wrote is read, verified, and appended to."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.fsck import check
from pyreplog.log.headers import read_header
from tests import samples, twin
from tests.golden.record_batches import ARCHIVE, CLOCK_US, Row


@pytest.fixture
def golden(tmp_path: Path) -> tuple[Path, list[Row]]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "log", filter="data")
    rows = [tuple(row) for row in json.loads((tmp_path / "log" / "rows.json").read_text())]
    (tmp_path / "log" / "rows.json").unlink()
    return tmp_path / "log", rows


def as_row(record: pyreplog.Record) -> Row:
    return record.entry - record.entry_count + 1, record.entry_count, record.value.decode(), record.event_time


def test_a_golden_log_with_record_batches_is_read_without_a_writer(golden: tuple[Path, list[Row]]) -> None:
    path, rows = golden
    assert {row[1] for row in rows} == {1, 2, 3, 50, 100_000}
    with pyreplog.open(path, mode="r") as log:
        assert [as_row(record) for batch in log.read() for record in batch] == rows
        for row in rows:
            assert as_row(log.get(row[0])) == as_row(log.get(row[0] + row[1] - 1)) == row
        assert [r.value for r in log.control_records()] == [b"control 250", b"control 350"]
        assert log.entry_at_time(CLOCK_US + 400_000) == rows[399][0]


def test_a_golden_log_with_record_batches_is_appended_to(golden: tuple[Path, list[Row]]) -> None:
    path, rows = golden
    end = rows[-1][0] + rows[-1][1]
    with pyreplog.open(path) as log:
        assert log.append_record_batches([b"new"], [7]) == range(end, end + 7)
        assert log.append(b"newer") == end + 7
        assert [as_row(record) for batch in log.read(0, end) for record in batch] == rows


def test_golden_logs_with_record_batches_pass_fsck(golden: tuple[Path, list[Row]]) -> None:
    path, rows = golden
    assert check.check(path).clean
    found = [read_header(file).version for file in samples.segments(path)]
    assert found == sorted(found) and set(found) == {1, 2}
    assert [(r.first, r.count, r.value.decode()) for r in twin.read_log(path) if r.kind < 3] == [
        row[:3] for row in rows
    ]
    for index in samples.indexes(path):
        assert index.read_bytes() == twin.make_index(index.with_suffix(".log"))
