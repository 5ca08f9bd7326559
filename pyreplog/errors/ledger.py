"""Errors of ledgers."""

from __future__ import annotations

from pyreplog.errors.base import OutOfRangeError, ReplogError


class LedgerError(ReplogError):
    """Base of the errors of a ledger.

    Attributes:
        ledger: id of the ledger.
    """

    def __init__(self, ledger: int, message: str) -> None:
        self.ledger, self.message = ledger, message
        super().__init__(f"ledger {ledger}: {message}")

    def __reduce__(self) -> tuple[type[LedgerError], tuple[int, str]]:
        return type(self), (self.ledger, self.message)


class NoSuchLedgerError(LedgerError):
    """No ledger has that id, or the ledger was deleted."""

    exit_code = 2


class LedgerClosedError(LedgerError):
    """The ledger is closed and takes no more entries.

    The outcome of an append that fails with it is unknown until the ledger is read.
    """


class LedgerFencedError(LedgerError):
    """Another client recovers, or has recovered, the ledger. Its writer cannot continue.

    The outcome of an append that fails with it is unknown: recovery keeps every entry that it finds.
    """


class LedgerRefusedError(LedgerError):
    """A bookie refuses the ledger's entries for good: the ledger was deleted, or has another writer's entries.

    The outcome of an append that fails with it is unknown until the ledger is read.
    """


class EntryRefusedError(LedgerError):
    """A bookie refuses entries that are damaged or too large. The ledger is closed behind the last confirmed entry.

    Damaged entries were intact when the writer sent them: do not trust its memory, or the network.
    """

    exit_code = 4


class UnauthorizedError(LedgerError):
    """The password is not the password of the ledger."""

    exit_code = 7


class NotEnoughBookiesError(ReplogError):
    """Fewer bookies are usable than the ensemble needs."""

    retriable = True
    exit_code = 6


class NoSuchEntryError(OutOfRangeError):
    """The entry is definitely not in the ledger: enough of the bookies that would hold it do not have it."""


class UnreadableError(LedgerError):
    """The ledger cannot tell now whether the entry exists, or what it holds.

    Too many of the bookies that would hold the entry do not answer, or cannot tell. A retry can succeed.
    """

    retriable = True
