"""Stores of the applied position: a file, and a row of a database."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidArgumentError, NotALogError, PositionError
from pyreplog.ha.relay import Advance, Applied, PositionFile, SqlPosition, discard, refetch_from, sql_position
from pyreplog.ha.relay import position_file as file_module
from pyreplog.log import names
from tests.samples import flip

LOG, OTHER = bytes(range(16)), bytes(16)
A, B, C = (Applied(LOG, 4096 + 100 * n, n, n + 7) for n in (0, 1, 2))
FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text()


# ---- in a file -------------------------------------------------------------------------------------------------


def test_a_file_holds_the_position(tmp_path):
    store = PositionFile(tmp_path / "position")
    assert store.load() is None
    store.begin(A)
    assert store.load() == A
    store.save(Advance(A, B))
    assert PositionFile(tmp_path / "position").load() == B
    assert [path.name for path in tmp_path.iterdir()] == ["position"]


def test_a_file_that_another_applier_moved(tmp_path):
    store = PositionFile(tmp_path / "position")
    with pytest.raises(PositionError, match="found nothing"):
        store.save(Advance(A, B))
    store.begin(A)
    store.save(Advance(A, B))
    with pytest.raises(PositionError, match="expected entry 0, found entry 1"):
        store.save(Advance(A, C))
    with pytest.raises(PositionError, match="already"):
        store.begin(A)
    assert store.load() == B


@pytest.mark.parametrize("offset", range(56))
def test_a_garbled_file_is_never_nothing(tmp_path, offset):
    store = PositionFile(tmp_path / "position")
    store.begin(B)
    flip(store.path, offset, bit=offset % 8)
    with pytest.raises(CorruptionError):
        store.load()


@pytest.mark.parametrize("size", [0, 1, 55, 57])
def test_a_file_of_another_length(tmp_path, size):
    store = PositionFile(tmp_path / "position")
    store.path.write_bytes(bytes(size))
    with pytest.raises(CorruptionError, match=f"{size} bytes"):
        store.load()


def test_a_file_of_a_later_version(tmp_path, monkeypatch):
    store = PositionFile(tmp_path / "position")
    monkeypatch.setattr(file_module, "VERSION", 2)
    store.begin(A)
    monkeypatch.undo()
    with pytest.raises(FormatVersionError):
        store.load()


def test_the_file_is_as_documented():
    section = FORMAT.split("## Applied position")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    fields = [(int(row[0]), int(row[1])) for row in rows if row[0].strip().isdigit()]
    form = file_module._FORM
    assert f"`{form.format}`" in section
    codes = ["8s", "I", "H", "H", "16s", "q", "q", "I", "4x"]
    sizes = [struct.calcsize(f"<{code}") for code in codes]
    assert "<" + "".join(codes) == form.format
    assert fields == [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


# ---- in a database ---------------------------------------------------------------------------------------------


class _Cursor:
    """A cursor with another paramstyle, on top of sqlite3."""

    def __init__(self, connection: _Driver) -> None:
        self._cursor, self._mark = sqlite3.Connection.cursor(connection), connection.mark

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def execute(self, operation: str, parameters: Sequence[Any]) -> object:
        assert operation.count(self._mark(1)) == (1 if parameters else 0) or self._mark(1) == self._mark(2)
        for i in range(len(parameters)):
            assert self._mark(i + 1) in operation
            operation = operation.replace(self._mark(i + 1), "?", 1)
        return self._cursor.execute(operation, parameters)

    def fetchone(self) -> object:
        return self._cursor.fetchone()

    def close(self) -> None:
        self._cursor.close()


class _Driver(sqlite3.Connection):
    mark: Callable[[int], str]

    def cursor(self) -> Any:  # type: ignore[override]
        return _Cursor(self)


MARKS: dict[str, Callable[[int], str]] = {
    "qmark": lambda i: "?",
    "format": lambda i: "%s",
    "pyformat": lambda i: "%s",
    "numeric": lambda i: f":{i}",
}


@pytest.fixture(params=MARKS)
def row(request: pytest.FixtureRequest, tmp_path: Path) -> SqlPosition:
    def connect() -> _Driver:
        connection = sqlite3.connect(tmp_path / "database", factory=_Driver)
        connection.mark = MARKS[request.param]
        return connection

    return SqlPosition(connect, "a's", paramstyle=request.param)


def test_a_row_holds_the_position(row):
    assert row.load() is None
    row.begin(A)
    assert row.load() == A
    row.save(Advance(A, B))
    assert row.load() == B


def test_a_row_moves_with_its_transaction_or_not_at_all(row):
    row.begin(A)
    database = row._connect()
    row.store(database.cursor(), Advance(A, B))
    assert row.load() == A
    database.rollback()
    assert row.load() == A
    row.store(database.cursor(), Advance(A, B))
    database.commit()
    database.close()
    assert row.load() == B


def test_a_row_that_another_applier_moved(row):
    row.begin(A)
    row.save(Advance(A, B))
    with pytest.raises(PositionError, match="not at entry 0"):
        row.save(Advance(A, C))
    with pytest.raises(PositionError, match="another applier"):
        row.save(Advance(B._replace(log=OTHER), C))
    with pytest.raises(sqlite3.IntegrityError):
        row.begin(A)
    assert row.load() == B


def test_positions_of_several_appliers_share_a_table(tmp_path):
    first, two = (SqlPosition(lambda: sqlite3.connect(tmp_path / "database"), name) for name in ("one", "two"))
    first.begin(A)
    two.begin(B)
    first.save(Advance(A, C))
    assert (first.load(), two.load()) == (C, B)


def test_a_row_that_makes_no_sense(tmp_path):
    store = SqlPosition(lambda: sqlite3.connect(tmp_path / "database"), "one")
    store.begin(A)
    with sqlite3.connect(tmp_path / "database") as database:
        database.execute("UPDATE pyreplog_applied SET log_uuid = 'xyz'")
    database.close()
    with pytest.raises(PositionError, match="xyz"):
        store.load()


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "n" * 256}, {"paramstyle": "named"}, {"table": "a; DROP TABLE b"}, {"table": ""}]
)
def test_a_position_in_sql_refuses_malformed_arguments(tmp_path, wrong):
    arguments = {"name": "one", **wrong}
    with pytest.raises(InvalidArgumentError):
        SqlPosition(lambda: sqlite3.connect(tmp_path / "database"), **arguments)


def test_columns_are_those_of_a_position():
    assert len(sql_position._COLUMNS) == len(Applied._fields)


# ---- receiving again -------------------------------------------------------------------------------------------


def test_a_relay_receives_again_from_the_segment_of_its_position():
    assert refetch_from(None, 65536) == 0
    assert refetch_from(Applied(LOG, 65536 * 3 + 4096, 5), 65536) == 65536 * 3
    assert refetch_from(Applied(LOG, 65536 * 3 - 8, 5), 65536) == 65536 * 2


def test_discard_removes_copies_only(tmp_path):
    path = tmp_path / "relay"
    discard(path)
    with pyreplog.open(path) as log:
        log.append(b"a")
    with pytest.raises(NotALogError, match="expected a relay log"):
        discard(path)
    (path / names.REPLICA).touch()
    discard(path)
    assert list(tmp_path.iterdir()) == []


def test_discard_refuses_a_log_that_is_open(tmp_path):
    with pyreplog.open(tmp_path / "relay"):
        (tmp_path / "relay" / names.REPLICA).touch()
        with pytest.raises(pyreplog.LockedError):
            discard(tmp_path / "relay")
        (tmp_path / "relay" / names.REPLICA).unlink()


def test_discard_finishes_what_a_crash_left(tmp_path):
    left = tmp_path / "relay.discarded"
    left.mkdir()
    (left / "00000000000000000000.log").touch()
    discard(tmp_path / "relay")
    assert list(tmp_path.iterdir()) == []
