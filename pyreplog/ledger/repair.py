"""Writes copies again: copies that are noted as bad, copies that bookies in limbo lack, or all that a ledger lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, ReplogError, UnauthorizedError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.ledger_store import find_ledger, load_ledger
from pyreplog.ledger.protocol.copies import MissingCopiesCheck
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished
from pyreplog.ledger.protocol.entry_repair import EntryRepair
from pyreplog.ledger.repair_notes import RepairNote, forget_repair, repairs
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import decode_object, field

_STEP = 4096
"""Number of entries of a bookie that are checked before the missing ones among them are written."""

Run: TypeAlias = "Callable[[int, MissingCopiesCheck | EntryRepair], Any]"
"""Runs a state machine of a ledger, and returns its result."""


class LedgerRepair:
    """One run of repairs.

    Args:
        key: key of the ledgers; ledgers with another password are not repaired.

    Attributes:
        done: copies that were repaired.
        left: errors of copies that were not repaired; of a bookie that does not answer, only that of its first copy.
    """

    def __init__(self, store: MetadataStore, key: bytes, run: Run) -> None:
        self._store, self._key, self._run = store, key, run
        self.done: list[RepairNote] = []
        self.left: dict[RepairNote, ReplogError] = {}

    def repair_noted(self) -> None:
        """Repair the copies that readers and closing writers noted. Raises errors of the store.

        A bad copy is seldom the only one: of a closed ledger all copies that the bookie should have are checked.
        """
        complete: dict[tuple[int, str], bool] = {}  # (ledger, bookie) -> whether the bookie has all its copies now
        for repair in repairs(self._store)[0]:
            try:
                stored = find_ledger(self._store, repair.ledger)
                closed = stored is None or stored.metadata.state is State.CLOSED
                if stored is not None and (copy := _first_copy(stored.metadata, repair)) is not None:
                    self._repair(stored.metadata, copy)
                    holder = repair.ledger, repair.bookie
                    if closed and holder not in complete:
                        complete[holder] = self._repair_bookie(stored.metadata, repair.bookie)
                    if not complete.get(holder, True):
                        continue
                forget_repair(self._store, repair, closed=closed)
            except ReplogError as error:
                self.left[repair] = error
            else:
                self.done.append(repair)

    def repair_ledger(self, ledger: int) -> None:
        """Repair all copies that a closed ledger lacks.

        Raises:
            InvalidArgumentError: the ledger is not closed.
            UnauthorizedError: the password is wrong.
            ReplogError: as `load_ledger`.
        """
        metadata = load_ledger(self._store, ledger).metadata
        if metadata.state is not State.CLOSED:
            raise InvalidArgumentError(
                f"ledger {ledger} is {metadata.state}, expected a closed one; open_ledger() recovers and closes it"
            )
        self._check_password(metadata)
        for bookie in sorted(metadata.bookies()):
            self._repair_bookie(metadata, bookie)

    def repair_limbo(self, limbo: Iterable[tuple[int, str]]) -> None:
        """Repair closed ledgers on bookies that have them in limbo, given as pairs of ledger and bookie.

        The bookies check by themselves whether they have all entries, and then end the limbo.
        """
        for ledger, bookie in limbo:
            try:
                stored = find_ledger(self._store, ledger)
            except ReplogError as error:
                self.left[RepairNote(ledger, 0, bookie)] = error
                continue
            if stored is not None and stored.metadata.state is State.CLOSED:
                self._repair_bookie(stored.metadata, bookie)

    def _repair_bookie(self, metadata: LedgerMetadata, bookie: str) -> bool:
        """Repair the copies of one bookie until one cannot be written; return whether all are intact."""
        entry = 0
        try:
            for stripe in metadata.holdings(bookie):
                for start in range(0, len(stripe), _STEP):
                    part = stripe[start : start + _STEP]
                    entry = part.start
                    for entry in self._run(metadata.ledger, MissingCopiesCheck(metadata, self._key, bookie, part)):
                        repair = RepairNote(metadata.ledger, entry, bookie)
                        self._repair(metadata, repair)
                        self.done.append(repair)
        except ReplogError as error:
            self.left[RepairNote(metadata.ledger, entry, bookie)] = error
            return False
        return True

    def _repair(self, metadata: LedgerMetadata, repair: RepairNote) -> None:
        self._check_password(metadata)
        self._run(repair.ledger, EntryRepair(metadata, self._key, repair.entry, repair.bookie))

    def _check_password(self, metadata: LedgerMetadata) -> None:
        if not metadata.admits(self._key):
            raise UnauthorizedError(metadata.ledger, "the password differs from the one of create_ledger")


def _first_copy(metadata: LedgerMetadata, repair: RepairNote) -> RepairNote | None:
    """Return the first copy from a noted entry on that the bookie has to hold; None: it has to hold none.

    Auto-recovery may have given the noted entry, of an earlier fragment, to another bookie meanwhile.
    """
    entry = BadCopy(repair.bookie, repair.entry).within(metadata).entry
    return repair._replace(entry=entry) if metadata.has(repair.bookie, entry) else None


class LimboQuery:
    """Asks bookies which ledgers they have in limbo. A state machine.

    Ends with `Finished([(ledger, bookie), ...])`; bookies that do not answer are left out.
    """

    def __init__(self, bookies: Iterable[str]) -> None:
        self._bookies = list(bookies)
        self._found: list[tuple[int, str]] = []
        self._waiting = len(self._bookies)

    def start(self) -> list[Effect]:
        return [Send(bookie, Request(RequestKind.STATUS)) for bookie in self._bookies] or [Finished([])]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if reply.status == ReplyStatus.OK:
            try:
                ledgers = field(decode_object(reply.body), "limbo", list)
                self._found += [(int(ledger), send.bookie) for ledger in ledgers]
            except (ValueError, TypeError, OverflowError) as error:
                return self.failed(send, error)
        return self._next()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._next()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _next(self) -> list[Effect]:
        self._waiting -= 1
        return [Finished(sorted(self._found))] if self._waiting == 0 else []
