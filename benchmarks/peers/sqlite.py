"""SQLite with a write-ahead log: synchronous NORMAL, or FULL where every commit must be on disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.peers.peer import Peer

_INSERT = "insert into log(time, value) values (?, ?)"


class SqliteWal(Peer):
    title = "SQLite WAL"

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._connection = sqlite3.connect(directory / "log.db", isolation_level=None)
        self._connection.execute("pragma journal_mode=WAL")
        self._connection.execute(f"pragma synchronous={'FULL' if synced else 'NORMAL'}")
        self._connection.execute("create table if not exists log(id integer primary key, time integer, value blob)")

    @staticmethod
    def version() -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def append(self, value: bytes) -> int | None:
        return self._connection.execute(_INSERT, (time.time_ns(), value)).lastrowid

    def append_batch(self, values: list[bytes]) -> Sequence[int]:
        connection, now = self._connection, time.time_ns()
        connection.execute("begin")
        connection.executemany(_INSERT, [(now, value) for value in values])
        last: int = connection.execute("select last_insert_rowid()").fetchone()[0]
        connection.execute("commit")
        return range(last - len(values) + 1, last + 1)

    def scan(self) -> tuple[int, int]:
        count = total = 0
        for (value,) in self._connection.execute("select value from log order by id"):
            count += 1
            total += len(value)
        return count, total

    def values(self) -> Iterator[bytes]:
        for (value,) in self._connection.execute("select value from log order by id"):
            yield value

    def reader(self) -> Callable[[int], bytes]:
        return self._read

    def _read(self, key: int) -> bytes:
        value: bytes = self._connection.execute("select value from log where id = ?", (key,)).fetchone()[0]
        return value

    def close(self) -> None:
        self._connection.close()
