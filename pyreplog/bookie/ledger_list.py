"""The ledgers that exist according to the metadata store, and the entries that a bookie has to hold of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from pyreplog.bookie.bookie_state import BookiePhase, list_bookie_states
from pyreplog.bookie.identity import BookieIdentity, is_registered
from pyreplog.metadata.store import MetadataStore

LOST = "/lost"
"""Below it, a key for each ledger with entries of which no bookie that is named has a copy."""


class ClosedLedgerHoldings(NamedTuple):
    """What the metadata of a closed ledger say. holdings: the entries that a bookie has to hold. version: of the
    metadata. bookies: ids of all bookies that they name."""

    holdings: tuple[range, ...]
    version: int
    bookies: frozenset[str]


class LedgerMetadataView(Protocol):
    """The metadata of ledgers, as a bookie needs them. All methods raise errors of the store."""

    def key(self, ledger: int) -> str:
        """Return the key of a ledger's metadata."""
        ...

    def listed(self) -> set[int]:
        """Return the ids of all ledgers, by a listing that begins now. Raises MetadataLayoutError."""
        ...

    def admits(self, ledger: int, key: bytes) -> bool | None:
        """Whether this is the key of a ledger; None: the ledger does not exist. Raises InvalidMetadataError."""
        ...

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        """Whether this is the proof of a ledger's key, with which copies are added; else as `admits`."""
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
        """Note for repair that a bookie's copies of these entries, ascending, are damaged or gone.

        Copies that the metadata do not ask the bookie for are not noted.
        """
        ...

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        """Return the entries of a closed ledger that the bookie has to hold; None: the ledger is not closed.

        Raises InvalidMetadataError.
        """
        ...

    def closed(self, ledgers: Sequence[int], bookie: str) -> list[ClosedLedgerHoldings | None]:
        """Return what the bookie has to hold of each of some ledgers.

        None: the ledger is not closed or does not exist, or its metadata make no sense.
        """
        ...

    def change_version(self, ledger: int, version: int) -> bool:
        """Write the metadata of a ledger as they are, by compare-and-set; False: their version is another one."""
        ...


class LedgerList:
    """The ledgers as a Collector needs them.

    store: the metadata store. view: of the ledgers in the same store. identity: of the bookie.
    """

    def __init__(self, store: MetadataStore, view: LedgerMetadataView, identity: BookieIdentity) -> None:
        self._store, self._view, self._identity = store, view, identity

    def knows_this_bookie(self) -> bool:
        return is_registered(self._store, self._identity)

    def listed(self) -> set[int]:
        """List all ledgers. Raises MetadataLayoutError."""
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
        """Whether surplus of a ledger has to stay. Call it after the ledger's metadata were read.

        Entries are listed as lost before the bookie that may have them is not named any more: if its disk comes back,
        it has the only copies. A bookie that counts as lost is a case for an operator, or for the auditor. While the
        ledger names a bookie that is lost or away, a copy that a worker made here before it ended may be the only one.

        Args:
            ledger: number of the ledger.
            bookies: ids of the bookies that its metadata name.

        Raises:
            ReplogError: errors of the metadata store, and of what it holds.
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
