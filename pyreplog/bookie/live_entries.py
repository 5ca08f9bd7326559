"""The stored entries of ledgers, without the dead ones (`dead_entries`).

Dead entries stop counting before the first of them is removed; otherwise a worker could prove with them that this
bookie may be named in the metadata. So HOLDINGS and the search for duplicates do not see them, and an entry that is
added again is stored again, at a higher position. Reads still find them, because a reader may have older metadata.
"""

from __future__ import annotations

from pyreplog.bookie.entry_log import EntryReader


class LiveEntries:
    """Gives the log without the dead entries of a ledger. The bookie uses it to handle its requests."""

    def __init__(self, log: EntryReader) -> None:
        self._log = log
        self._views: dict[int, EntryReader] = {}
        self._undecided: set[int] = set()
        self._copied: set[int] = set()

    def of(self, ledger: int) -> EntryReader:
        """Return the log; for a ledger with dead entries a view of the log without them."""
        return self._views.get(ledger, self._log)

    def note_copies(self, ledger: int) -> None:
        """Note that auto-recovery adds copies of a ledger to this bookie."""
        self._copied.add(ledger)

    def take_copied(self) -> set[int]:
        """Return the ledgers of which copies were added since the last call."""
        copied, self._copied = self._copied, set()
        return copied

    def is_undecided(self, ledger: int) -> bool:
        """Return whether hidden entries are neither settled nor restored, so that it is unknown which entries the
        bookie has."""
        return ledger in self._undecided

    def begin(self, ledger: int, view: EntryReader) -> None:
        """Hide entries of a ledger that may be dead; `settle` or `restore` decides it.

        Args:
            ledger: number of the ledger.
            view: the log without these entries.
        """
        self._views[ledger] = view
        self._undecided.add(ledger)

    def settle(self, ledger: int) -> None:
        """Decide that the hidden entries are dead."""
        self._undecided.discard(ledger)

    def restore(self, ledger: int, view: EntryReader | None = None) -> None:
        """Stop hiding entries of a ledger, or hide those of an earlier decision again.

        Args:
            ledger: number of the ledger.
            view: the log without the entries that were dead before; None: none were.
        """
        self._undecided.discard(ledger)
        if view is None:
            self._views.pop(ledger, None)
        else:
            self._views[ledger] = view
