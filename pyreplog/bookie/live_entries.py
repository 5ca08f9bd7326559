"""What counts as stored, while entries of a ledger are dead (`dead_entries`).

Dead entries must not count any more before the first of them is removed, or else somebody proves with them that this
bookie may be named. So HOLDINGS and the search for duplicates do not see them; what is added again is stored again,
behind them. Reads still find them: who reads may have older metadata.
"""

from __future__ import annotations

from pyreplog.bookie.entry_log import EntryReader


class LiveEntries:
    """What counts as stored of each ledger: the log without dead entries. The bookie uses it for its requests."""

    def __init__(self, log: EntryReader) -> None:
        self._log = log
        self._views: dict[int, EntryReader] = {}
        self._undecided: set[int] = set()
        self._copied: set[int] = set()

    def of(self, ledger: int) -> EntryReader:
        """Return the log, or what counts of it for a ledger with dead entries."""
        return self._views.get(ledger, self._log)

    def note_copies(self, ledger: int) -> None:
        """Auto-recovery makes copies of a ledger here."""
        self._copied.add(ledger)

    def take_copied(self) -> set[int]:
        """Return the ledgers of which copies came since the call before."""
        copied, self._copied = self._copied, set()
        return copied

    def is_undecided(self, ledger: int) -> bool:
        """Whether it is being decided which entries are dead, so that it is unknown what is here."""
        return ledger in self._undecided

    def begin(self, ledger: int, view: EntryReader) -> None:
        """Hide dead entries of a ledger; whether they are dead is still to be decided by `settle` or `restore`."""
        self._views[ledger] = view
        self._undecided.add(ledger)

    def settle(self, ledger: int) -> None:
        """Decide that the hidden entries are dead."""
        self._undecided.discard(ledger)

    def restore(self, ledger: int, view: EntryReader | None = None) -> None:
        """Show all entries of a ledger again, or those of an earlier view."""
        self._undecided.discard(ledger)
        if view is None:
            self._views.pop(ledger, None)
        else:
            self._views[ledger] = view
