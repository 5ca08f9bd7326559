"""SQLiteStore: metadata in one file, for the processes of one machine. The default of an embedded cluster."""

from __future__ import annotations

import builtins
import logging
import sqlite3
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from pathlib import Path

from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    KeyNotEmptyError,
    LeaseLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.metadata.database import Database
from pyreplog.metadata.keys import ROOT, name_of, parent_of
from pyreplog.metadata.lease import Heartbeat, Lease
from pyreplog.metadata.operations import CheckExists, CreateKey, DeleteKey, Operation, PutValue
from pyreplog.metadata.process_identity import ProcessIdentity
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.watching import Watch, Watchers

_logger = logging.getLogger(__name__)


class SQLiteStore(MetadataStore):
    """A metadata store in one file, for the processes of one machine. An embedded cluster uses it.

    The database has a write-ahead log and is synced at every commit. Writers wait for each other; readers do not wait
    for writers. Watches poll for new revisions. A lease ends when its process dies, or when it has expired by the
    monotonic clock, which all processes of the machine share.

    Args:
        path: the database file. It is created if it does not exist; its directory is not: DiskError.
        timeout: seconds to wait for the transactions of other threads and processes.
        poll_interval: seconds between two polls for changes by other processes.
        clock: source of time; its monotonic time must be the same in all processes that use the file.

    Raises:
        DiskError: the file cannot be opened or created.
        CorruptionError: the file is damaged.
        InvalidArgumentError: the file is a database of another application.
        FormatVersionError: a newer version wrote the file.
        UnsupportedFilesystemError: the file system cannot have a write-ahead log.
        MetadataUnavailableError: other processes kept the database locked for too long.

    Example:
        ```python
        with SQLiteStore("cluster/metadata.db") as store:
            print(store.list("/ledgers"))
        ```
    """

    def __init__(
        self, path: Path | str, *, timeout: float = 10.0, poll_interval: float = 0.05, clock: Clock | None = None
    ) -> None:
        self.path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._database = Database(self.path, timeout, self._clock)
        try:
            self._reads = Database(self.path, timeout, self._clock)  # reads do not wait for a commit of `_database`
        except BaseException:
            self._database.close()
            raise
        self._watchers = Watchers(poll=_Poller(self._reads).changed, interval=poll_interval)
        super().__init__(f"metadata store {self.path}")

    def _get(self, key: str) -> Versioned | None:
        with self._reads.reading() as connection:
            row = connection.execute("SELECT value, version FROM keys WHERE path = ?", (key,)).fetchone()
        return None if row is None else Versioned(*row)

    def _get_many(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        marks = ", ".join("?" * len(keys))
        with self._reads.reading() as connection:
            rows = connection.execute(f"SELECT path, value, version FROM keys WHERE path IN ({marks})", keys)
            values = {path: Versioned(value, version) for path, value, version in rows}
        return [values.get(key) for key in keys]

    def _create(self, key: str, value: bytes) -> int:
        return self._insert(key, value, None)

    def _insert(self, key: str, value: bytes, lease: int | None) -> int:
        with self._database.writing() as connection:
            if lease is not None and not connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone():
                raise LeaseLostError(f"{key} was not created: its lease is lost; begin a new lease")
            revision = self._database.next_revision()
            _create(connection, key, value, revision, lease)
        self._watchers.wake()
        return revision

    def _put(self, key: str, value: bytes, version: int) -> int:
        with self._database.writing() as connection:
            revision = self._database.next_revision()
            _put(connection, key, value, version, revision)
        self._watchers.wake()
        return revision

    def _delete(self, key: str, version: int) -> None:
        with self._database.writing() as connection:
            _delete(connection, key, version, self._database.next_revision())
        self._watchers.wake()

    def _multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        with self._database.writing() as connection:
            revision = self._database.next_revision()
            for operation in operations:
                _execute(connection, operation, revision)
        self._watchers.wake()
        return [revision if isinstance(operation, CreateKey | PutValue) else None for operation in operations]

    def _list(self, key: str) -> builtins.list[str]:
        with self._reads.reading() as connection:
            return [row[0] for row in connection.execute("SELECT name FROM keys WHERE parent = ?", (key,))]

    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        return self._watchers.add(key, callback)

    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> SQLiteLease:
        return SQLiteLease(self, ttl, on_loss)

    def end_calls_by(self, deadline: float) -> None:
        """Set a time after which no call waits for the database.

        Args:
            deadline: seconds of `time.monotonic()`.
        """
        self._database.deadline = self._reads.deadline = deadline

    def _do_close(self) -> None:
        self._watchers.stop()
        self._reads.close()
        self._database.close()

    def _after_fork(self) -> None:
        self._database.abandon()
        self._reads.abandon()


class SQLiteLease(Lease):
    """A lease in an SQLite database: a row that its owner renews before it expires."""

    def __init__(self, store: SQLiteStore, ttl: float, on_loss: Callable[[], object] | None) -> None:
        self._store = store
        database, clock, ttl_us = store._database, store._clock, round(ttl * 1e6)
        owner = ProcessIdentity.this_process()
        with database.writing() as connection:
            held_until_us = clock.monotonic_us() + ttl_us
            connection.execute(
                "INSERT INTO leases (boot, pid_namespace, pid, started, expires_us) VALUES (?, ?, ?, ?, ?)",
                (owner.boot, owner.pid_namespace, owner.pid, owner.started, held_until_us),
            )
            self._id = lease = int(connection.execute("SELECT last_insert_rowid()").fetchone()[0])

        def renew() -> int:
            """Renew the lease. If it has expired, `writing` of this or of another process has removed it."""
            with database.writing() as connection:
                until = clock.monotonic_us() + ttl_us
                done = connection.execute("UPDATE leases SET expires_us = ? WHERE id = ?", (until, lease))
                if done.rowcount == 0:
                    raise LeaseLostError("the lease was not renewed in time")
            return until

        heartbeat = Heartbeat(
            ttl=ttl, clock=clock, renew=renew, held_until_us=held_until_us, give_up=None, on_loss=on_loss
        )
        super().__init__(heartbeat)

    def _create(self, key: str, value: bytes) -> int:
        return self._store._insert(key, value, self._id)

    def _do_close(self) -> None:
        self._heartbeat.stop()
        with suppress(MetadataUnavailableError):  # the lease expires, since it is not renewed
            self._remove()
        self._store._watchers.wake()

    def _remove(self) -> None:
        with self._store._database.writing():
            self._store._database.remove_lease(self._id)


class _Poller:
    """Finds the keys that changed since the last poll. The cost of a poll grows with the changes, not the watches."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._revision = -1  # of the last poll; -1 before the first one

    def changed(self, keys: builtins.list[str]) -> builtins.list[str]:
        """Return the keys that changed since the last poll, with all changed ones of the watched `keys`.

        Called by the thread of the watches.
        """
        try:
            return self._find_changes(keys)
        except ReplogError as error:
            _logger.warning("watches could not be checked for changes: %s", error)
            return []

    def _find_changes(self, keys: builtins.list[str]) -> builtins.list[str]:
        before = self._revision
        with self._database.reading() as connection:
            revision = self._database.revision()  # first: the next poll finds a change that commits meanwhile again
            if before < 0:
                changed = keys
            elif revision == before:
                changed = []
            else:
                query = "SELECT path, children FROM keys WHERE version > ? OR children > ?"
                rows = connection.execute(query, (before, before)).fetchall()
                folders = {path for path, children in rows if children > before}
                changed = [path for path, _ in rows]
                if folders:  # otherwise no key was created or deleted
                    changed += _missing(connection, keys, folders)
        self._revision = revision
        return changed


def _missing(connection: sqlite3.Connection, keys: builtins.list[str], folders: Set[str]) -> builtins.list[str]:
    """Return the keys that do not exist, and whose deletion may be a change of the children of one of the folders.

    The folder of a key is its nearest ancestor that exists, since the parents in between may be deleted as well.
    """
    missing: builtins.list[str] = []
    by_parent: dict[str, builtins.list[str]] = {}
    for key in keys:
        if key != ROOT:
            by_parent.setdefault(parent_of(key), []).append(key)
    for parent, children in by_parent.items():
        folder = parent
        while not connection.execute("SELECT 1 FROM keys WHERE path = ?", (folder,)).fetchone():
            folder = parent_of(folder)
        if folder in folders:
            rows = connection.execute("SELECT path FROM keys WHERE parent = ?", (parent,))
            missing += set(children).difference(path for (path,) in rows)
    return missing


def _expect(connection: sqlite3.Connection, key: str, version: int) -> None:
    row = connection.execute("SELECT version FROM keys WHERE path = ?", (key,)).fetchone()
    if row is None:
        raise NoSuchKeyError(f"there is no {key}")
    if row[0] != version:
        raise VersionConflictError(f"{key}: expected version {version}, found {row[0]}")


def _execute(connection: sqlite3.Connection, operation: Operation, revision: int) -> None:
    """Do an operation of `multi`."""
    match operation:
        case CheckExists(key):
            if not _exists(connection, key):
                raise NoSuchKeyError(f"there is no {key}")
        case CreateKey(key, value):
            _create(connection, key, bytes(value), revision, None)
        case PutValue(key, value, version):
            _put(connection, key, bytes(value), version, revision)
        case DeleteKey(key, version):
            _delete(connection, key, version, revision)


def _exists(connection: sqlite3.Connection, key: str) -> bool:
    return connection.execute("SELECT 1 FROM keys WHERE path = ?", (key,)).fetchone() is not None


def _create(connection: sqlite3.Connection, key: str, value: bytes, revision: int, lease: int | None) -> None:
    if _exists(connection, key):
        raise KeyExistsError(f"{key} exists")
    _make_parents(connection, key, revision)
    _insert_row(connection, key, value, revision, lease)


def _put(connection: sqlite3.Connection, key: str, value: bytes, version: int, revision: int) -> None:
    _expect(connection, key, version)
    connection.execute("UPDATE keys SET value = ?, version = ? WHERE path = ?", (value, revision, key))


def _delete(connection: sqlite3.Connection, key: str, version: int, revision: int) -> None:
    _expect(connection, key, version)
    if connection.execute("SELECT 1 FROM keys WHERE parent = ? LIMIT 1", (key,)).fetchone():
        raise KeyNotEmptyError(f"{key} has children")
    connection.execute("DELETE FROM keys WHERE path = ?", (key,))
    connection.execute("UPDATE keys SET children = ? WHERE path = ?", (revision, parent_of(key)))


def _make_parents(connection: sqlite3.Connection, key: str, revision: int) -> None:
    """Create the missing parents of a key, and note the new child in the nearest ancestor that exists."""
    parent = parent_of(key)
    while (row := connection.execute("SELECT lease FROM keys WHERE path = ?", (parent,)).fetchone()) is None:
        _insert_row(connection, parent, b"", revision, None)
        parent = parent_of(parent)
    if row[0] is not None:
        raise InvalidArgumentError(f"{parent} belongs to a lease and cannot have children")
    connection.execute("UPDATE keys SET children = ? WHERE path = ?", (revision, parent))


def _insert_row(connection: sqlite3.Connection, key: str, value: bytes, revision: int, lease: int | None) -> None:
    connection.execute(
        "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, parent_of(key), name_of(key), value, revision, revision, lease),
    )
