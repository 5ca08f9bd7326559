"""Log directories written by every released version of the format are read, verified, and appended to."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.fsck import check
from tests import twin

ARCHIVES = sorted(Path(__file__).parent.glob("v*.tar.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "log", filter="data")
    rows = json.loads((tmp_path / "log" / "rows.json").read_text())
    (tmp_path / "log" / "rows.json").unlink()
    return tmp_path / "log", rows


def as_row(record: pyreplog.Record) -> dict[str, object]:
    return {
        "value": record.value.decode(),
        "key": record.key.decode() if record.key is not None else None,
        "event_time": record.event_time,
        "properties": {name: value.decode() for name, value in record.properties.items()},
    }


def test_archive_of_the_present_version_exists():
    assert "v1.tar.gz" in [path.name for path in ARCHIVES]


def test_a_golden_log_is_read_without_a_writer(golden):
    path, rows = golden
    with pyreplog.open(path, mode="r") as log:
        assert [as_row(record) for batch in log.read() for record in batch] == rows
        assert [as_row(log.get(n)) for n in range(len(rows))] == rows
        assert [r.value for r in log.control_records()] == [b"control 50", b"control 150", b"control 250"]


def test_a_golden_log_is_appended_to(golden):
    path, rows = golden
    with pyreplog.open(path) as log:
        assert log.append(b"new") == len(rows)
        assert [as_row(record) for batch in log.read(0, len(rows)) for record in batch] == rows
        assert log.get(len(rows) - 1).timestamp == 1_750_000_000_000_000 + 1000 * len(rows)


def test_golden_logs_pass_fsck(golden):
    path, rows = golden
    assert check.check(path).clean
    assert len([r for r in twin.read_log(path) if r.kind == 1]) == len(rows)
