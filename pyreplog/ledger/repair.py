"""Writing copies again: those that were noted as bad, and those that bookies in limbo, or all of a ledger's, lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, ReplogError, UnauthorizedError
from pyreplog.ledger.ledger_store import find_ledger, load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.protocol.copies import CopyCheck
from pyreplog.ledger.protocol.effects import Effect, Finished
from pyreplog.ledger.protocol.entry_repair import EntryRepair
from pyreplog.ledger.repair_notes import RepairNote, forget_repair, repairs
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import decode_object, field

_STEP = 4096
"""So many entries of a bookie are looked at before those that it lacks are written."""

Run: TypeAlias = "Callable[[int, CopyCheck | EntryRepair], Any]"
"""Runs a machine of a ledger; returns its result."""


class LedgerRepair:
    """One go at it. key: of the ledgers; those with another password are left alone.

    done: copies that are well now. left: why others are not; of a bookie that does not answer, the first one.
    """

    def __init__(self, store: MetadataStore, key: bytes, run: Run) -> None:
        self._store, self._key, self._run = store, key, run
        self.done: list[RepairNote] = []
        self.left: dict[RepairNote, ReplogError] = {}

    def repair_noted(self) -> None:
        """What readers noted, and who closed ledgers. A bad or missing copy is seldom the only one: of a closed ledger
        all copies that the bookie should have are looked at. Errors: those of the store."""
        looked: dict[tuple[int, str], bool] = {}  # whether all is well
        for repair in repairs(self._store)[0]:
            try:
                there = find_ledger(self._store, repair.ledger)
                closed = there is None or there.metadata.state is State.CLOSED
                if there is not None and there.metadata.has(repair.bookie, repair.entry):
                    self._repair(there.metadata, repair)
                    where = repair.ledger, repair.bookie
                    if closed and where not in looked:
                        looked[where] = self._repair_bookie(there.metadata, repair.bookie)
                    if not looked.get(where, True):
                        continue
                forget_repair(self._store, repair, closed=closed)
            except ReplogError as error:
                self.left[repair] = error
            else:
                self.done.append(repair)

    def repair_ledger(self, ledger: int) -> None:
        """All that a closed ledger lacks. Errors: InvalidArgumentError, it is not closed; UnauthorizedError; those of
        load_ledger."""
        metadata = load_ledger(self._store, ledger).metadata
        if metadata.state is not State.CLOSED:
            raise InvalidArgumentError(f"ledger {ledger} is {metadata.state}: recover it first")
        self._check_password(metadata)
        for bookie in sorted(metadata.bookies()):
            self._repair_bookie(metadata, bookie)

    def repair_limbo(self, limbo: Iterable[tuple[int, str]]) -> None:
        """What closed ledgers lack on bookies where they are in limbo: pairs of ledger and bookie. The bookies look for
        themselves whether they have all, and end it."""
        for ledger, bookie in limbo:
            try:
                there = find_ledger(self._store, ledger)
            except ReplogError as error:
                self.left[RepairNote(ledger, 0, bookie)] = error
                continue
            if there is not None and there.metadata.state is State.CLOSED:
                self._repair_bookie(there.metadata, bookie)

    def _repair_bookie(self, metadata: LedgerMetadata, bookie: str) -> bool:
        """Goes on until one copy cannot be written; whether all are well."""
        at = 0
        try:
            for stripe in metadata.holdings(bookie):
                for start in range(0, len(stripe), _STEP):
                    part = stripe[start : start + _STEP]
                    at = part.start
                    for at in self._run(metadata.ledger, CopyCheck(metadata, self._key, bookie, part)):
                        repair = RepairNote(metadata.ledger, at, bookie)
                        self._repair(metadata, repair)
                        self.done.append(repair)
        except ReplogError as error:
            self.left[RepairNote(metadata.ledger, at, bookie)] = error
            return False
        return True

    def _repair(self, metadata: LedgerMetadata, repair: RepairNote) -> None:
        self._check_password(metadata)
        self._run(repair.ledger, EntryRepair(metadata, self._key, repair.entry, repair.bookie))

    def _check_password(self, metadata: LedgerMetadata) -> None:
        if not metadata.admits(self._key):
            raise UnauthorizedError(metadata.ledger, "the password is not the one it was made with")


class LimboQuery:
    """Asks bookies which ledgers they have in limbo: `Finished([(ledger, bookie), ...])`, of those that answer."""

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
