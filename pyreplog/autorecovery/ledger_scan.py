"""LedgerScan: reads the metadata of all ledgers once, then only those that can have changed."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyreplog.autorecovery.bookie_index import BookieIndex
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, shard_name
from pyreplog.ledger.ledger_store import VersionedMetadata, ids_of, load_many, shards, stored_ledgers
from pyreplog.metadata.store import MetadataStore

_SHARDS_AGAIN = 2
"""A ledger is stored a moment after its number was taken: the newest shards are listed again."""


class LedgerScan:
    """Follows which ledgers name which bookie. Any thread may use it.

    The metadata of a closed ledger are changed by auto-recovery alone, so that `refresh` reads those of ledgers that
    are new or not closed. Who concludes that no ledger names a bookie calls `scan` first.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # of what follows; not held during calls of the store
        self._reading = threading.Lock()  # held by a scan or a refresh
        self._index = BookieIndex()
        self._open: dict[int, tuple[str, ...]] = {}  # ledgers that are not closed: the last ensemble
        self._garbled: dict[int, str] = {}  # ledgers whose metadata cannot be read: the reason
        self._scans = 0
        self._newest: list[str] = []  # shards, ascending
        self._seen: set[int] = set()  # ids in these shards

    @property
    def scans(self) -> int:
        """Number of complete scans."""
        return self._scans

    @property
    def garbled(self) -> dict[int, str]:
        """Ledgers whose metadata cannot be read, with the reason. What they name is unknown."""
        with self._lock:
            return dict(self._garbled)

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        with self._lock:
            return self._index.nbytes

    def named(self) -> dict[str, int]:
        """Return how many ledgers name each bookie; bookies that none names are left out."""
        with self._lock:
            return self._index.counts()

    def ledgers(self) -> npt.NDArray[np.int64]:
        """Return the ids of all ledgers whose metadata can be read, ascending."""
        with self._lock:
            return self._index.ledgers()

    def ledgers_of(self, bookie: str) -> npt.NDArray[np.int64]:
        """Return the ids of the ledgers that name a bookie, ascending."""
        with self._lock:
            return self._index.ledgers_of(bookie)

    def open_ledgers(self, bookies: Iterable[str]) -> dict[int, list[str]]:
        """Return the ledgers that are not closed and have some of these bookies in their last ensemble, ascending.

        Args:
            bookies: ids of bookies.

        Returns:
            Number of a ledger -> those of the bookies that its last ensemble has.
        """
        wanted = set(bookies)
        with self._lock:
            concerned = [(ledger, members) for ledger, members in self._open.items() if not wanted.isdisjoint(members)]
        return {ledger: [bookie for bookie in members if bookie in wanted] for ledger, members in sorted(concerned)}

    # ---- reading --------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Read the metadata of all ledgers.

        Raises:
            MetadataLayoutError: the store has to be migrated.
            ReplogError: errors of the store. What was known before is kept.
        """
        with self._reading:
            fresh = LedgerScan(self._store)
            newest = shards(self._store)[-_SHARDS_AGAIN:]
            for ledger, stored in stored_ledgers(self._store):
                fresh.take(ledger, stored)
            with self._lock:
                self._index, self._open, self._garbled = fresh._index, fresh._open, fresh._garbled
                self._newest, self._seen = newest, set()
                self._scans += 1

    def refresh(self) -> None:
        """Read the metadata of new ledgers and of those that were not closed; scan, if that was never done.

        Raises:
            ReplogError: as `scan`.
        """
        if not self._scans:
            self.scan()
            return
        with self._reading:
            names = shards(self._store)
            oldest = self._newest[0] if self._newest else ""
            newest = [name for name in names if name >= oldest]
            ids = {ledger for shard in newest for ledger in ids_of(self._store, shard)}
            with self._lock:
                wanted = (ids - self._seen) | self._open.keys() | self._garbled.keys()
            self.read(wanted)
            self._newest = newest[-_SHARDS_AGAIN:]
            kept = set(self._newest)
            self._seen = {ledger for ledger in ids if shard_name(ledger) in kept}

    def read(self, ledgers: Iterable[int]) -> list[VersionedMetadata]:
        """Read the metadata of some ledgers now.

        Args:
            ledgers: their ids.

        Returns:
            The metadata of those that exist and can be read, ascending by id.

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
        """Replace what is known of a ledger, by what was read of it. None: it does not exist."""
        with self._lock:
            self._open.pop(ledger, None)
            self._garbled.pop(ledger, None)
            if stored is None:
                self._index.remove(ledger)
            elif isinstance(stored, InvalidMetadataError):
                self._garbled[ledger] = str(stored)
            else:
                self._take_intact(stored.metadata)

    def _take_intact(self, metadata: LedgerMetadata) -> None:
        self._index.update(metadata.ledger, metadata.bookies())
        if metadata.state is not State.CLOSED:
            self._open[metadata.ledger] = metadata.last_fragment.ensemble
