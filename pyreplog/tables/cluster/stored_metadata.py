"""The metadata of an embedded cluster, opened read-only, whether or not a process has the cluster open."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyreplog.errors import FormatVersionError, MetadataUnavailableError, NotALogError
from pyreplog.metadata.database import APPLICATION_ID, FORMAT
from pyreplog.metadata.operations import Operation
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.regular_files import check_regular

_TIMEOUT_S = 10.0


class StoredMetadata(MetadataStore):
    """The database of an SQLiteStore, which is never written, not even to remove expired keys.

    Raises NotALogError if the file is missing, and FormatVersionError.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        for part in ("", "-wal", "-shm"):
            check_regular(Path(f"{path}{part}"), missing_ok=True)
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise NotALogError(f"{path} cannot be read as the metadata of a cluster: {error}") from error
        try:
            self._check()
        except BaseException:
            self._connection.close()
            raise
        super().__init__(f"metadata in {path}")

    def _check(self) -> None:
        try:
            application = self._connection.execute("PRAGMA application_id").fetchone()[0]
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise NotALogError(f"{self.path} cannot be read as the metadata of a cluster: {error}") from error
        if application != APPLICATION_ID:
            raise NotALogError(f"{self.path} is an SQLite database, but not the metadata of a cluster")
        if version != FORMAT:
            raise FormatVersionError(self.path, version, FORMAT)

    def _get(self, key: str) -> Versioned | None:
        rows = self._select("SELECT value, version FROM keys WHERE path = ?", key)
        return Versioned(*rows[0]) if rows else None

    def _list(self, key: str) -> list[str]:
        return [row[0] for row in self._select("SELECT name FROM keys WHERE parent = ?", key)]

    def _select(self, statement: str, key: str) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(statement, (key,)).fetchall()
        except sqlite3.Error as error:
            raise MetadataUnavailableError(f"{self.path}: {error}") from error

    # ---- calls that only writers make -----------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        raise MetadataUnavailableError(f"{self.path} was opened for reading")

    def _create(self, key: str, value: bytes) -> NoReturn:
        self._refuse()

    def _put(self, key: str, value: bytes, version: int) -> NoReturn:
        self._refuse()

    def _delete(self, key: str, version: int) -> NoReturn:
        self._refuse()

    def _multi(self, operations: Sequence[Operation]) -> NoReturn:
        self._refuse()

    def _watch(self, key: str, callback: Callable[[str], object]) -> NoReturn:
        self._refuse()

    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> NoReturn:
        self._refuse()

    def _do_close(self) -> None:
        self._connection.close()
