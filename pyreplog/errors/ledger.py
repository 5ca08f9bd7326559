"""Errors of ledgers."""

from __future__ import annotations

from pyreplog.errors.base import OutOfRangeError, ReplogError


class LedgerError(ReplogError):
    """Base of what can be wrong with a ledger. `ledger` is its id."""

    def __init__(self, ledger: int, message: str) -> None:
        self.ledger, self.message = ledger, message
        super().__init__(f"ledger {ledger}: {message}")

    def __reduce__(self) -> tuple[type[LedgerError], tuple[int, str]]:
        return type(self), (self.ledger, self.message)


class NoSuchLedgerError(LedgerError):
    """There is no ledger of that id, or it was deleted."""

    exit_code = 2


class LedgerClosedError(LedgerError):
    """The ledger takes no more entries. Of an append that fails with it, the outcome is unknown until it is read."""


class LedgerFencedError(LedgerError):
    """Somebody else recovers, or has recovered, the ledger: its writer may not go on.

    Of an append that fails with it, the outcome is unknown: recovery keeps every entry that it finds.
    """


class LedgerRefusedError(LedgerError):
    """A bookie refuses the ledger's entries for good: the ledger was deleted, or another writer's are there.

    Of an append that fails with it, the outcome is unknown until the ledger is read.
    """


class EntryRefusedError(LedgerError):
    """A bookie refuses entries that are damaged, or too large for it; the ledger is closed at the last confirmed one.

    Damaged ones left their writer intact: its memory, or the network, is not to be trusted.
    """

    exit_code = 4


class UnauthorizedError(LedgerError):
    """The password is not the one the ledger was made with."""

    exit_code = 7


class NotEnoughBookiesError(ReplogError):
    """Fewer bookies can be used than the ensemble needs."""

    retriable = True
    exit_code = 6


class NoSuchEntryError(OutOfRangeError):
    """The entry is definitely not in the ledger: enough of the bookies that would hold it say so."""


class UnreadableError(LedgerError):
    """Whether the entry exists, or what is in it, cannot be told now: too many of its bookies do not answer, or do not
    know. Trying again can help."""

    retriable = True
