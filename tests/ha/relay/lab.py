"""A relay log to which tests append, callbacks, and stores in memory."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Generator
from pathlib import Path

import pyreplog
from pyreplog import RecordBatch
from pyreplog.ha.relay import Advance, Applied, SqlPosition

SEGMENT_BYTES = 1 << 16


def relay_log(path: Path, *, clock: pyreplog.Clock | None = None) -> pyreplog.CommitLog:
    return pyreplog.open(path, segment_bytes=SEGMENT_BYTES, clock=clock)


def fill(log: pyreplog.CommitLog, count: int, *, keys: int = 7, size: int = 0) -> None:
    """Append entries whose value is their number, followed by `size` bytes."""
    first = log.end
    log.append_batch([b"%d" % n + bytes(size) for n in range(first, first + count)],
                     [b"key %d" % (n % keys) for n in range(first, first + count)])  # fmt: skip


def paced_pipe() -> tuple[int, int]:
    """Return a pipe that takes one write at a time.

    The process that writes cannot get further than one write ahead of its reader, however late the reader kills it.
    """
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1)  # one page, and each write takes a page
    return reader, writer


class Memory:
    """A database in memory, with the applied values, and the position if it is transactional."""

    def __init__(self, *, transactional: bool = False) -> None:
        self.transactional = transactional
        self.position: Applied | None = None
        self.values: list[bytes] = []
        self.batches: list[tuple[int, int]] = []
        self.bad: dict[bytes, int] = {}  # values that are refused, and how often each one is
        self._lock = threading.Lock()

    def load(self) -> Applied | None:
        return self.position

    def begin(self, applied: Applied) -> None:
        assert self.position is None
        self.position = applied

    def save(self, advance: Advance) -> None:
        assert self.position == advance.before
        self.position = advance.after

    def refuse(self, batch: RecordBatch) -> None:
        for record in batch:
            if self.bad.get(record.value, 0) > 0:
                self.bad[record.value] -= 1
                raise ValueError(f"refused {record.value.decode()}")

    def commit(self, batch: RecordBatch, advance: Advance) -> None:
        with self._lock:
            if self.transactional:
                self.save(advance)
            self.values.extend(batch.values())
            self.batches.append((advance.before.entry, advance.after.entry))

    def apply(self, batch: RecordBatch, advance: Advance) -> None:
        self.refuse(batch)
        self.commit(batch, advance)

    def apply_in_two(self, batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        self.refuse(batch)
        yield
        self.commit(batch, advance)

    def numbers(self) -> list[int]:
        return [int(value.rstrip(b"\0")) for value in self.values]


class Table:
    """An SQLite table of applied values, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.connect() as database:
            database.execute("CREATE TABLE IF NOT EXISTS applied (place INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT)")
        database.close()
        self.positions = SqlPosition(self.connect, "test")

    def connect(self) -> sqlite3.Connection:
        """Commit without a sync, as kill -9 loses nothing that was written."""
        database = sqlite3.connect(self.path)
        database.execute("PRAGMA synchronous = OFF")
        return database

    def insert(self, database: sqlite3.Connection, batch: RecordBatch) -> None:
        rows = [(value.rstrip(b"\0").decode(),) for value in batch.values()]
        database.executemany("INSERT INTO applied (value) VALUES (?)", rows)

    def apply(self, batch: RecordBatch, advance: Advance) -> None:
        """Apply exactly once: rows and position are one transaction."""
        database = self.connect()
        try:
            with database:
                self.insert(database, batch)
                self.positions.store(database.cursor(), advance)
        finally:
            database.close()

    def numbers(self) -> list[int]:
        database = self.connect()
        values = [int(value) for (value,) in database.execute("SELECT value FROM applied ORDER BY place")]
        database.close()
        return values
