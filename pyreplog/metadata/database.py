"""Database: the database file of SQLiteStore, with its schema, transactions, dead leases, and translated errors."""

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

# version and children hold revisions: the store's count of changes, so a key that is created again has a new version.
# children: revision at which a child was last created or deleted. lease: the lease of the key, or NULL.
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
"""Indexes for the polls of watches. Opening adds them to a database of an older version, which can still use it."""


def _create_file(path: Path) -> None:
    """Create the database file, readable by this user only, if it does not exist.

    An existing file is not opened: closing it would drop the POSIX locks of other connections of this process, and
    another process would remove their write-ahead log.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _missing_directory(path: Path, error: OSError) -> DiskError:
    """Return the error of a database file whose directory does not exist. It is not created: the path may be wrong."""
    directory = path.parent
    found = "a file" if directory.is_file() else "none"
    return DiskError(
        error.errno,
        f"{path} cannot be opened: expected the directory {directory} for the metadata store, found {found}. Create it "
        f"(mkdir -p {directory}), or correct the path",
    )


_STEP_MS = 25
"""Longest wait in SQLite for a lock. SQLite's wait cannot be interrupted, so a longer one consists of such steps."""

_FORK_TIMEOUT_S = 15.0
"""Seconds that a fork waits for a database: longer than a transaction waits for others by default."""

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_registering = threading.Lock()  # guards `_databases`
_locked_for_fork: list[threading.Lock] = []


def _before_fork() -> None:
    """Wait until no thread is inside SQLite.

    A mutex of SQLite that another thread holds at the fork would stay locked in the child for ever, and every database
    that the child opens would hang.
    """
    _registering.acquire()
    _locked_for_fork.append(_registering)
    _locked_for_fork.extend(db._lock for db in list(_databases) if db._lock.acquire(timeout=_FORK_TIMEOUT_S))


def _after_fork() -> None:
    while _locked_for_fork:
        _locked_for_fork.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Database:
    """One connection, used by one thread at a time. A fork waits for the thread that uses it.

    path: the database file. timeout: seconds to wait for the transactions of other connections. clock: for the expiry
    of leases.

    Raises DiskError if the file cannot be opened; CorruptionError, FormatVersionError, InvalidArgumentError if it is
    not a database of this version; UnsupportedFilesystemError if it cannot have a write-ahead log.
    """

    def __init__(self, path: Path, timeout: float, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self._lock = threading.Lock()
        self._timeout = timeout
        self.deadline = math.inf
        """Time of `time.monotonic()` after which no call waits for the transactions of other connections."""
        self._open = True
        try:
            for part in ("", "-wal", "-shm"):
                check_regular(Path(f"{path}{part}"), missing_ok=True)
            _create_file(path)
            self._connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing_directory(path, error) from error
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
            application_id = self._connection.execute("PRAGMA application_id").fetchone()[0]  # set with the tables
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
        """Switch to a write-ahead log. That needs an exclusive lock, for which SQLite does not wait."""
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
        """Run SELECTs in a `with` block.

        The keys of dead leases are removed first, so that no reader sees a key that another reader found expired.
        """
        self.sweep()
        with self._lock, self._translated():
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction in a `with` block: it is durable when the block has ended, and rolled back if it raises.

        Dead leases are removed first.
        """
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
        """Increment the revision, and return it. For a block of `writing`."""
        self._connection.execute("UPDATE revision SET number = number + 1")
        return self.revision()

    def revision(self) -> int:
        """Return the revision: the number of the newest change. For a block of `reading` or `writing`."""
        return int(self._connection.execute("SELECT number FROM revision").fetchone()[0])

    # ---- leases ---------------------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Remove leases whose owners died or did not renew them in time; return whether there were any."""
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
        """Delete a lease and its keys. For a block of `writing`."""
        revision = self.next_revision()
        self._connection.execute(
            "UPDATE keys SET children = ? WHERE path IN (SELECT parent FROM keys WHERE lease = ?)", (revision, lease)
        )
        self._connection.execute("DELETE FROM keys WHERE lease = ?", (lease,))
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the transaction under way, and close the connection."""
        with self._lock:
            self._open = False
            self._connection.close()

    def abandon(self) -> None:
        """Keep the connection from being closed in a forked child.

        Closing it would remove the locks and the write-ahead log of the parent (sqlite.org/howtocorrupt.html, 2.6).
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code of an error; 0 if the Python module raised it, not SQLite."""
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
