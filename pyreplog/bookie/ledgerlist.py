"""Which ledgers there are, and what a bookie should hold of them, by the metadata store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pyreplog.bookie.identity import BookieIdentity, is_registered
from pyreplog.metadata.store import MetadataStore


class LedgerMetadataView(Protocol):
    """What the metadata of ledgers say, read by those who know their bytes. Errors of all calls: those of the store."""

    def key(self, ledger: int) -> str:
        """Where they are kept; the last name is the ledger's id in decimal digits."""
        ...

    def admits(self, ledger: int, key: bytes) -> bool | None:
        """Whether this is the key of a ledger; None: there is no such ledger. InvalidMetadataError."""
        ...

    def next_id(self) -> int:
        """The number that the next ledger gets; it only grows."""
        ...

    def skip_to(self, number: int) -> None:
        """Give no number below this one to a ledger from now on."""
        ...

    def open_with(self, bookie: str, *, unsynced: bool) -> Iterable[int]:
        """Ledgers that are not closed and have this bookie in their last ensemble, or whose metadata cannot be read.
        unsynced: without those all of whose entries are synced."""
        ...

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        """Entries of a closed ledger that the bookie is to hold; None: it is not closed. InvalidMetadataError."""
        ...


class LedgerList:
    """What a Collector asks. facts: of the same store. identity: of the bookie that asks."""

    def __init__(self, store: MetadataStore, facts: LedgerMetadataView, identity: BookieIdentity) -> None:
        self._store, self._facts, self._identity = store, facts, identity

    def knows_us(self) -> bool:
        return is_registered(self._store, self._identity)

    def listed(self) -> set[int]:
        """Names that are no ids are nobody's ledger."""
        folder = self._facts.key(0).rpartition("/")[0]
        return {int(name) for name in self._store.list(folder) if name.isdecimal()}

    def exists(self, ledger: int) -> bool:
        return self._store.get(self._facts.key(ledger)) is not None

    def holdings(self, ledger: int) -> list[range] | None:
        return self._facts.holdings(ledger, self._identity.id)
