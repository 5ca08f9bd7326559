"""LedgerScan: reads the metadata of all ledgers once, then only those that may have changed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyreplog.autorecovery.bookie_index import BookieIndex
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_metadata import State, shard_name
from pyreplog.ledger.ledger_store import VersionedMetadata, ids_of, load_changed, load_many, shards, stored_ledgers
from pyreplog.metadata.store import MetadataStore

_SHARDS_AGAIN = 2
"""Number of newest shards that are listed again, since a ledger is stored some time after its number was allocated."""


class _OpenLedger(NamedTuple):
    """A ledger that is not closed: the version of its metadata, and its last ensemble."""

    version: int
    ensemble: tuple[str, ...]


class LedgerScan:
    """Tracks which ledgers name which bookie. Any thread may use it.

    Only auto-recovery changes the metadata of closed ledgers, so `refresh` reads only ledgers that are new or not
    closed, and decodes only those whose version has changed. `find_new` reads new ones alone: it does not notice when
    bookies of an open ledger are replaced. A caller that concludes that no ledger names a bookie has to call `scan`
    first.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the fields below; not held during calls of the store
        self._reading = threading.Lock()  # held during a scan or a refresh
        self._index = BookieIndex()
        self._open: dict[int, _OpenLedger] = {}
        self._garbled: dict[int, str] = {}  # error of ledgers with unreadable metadata
        self._scans = 0
        self._newest: list[str] = []  # newest shards, ascending
        self._newest_ids: set[int] = set()  # ids in the newest shards

    @property
    def scans(self) -> int:
        """Number of complete scans."""
        return self._scans

    @property
    def garbled(self) -> dict[int, str]:
        """Errors of the ledgers with unreadable metadata; it is unknown which bookies these name."""
        with self._lock:
            return dict(self._garbled)

    @property
    def nbytes(self) -> int:
        """Size of the index, bytes."""
        with self._lock:
            return self._index.nbytes

    def named(self) -> dict[str, int]:
        """Return the number of ledgers that name each bookie; unnamed bookies are left out."""
        with self._lock:
            return self._index.counts()

    def ledgers(self) -> npt.NDArray[np.int64]:
        """Return the ids of all ledgers with readable metadata, ascending."""
        with self._lock:
            return self._index.ledgers()

    def ledgers_of(self, bookie: str) -> npt.NDArray[np.int64]:
        """Return the ids of the ledgers that name a bookie, ascending."""
        with self._lock:
            return self._index.ledgers_of(bookie)

    def open_ledgers(self, bookies: Iterable[str]) -> dict[int, list[str]]:
        """Return the ledgers that are not closed and have some of the bookies in their last ensemble, ascending.

        Args:
            bookies: ids of bookies.

        Returns:
            The bookies among those given that are in its last ensemble, for each ledger id.
        """
        wanted = set(bookies)
        with self._lock:
            matching = [
                (ledger, known.ensemble)
                for ledger, known in self._open.items()
                if not wanted.isdisjoint(known.ensemble)
            ]
        return {ledger: [bookie for bookie in members if bookie in wanted] for ledger, members in sorted(matching)}

    # ---- reading --------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Read the metadata of all ledgers.

        Raises:
            MetadataLayoutError: the store has to be migrated.
            ReplogError: errors of the store. Earlier results are kept.
        """
        with self._reading:
            fresh = LedgerScan(self._store)
            newest = shards(self._store)[-_SHARDS_AGAIN:]
            for ledger, stored in stored_ledgers(self._store):
                fresh.take(ledger, stored)
            with self._lock:
                self._index, self._open, self._garbled = fresh._index, fresh._open, fresh._garbled
                self._newest, self._newest_ids = newest, set()
                self._scans += 1

    def refresh(self) -> None:
        """Read the metadata of ledgers that are new or were not closed; the first call scans all.

        Raises:
            ReplogError: errors of the store, as for `scan`.
        """
        self._read_changed(with_open=True)

    def find_new(self) -> None:
        """Read the metadata of new ledgers; the first call scans all.

        Raises:
            ReplogError: errors of the store, as for `scan`.
        """
        self._read_changed(with_open=False)

    def _read_changed(self, *, with_open: bool) -> None:
        if not self._scans:
            self.scan()
            return
        with self._reading:
            names = shards(self._store)
            oldest = self._newest[0] if self._newest else ""
            newest = [name for name in names if name >= oldest]
            ids = {ledger for shard in newest for ledger in ids_of(self._store, shard)}
            with self._lock:
                versions: dict[int, int | None] = dict.fromkeys((ids - self._newest_ids) | self._garbled.keys())
                if with_open:
                    versions |= {ledger: found.version for ledger, found in self._open.items()}
            for ledger, stored in load_changed(self._store, dict(sorted(versions.items()))):
                self.take(ledger, stored)
            self._newest = newest[-_SHARDS_AGAIN:]
            kept = set(self._newest)
            self._newest_ids = {ledger for ledger in ids if shard_name(ledger) in kept}

    def read(self, ledgers: Iterable[int]) -> list[VersionedMetadata]:
        """Read the current metadata of some ledgers.

        Args:
            ledgers: ids of the ledgers.

        Returns:
            The metadata of those that exist and are readable, ascending by id.

        Raises:
            ReplogError: errors of the store.
        """
        intact: list[VersionedMetadata] = []
        for ledger, stored in load_many(self._store, sorted(ledgers)):
            self.take(ledger, stored)
            if isinstance(stored, VersionedMetadata):
                intact.append(stored)
        return intact

    def take(self, ledger: int, stored: VersionedMetadata | InvalidMetadataError | None) -> None:
        """Update the entry of a ledger from its stored metadata; None: the ledger does not exist."""
        with self._lock:
            self._open.pop(ledger, None)
            self._garbled.pop(ledger, None)
            if stored is None:
                self._index.remove(ledger)
            elif isinstance(stored, InvalidMetadataError):
                self._garbled[ledger] = str(stored)
            else:
                metadata = stored.metadata
                self._index.update(ledger, metadata.bookies())
                if metadata.state is not State.CLOSED:
                    self._open[ledger] = _OpenLedger(stored.version, metadata.last_fragment.ensemble)
