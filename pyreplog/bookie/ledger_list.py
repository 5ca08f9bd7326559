"""The ledgers in the metadata store, and the entries of them that a bookie has to hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from pyreplog.bookie.bookie_state import BookiePhase, list_bookie_states
from pyreplog.bookie.identity import BookieIdentity, is_registered
from pyreplog.metadata.store import MetadataStore

LOST = "/lost"
"""Folder of a key for each ledger with entries of which no bookie that its metadata name has a copy."""


class ClosedLedgerHoldings(NamedTuple):
    """The part of a closed ledger that a bookie has to hold, according to the metadata.

    Attributes:
        holdings: the entries.
        version: version of the metadata.
        bookies: ids of all bookies that the metadata name.
    """

    holdings: tuple[range, ...]
    version: int
    bookies: frozenset[str]


class LedgerMetadataView(Protocol):
    """The metadata of ledgers, as a bookie needs them. All methods raise errors of the store."""

    def key(self, ledger: int) -> str:
        """Return the key of a ledger's metadata."""
        ...

    def listed(self) -> set[int]:
        """Return the ids of all ledgers, by a listing that begins now.

        Raises MetadataLayoutError when the layout is older.
        """
        ...

    def admits(self, ledger: int, key: bytes) -> bool | None:
        """Return whether this is the key of a ledger; None: the ledger does not exist.

        Raises InvalidMetadataError when its metadata are malformed.
        """
        ...

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        """Return whether this is the proof of a ledger's key, with which copies are added; otherwise as `admits`."""
        ...

    def next_id(self) -> int:
        """Return the number that the next ledger gets; it only grows."""
        ...

    def skip_to(self, number: int) -> None:
        """Let new ledgers get numbers from `number` on."""
        ...

    def open_with(self, bookie: str, *, unsynced: bool) -> Iterable[int]:
        """Return the ledgers that are not closed and have this bookie in their last ensemble.

        Ledgers whose metadata cannot be read are among them. unsynced: leave out ledgers of durability "synced".
        """
        ...

    def named(self, bookie: str) -> Iterable[tuple[int, list[range] | None]]:
        """Return the ledgers whose metadata name a bookie, with the entries of each that it has to hold.

        None in place of the entries: the ledger is not closed, or its metadata cannot be read.
        """
        ...

    def note_bad_copies(self, bookie: str, ledger: int, entries: Sequence[int]) -> None:
        """Note for repair that a bookie's copies of these entries, ascending, are damaged or lost.

        Copies that the metadata do not assign to the bookie are not noted.
        """
        ...

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        """Return the entries of a closed ledger that the bookie has to hold; None: the ledger is not closed.

        Raises InvalidMetadataError when its metadata are malformed.
        """
        ...

    def closed(self, ledgers: Sequence[int], bookie: str) -> list[ClosedLedgerHoldings | None]:
        """Return the holdings of a bookie in each of some ledgers.

        None: the ledger is not closed, does not exist, or its metadata are malformed.
        """
        ...

    def change_version(self, ledger: int, version: int) -> bool:
        """Write the metadata of a ledger unchanged, by compare-and-set; return False if they have another version."""
        ...


class LedgerList:
    """The ledgers as a Collector needs them.

    Args:
        store: the metadata store.
        view: metadata of the ledgers in this store.
        identity: identity of the bookie.
    """

    def __init__(self, store: MetadataStore, view: LedgerMetadataView, identity: BookieIdentity) -> None:
        self._store, self._view, self._identity = store, view, identity

    def knows_this_bookie(self) -> bool:
        return is_registered(self._store, self._identity)

    def listed(self) -> set[int]:
        """List all ledgers. Raises MetadataLayoutError when the layout of the store is older."""
        return self._view.listed()

    def exists(self, ledger: int) -> bool:
        return self._store.get(self._view.key(ledger)) is not None

    def holdings(self, ledger: int) -> list[range] | None:
        return self._view.holdings(ledger, self._identity.id)

    def closed(self, ledgers: Sequence[int]) -> list[ClosedLedgerHoldings | None]:
        return self._view.closed(ledgers, self._identity.id)

    def change_version(self, ledger: int, version: int) -> bool:
        return self._view.change_version(ledger, version)

    def keeps_surplus(self, ledger: int, bookies: Collection[str]) -> bool:
        """Return whether surplus of a ledger must not be removed. Call it after the ledger's metadata were read.

        Entries are listed as lost before the metadata stop naming the bookie that may have them: if its disk comes
        back, it has the only copies. A bookie that counts as lost is left to an operator, or to the auditor. While the
        ledger names a bookie that is lost or away, a copy that a worker made here before it ended may be the only one.

        Args:
            ledger: number of the ledger.
            bookies: ids of the bookies that its metadata name.

        Raises:
            ReplogError: errors of the metadata store, and malformed metadata.
        """
        if not self.knows_this_bookie():
            return True
        states = list_bookie_states(self._store)
        mine = states.get(self._identity.id)
        if mine is not None and mine.phase is BookiePhase.LOST:
            return True
        if any(states[bookie].phase is not BookiePhase.DRAINING for bookie in bookies if bookie in states):
            return True
        return any(not name.isdecimal() or int(name) == ledger for name in self._store.list(LOST))
