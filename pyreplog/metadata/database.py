"""The database file of SQLiteStore: schema, transactions, dead leases, and SQLite's errors in our terms."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyreplog.clock import Clock
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    DiskFullError,
    FormatVersionError,
    InvalidArgumentError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    ReplogError,
    UnsupportedFilesystemError,
)
from pyreplog.metadata.process_identity import ProcessIdentity
from pyreplog.regular_files import check_regular

APPLICATION_ID = 0x7079726D
FORMAT = 1

# version and children hold revisions: the store's count of changes, so no two lives of a key share a version.
# children: when a child last came or went. lease: NULL, or the lease that the key vanishes with.
_SCHEMA = f"""
CREATE TABLE keys (
    path TEXT PRIMARY KEY, parent TEXT, name TEXT NOT NULL, value BLOB NOT NULL,
    version INTEGER NOT NULL, children INTEGER NOT NULL, lease INTEGER
);
CREATE INDEX keys_by_parent ON keys (parent, name);
CREATE INDEX keys_by_lease ON keys (lease) WHERE lease IS NOT NULL;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, pid_namespace INTEGER NOT NULL, pid INTEGER NOT NULL,
    started INTEGER NOT NULL, expires_us INTEGER NOT NULL
);
CREATE TABLE revision (number INTEGER NOT NULL);
INSERT INTO revision VALUES (0);
INSERT INTO keys VALUES ('/', NULL, '', x'', 0, 0, NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS keys_by_version ON keys (version)",
    "CREATE INDEX IF NOT EXISTS keys_by_children ON keys (children)",
)
"""For watches, which look for what changed. Databases of older versions get them, and older versions keep them."""


def _make(path: Path) -> None:
    """An empty file for nobody else's eyes, if there is none. One that is there is not opened: closing it would drop
    the POSIX locks of other connections of this process, and another process would remove the log under them."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


_STEP_MS = 25
"""SQLite's wait for the transactions of others cannot be interrupted: it is made of steps."""

_FORK_WAITS_S = 15.0
"""More than a transaction waits for others by default."""

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_registering = threading.Lock()  # of them
_held_to_fork: list[threading.Lock] = []


def _before_fork() -> None:
    """Let nobody be at work in SQLite meanwhile: its own mutexes, of a thread that the child does not have, would stay
    locked there for ever, and whatever the child opened would hang."""
    _registering.acquire()
    _held_to_fork.append(_registering)
    _held_to_fork.extend(db._lock for db in list(_databases) if db._lock.acquire(timeout=_FORK_WAITS_S))


def _after_fork() -> None:
    while _held_to_fork:
        _held_to_fork.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Database:
    """One connection, used by one thread at a time; forking waits for it.

    timeout: seconds to wait for the transactions of others.
    """

    def __init__(self, path: Path, timeout: float, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self._lock = threading.Lock()
        self._timeout = timeout
        self.deadline = math.inf
        """By `time.monotonic()`: nobody waits any longer for the transactions of others."""
        self._open = True
        for part in ("", "-wal", "-shm"):
            check_regular(Path(f"{path}{part}"), missing_ok=True)
        try:
            _make(path)
            self._connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", error)
            raise DiskError(getattr(error, "errno", errno.EIO), f"{path} cannot be opened: {reason}") from error
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise
        with _registering:
            _databases.add(self)

    def _set_up(self) -> None:
        with self._translated():
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application_id = self._connection.execute("PRAGMA application_id").fetchone()[0]  # comes with the tables
            if tables and application_id != APPLICATION_ID:
                raise InvalidArgumentError(
                    f"{self.path}: expected the metadata of a cluster, found an SQLite database of another application"
                )
            self._use_wal()
            self._connection.execute("PRAGMA synchronous = FULL")
        with self._lock, self._immediate():
            if not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in _SCHEMA.split(";"):
                    self._connection.execute(statement)
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                raise FormatVersionError(self.path, version, FORMAT)
            for statement in _INDEXES:
                self._connection.execute(statement)

    def _use_wal(self) -> None:
        """The switch wants the file for itself, and SQLite does not wait for it."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise UnsupportedFilesystemError(
                errno.EOPNOTSUPP,
                f"{self.path}: expected journal mode wal, found {mode}: put the file on a local file system",
            )

    # ---- transactions ---------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For SELECTs. Keys of dead leases are removed first, so that nobody sees what another no longer saw."""
        self.sweep()
        with self._lock, self._translated():
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, durable when the block has ended; undone when the block raises."""
        with self._lock, self._immediate():
            for lease in self._dead_leases():
                self.remove_lease(lease)
            yield self._connection

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        self._check_open()
        try:
            with self._translated():
                self._begin()
                yield
            self._commit()
        except BaseException:  # Ctrl-C too, at any step
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        timed_out = time.monotonic() + self._timeout
        try:
            while True:
                left_s = min(timed_out, self.deadline) - time.monotonic()
                self._connection.execute(f"PRAGMA busy_timeout = {min(max(round(left_s * 1000), 0), _STEP_MS)}")
                try:
                    self._connection.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if _code(error) != sqlite3.SQLITE_BUSY or left_s <= 0:
                        raise
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1000)}")

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknownError(f"{self.path}: the commit failed, and may or may not survive: {error}") from error

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(f"{self.path} was closed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error

    def next_revision(self) -> int:
        """Inside `writing`: the number of this change."""
        self._connection.execute("UPDATE revision SET number = number + 1")
        return self.revision()

    def revision(self) -> int:
        """Inside `reading` or `writing`: the number of the newest change."""
        return int(self._connection.execute("SELECT number FROM revision").fetchone()[0])

    # ---- leases ---------------------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Remove leases whose owners died or were silent for too long; whether there were any."""
        with self._lock, self._translated():
            dead = self._dead_leases()
        if dead:
            with self.writing():
                return True
        return False

    def _dead_leases(self) -> list[int]:
        now = self.clock.monotonic_us()
        rows = self._connection.execute("SELECT id, expires_us, boot, pid_namespace, pid, started FROM leases")
        return [row[0] for row in rows.fetchall() if ProcessIdentity(*row[2:]).is_dead() or row[1] <= now]

    def remove_lease(self, lease: int) -> None:
        """Inside `writing`: end a lease and its keys."""
        revision = self.next_revision()
        self._connection.execute(
            "UPDATE keys SET children = ? WHERE path IN (SELECT parent FROM keys WHERE lease = ?)", (revision, lease)
        )
        self._connection.execute("DELETE FROM keys WHERE lease = ?", (lease,))
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the transaction under way, and close."""
        with self._lock:
            self._open = False
            self._connection.close()

    def abandon(self) -> None:
        """In a forked child: keep the connection from ever being closed, which would remove the parent's locks and
        log (sqlite.org/howtocorrupt.html, 2.6)."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 when the error is not SQLite's but the module's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translate(error: sqlite3.Error, path: Path) -> ReplogError:
    code = _code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):  # ERROR: a table is missing
        return CorruptionError(path, 0, "an intact metadata database", str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MetadataUnavailableError(f"{path}: {error}")
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(errno.ENOSPC, f"{path}: no room: {error}")
    return DiskError(errno.EIO, f"{path}: {error}")
