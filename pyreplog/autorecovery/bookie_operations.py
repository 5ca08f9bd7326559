"""BookieOperations: an operator's commands for one bookie: drain, retire, declare lost."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.ledger_survey import uncopied
from pyreplog.autorecovery.lost_entries import bookies_of_lost, had_last_copies
from pyreplog.autorecovery.orders import withdraw_order
from pyreplog.autorecovery.protocol.absence import name_of_bookie
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, unreadable_entries
from pyreplog.autorecovery.protocol.member_change import written_end
from pyreplog.autorecovery.status import FAILED_MAX, find_status
from pyreplog.autorecovery.worker import bytes_on
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key, list_bookie_states
from pyreplog.bookie.identity import known_bookies
from pyreplog.clock import Clock
from pyreplog.errors import BookieStateError, LastCopyError, NoSuchBookieError, NotEnoughBookiesError
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.changes import change_key
from pyreplog.plurals import counted

_GONE = (BookiePhase.LOST, BookiePhase.RETIRED)
_NEAR_MAX = 3


@dataclass(frozen=True)
class DrainProgress:
    """The remaining work of a drain.

    Attributes:
        bookie: id of the bookie.
        ledgers_left: number of ledgers that name it.
        bytes_left: size of its copies, bytes, estimated from the metadata of closed ledgers.
        open_left: number of those ledgers whose last fragment names it, and whose writer has to replace it.
    """

    bookie: str
    ledgers_left: int
    bytes_left: int
    open_left: int


@dataclass(frozen=True)
class BlockedLedger:
    """A ledger whose copies cannot be moved now.

    Attributes:
        ledger: its id.
        why: error of the last attempt.
        unreadable: entries of which no responding bookie has a readable copy.
    """

    ledger: int
    why: str
    unreadable: tuple[range, ...] = ()


@dataclass(frozen=True)
class LossForecast:
    """The entries that would be lost with a bookie.

    Attributes:
        bookie: id of the bookie.
        ledgers: number of ledgers that name it.
        entries: number of entries, by ledger, that have no copy on a bookie that is not lost.
        open_ledgers: ledgers that are not closed, and whose last fragment would have no other copy of an entry; the
            number of entries is unknown.
    """

    bookie: str
    ledgers: int
    entries: dict[int, int]
    open_ledgers: tuple[int, ...]

    @property
    def loses(self) -> bool:
        """Whether entries would be lost."""
        return bool(self.entries or self.open_ledgers)


class BookieOperations:
    """Carries out an operator's commands. Each reads the metadata of all ledgers first. One thread at a time calls it.

    Args:
        runtime: runtime of the cluster.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, clock: Clock) -> None:
        self._runtime, self._store, self._clock = runtime, runtime.metadata, clock
        self._scan = LedgerScan(runtime.metadata)

    def find(self, text: str) -> str:
        """Return the id of the bookie that a text names.

        Args:
            text: id of a bookie, or its name, which selects its last incarnation.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie; the message lists similar names.
            ReplogError: errors of the metadata store.
        """
        current = known_bookies(self._store)
        known = {*current, *list_bookie_states(self._store), *self._scan.named(), *self._registered()}
        if text in known:
            return text
        for bookie in current:
            if name_of_bookie(bookie) == text:
                return bookie
        near = difflib.get_close_matches(text, [*map(name_of_bookie, known), *known], _NEAR_MAX)
        hint = f"; do you mean {', '.join(dict.fromkeys(near))}?" if near else "; `cluster status` lists those that run"
        raise NoSuchBookieError(f"bookie {text}: expected the name or id of a bookie of this cluster, found none{hint}")

    # ---- drain ----------------------------------------------------------------------------------------------

    def begin_drain(self, text: str, *, dry_run: bool = False) -> DrainProgress:
        """Move the copies of a bookie to other bookies, and select it for no new ledger. May be called again.

        Args:
            text: id or name of the bookie.
            dry_run: whether to check only.

        Returns:
            The work of the drain.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            BookieStateError: the bookie is lost or retired.
            NotEnoughBookiesError: fewer other bookies take entries than a ledger has members.
            LastCopyError: the bookie does not run, and has the only copies of entries.
            ReplogError: errors of the metadata store.
        """
        self._scan.scan()
        bookie = self.find(text)
        states = list_bookie_states(self._store)
        state = states.get(bookie)
        if state is not None and state.phase in _GONE:
            raise BookieStateError(
                f"bookie {bookie} is {state.phase}: expected one that has copies to move; its copies are made again "
                "without a drain"
            )
        self._check_room(bookie)
        if bookie not in self._registered():
            self._check_not_last(bookie, states)
        if not dry_run:
            self._set(bookie, state, BookieState(BookiePhase.DRAINING, self._clock.now_us(), "an operator drains it"))
        return self._progress(bookie)

    def _check_room(self, bookie: str) -> None:
        """Raise NotEnoughBookiesError if there are too few other bookies for the copies of a bookie."""
        suspects = self._runtime.candidates(suspects=True)
        writable = {candidate.bookie for candidate in (*self._runtime.candidates(), *suspects)} - {bookie}
        for metadata in self._ledgers_of(bookie):
            if len(writable) < metadata.ensemble_size:
                raise NotEnoughBookiesError(
                    f"bookie {bookie} cannot be drained: ledger {metadata.ledger} has {metadata.ensemble_size} "
                    f"members, and {len(writable)} other bookies take entries; add a bookie first"
                )

    def _check_not_last(self, bookie: str, states: dict[str, BookieState]) -> None:
        """Raise LastCopyError if a bookie that does not run has the only copies of entries."""
        forecast = self._forecast(bookie, states)
        if forecast.loses:
            ledger = min([*forecast.entries, *forecast.open_ledgers])
            raise LastCopyError(
                f"bookie {bookie} cannot be drained: it does not run, and has the only copies of entries of ledger "
                f"{ledger}; start it first, or declare it lost (`cluster lost`)"
            )

    def end_drain(self, text: str) -> str:
        """End the drain of a bookie, which becomes an ordinary member. Copies that were moved are not moved back.

        Args:
            text: id or name of the bookie.

        Returns:
            The id of the bookie.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            BookieStateError: the bookie is not being drained.
            ReplogError: errors of the metadata store.
        """
        bookie = self.find(text)
        state = list_bookie_states(self._store).get(bookie)
        if state is None or state.phase is not BookiePhase.DRAINING:
            raise BookieStateError(f"bookie {bookie}: expected one that is drained, found {_phase_name(state)}")
        self._set(bookie, state, None)
        return bookie

    def drain_progress(self, bookie: str) -> DrainProgress:
        """Return the remaining work of a drain, after reading the ledgers that may have changed.

        Args:
            bookie: id of the bookie.

        Raises:
            ReplogError: errors of the metadata store.
        """
        self._scan.refresh()
        return self._progress(bookie)

    def blocked(self, bookie: str) -> list[BlockedLedger]:
        """Return the ledgers that block a drain, with errors; empty if some copy can still be moved, or none is left.

        The result is based on the auditor's status; the auditor retries failed ledgers with back-off. The members of
        these ledgers are asked which entries they hold, so that the result has the unreadable entries.

        Args:
            bookie: id of the bookie.

        Raises:
            InvalidMetadataError: the status of the auditor is malformed.
            ReplogError: errors of the metadata store; the cluster was closed.
        """
        status = find_status(self._store)
        failed = {} if status is None else status.failed
        left = [each for each in self._ledgers_of(bookie) if each.state is State.CLOSED]
        stuck = [each for each in left if each.ledger in failed]
        if not stuck or (len(stuck) < len(left) and len(failed) < FAILED_MAX):
            return []
        return [BlockedLedger(each.ledger, failed[each.ledger], self._unreadable(each)) for each in stuck]

    def _unreadable(self, metadata: LedgerMetadata) -> tuple[range, ...]:
        absent = metadata.bookies() - self._registered()
        check = run_machine(metadata.ledger, CopyCheck(metadata, absent=absent), self._runtime)
        return unreadable_entries(self._runtime.wait(check), metadata.write_quorum)

    def _progress(self, bookie: str) -> DrainProgress:
        left = self._ledgers_of(bookie)
        size = sum(bytes_on(metadata, (bookie,)) for metadata in left)
        return DrainProgress(bookie, len(left), size, len(self._scan.open_ledgers([bookie])))

    # ---- lost -----------------------------------------------------------------------------------------------

    def forecast_loss(self, text: str) -> LossForecast:
        """Return the entries that would be lost with a bookie.

        Copies on bookies that are merely away count as available.

        Args:
            text: id or name of the bookie.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            ReplogError: errors of the metadata store.
        """
        self._scan.scan()
        return self._forecast(self.find(text), list_bookie_states(self._store))

    def _forecast(self, bookie: str, states: dict[str, BookieState]) -> LossForecast:
        lost = {other for other, state in states.items() if state.phase in _GONE} - self._registered() | {bookie}
        entries: dict[int, int] = {}
        unknown: list[int] = []
        ledgers = self._ledgers_of(bookie)
        for metadata in ledgers:
            for fragment in metadata.fragments:
                if bookie not in fragment.ensemble:
                    continue
                end = written_end(metadata, fragment)
                if end is not None and (count := uncopied(metadata, fragment, end, lost)):
                    entries[metadata.ledger] = entries.get(metadata.ledger, 0) + count
                elif end is None and uncopied(metadata, fragment, fragment.first + metadata.ensemble_size, lost):
                    unknown.append(metadata.ledger)
        return LossForecast(bookie, len(ledgers), entries, tuple(unknown))

    def declare_lost(self, text: str, *, accept_loss: bool = False, force: bool = False) -> LossForecast:
        """Declare that the data of a bookie are lost: its copies are replicated again at once.

        Args:
            text: id or name of the bookie.
            accept_loss: whether to proceed even if entries are lost with it.
            force: whether to proceed even if the bookie runs.

        Returns:
            The lost entries.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            BookieStateError: the bookie runs, and `force` is False; or it is retired.
            LastCopyError: entries would be lost, and `accept_loss` is False.
            ReplogError: errors of the metadata store.
        """
        forecast = self.forecast_loss(text)
        bookie, state = forecast.bookie, list_bookie_states(self._store).get(forecast.bookie)
        if state is not None and state.phase is BookiePhase.RETIRED:
            raise BookieStateError(f"bookie {bookie} is retired: no ledger named it any more when that was decided")
        if bookie in self._registered() and not force:
            raise BookieStateError(
                f"bookie {bookie} runs: expected one whose data are gone; drain it, or insist with --force"
            )
        if not accept_loss:
            _check_loss(forecast)
        if state is None or state.phase is not BookiePhase.LOST:
            reason = "an operator declared it lost"
            self._set(bookie, state, BookieState(BookiePhase.LOST, self._clock.now_us(), reason))
        return forecast

    def forecast_replacement(self, bookie: str, *, accept_loss: bool = False) -> LossForecast:
        """Return what is lost if an empty directory takes the name of a bookie, whose disk cannot return then.

        Args:
            bookie: id of the bookie.
            accept_loss: whether to accept that entries are lost with it.

        Raises:
            LastCopyError: `accept_loss` is False, and entries would be lost, or are listed as lost and may be on its
                disk.
            ReplogError: errors of the metadata store.
        """
        forecast = self.forecast_loss(bookie)
        if not accept_loss:
            _check_loss(forecast)
            if listed := had_last_copies(bookies_of_lost(self._store), bookie):
                raise LastCopyError(
                    f"bookie {bookie} had the last copies of entries of {counted(len(listed), 'ledger')}, ledger "
                    f"{listed[0]} first, which are listed as lost: its disk cannot bring them back once another "
                    "incarnation has its name; give them up with --yes"
                )
        return forecast

    def end_lost(self, text: str) -> str:
        """End the lost state of a bookie whose data exist after all. Copies that were made meanwhile stay.

        If the bookie runs, it is an ordinary member at once; otherwise it is away, and the delay begins. Entries that
        were listed as lost stay listed until a bookie that has them runs.

        Args:
            text: id or name of the bookie.

        Returns:
            The id of the bookie.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            BookieStateError: the bookie does not count as lost, or another incarnation was registered under its name.
            ReplogError: errors of the metadata store.
        """
        bookie = self.find(text)
        state = list_bookie_states(self._store).get(bookie)
        if state is None or state.phase is not BookiePhase.LOST:
            raise BookieStateError(f"bookie {bookie}: expected one that counts as lost, found {_phase_name(state)}")
        name, known = name_of_bookie(bookie), known_bookies(self._store)
        successor = next((other for other in known if name_of_bookie(other) == name), bookie)
        if successor != bookie:
            raise BookieStateError(
                f"bookie {bookie} stays lost: {successor} was registered under its name, and takes no data of it"
            )
        self._set(bookie, state, None)
        withdraw_order(self._store, bookie)
        return bookie

    # ---- retire ---------------------------------------------------------------------------------------------

    def retire(self, text: str) -> str:
        """Retire a drained or lost bookie that no ledger names. Its id is not used again.

        Args:
            text: id or name of the bookie.

        Returns:
            The id of the bookie.

        Raises:
            NoSuchBookieError: the cluster knows no such bookie.
            BookieStateError: the bookie is an ordinary member, or ledgers name it, or may name it.
            LastCopyError: it had the last copies of entries that are listed as lost, and may return with them.
            ReplogError: errors of the metadata store.
        """
        bookie = self.find(text)
        state = list_bookie_states(self._store).get(bookie)
        if state is not None and state.phase is BookiePhase.RETIRED:
            return bookie
        if state is None or state.phase is BookiePhase.AWAY:
            raise BookieStateError(
                f"bookie {bookie}: expected one that was drained or declared lost, found {_phase_name(state)}; run "
                "`cluster drain`"
            )
        self._scan.scan()
        if garbled := self._scan.garbled:
            raise BookieStateError(
                f"bookie {bookie}: the metadata of ledger {min(garbled)} cannot be read, and may name it; see "
                "docs/operations.md, Metadata that make no sense"
            )
        named = self._scan.ledgers_of(bookie)
        if len(named):
            raise BookieStateError(
                f"bookie {bookie} cannot be retired: {counted(len(named), 'ledger', 'name')} it, ledger {named[0]} "
                "first; wait until its copies are moved (`cluster drain --wait`)"
            )
        listed = had_last_copies(bookies_of_lost(self._store), bookie)
        if listed:
            raise LastCopyError(
                f"bookie {bookie} cannot be retired: it had the last copies of entries of ledger {listed[0]}, which "
                "are listed as lost; it may return with them. Delete the ledger, or leave the bookie as it is"
            )
        self._set(bookie, state, BookieState(BookiePhase.RETIRED, self._clock.now_us(), "an operator retired it"))
        return bookie

    # ---- helpers --------------------------------------------------------------------------------------------

    def _registered(self) -> set[str]:
        return {status.bookie for status in self._runtime.bookie_statuses()}

    def _ledgers_of(self, bookie: str) -> list[LedgerMetadata]:
        """Return the current metadata of the ledgers that name a bookie."""
        stored = self._scan.read(self._scan.ledgers_of(bookie).tolist())
        return [each.metadata for each in stored if bookie in each.metadata.bookies()]

    def _set(self, bookie: str, known: BookieState | None, state: BookieState | None) -> None:
        """Replace the state of a bookie. Raises BookieStateError if it changed since it was read."""
        before = None if known is None else known.encode()
        after = None if state is None else state.encode()
        value = change_key(self._store, bookie_state_key(bookie), lambda value: after if value == before else value)
        if value != after:
            raise BookieStateError(f"bookie {bookie}: its state changed meanwhile; look again with `cluster status`")


def _phase_name(state: BookieState | None) -> str:
    return "an ordinary member" if state is None else str(state.phase)


def _check_loss(forecast: LossForecast) -> None:
    """Raise LastCopyError if entries would be lost."""
    if forecast.loses:
        ledgers = {*forecast.entries, *forecast.open_ledgers}
        raise LastCopyError(
            f"bookie {forecast.bookie} has the only copies of entries of {counted(len(ledgers), 'ledger')}, ledger "
            f"{min(ledgers)} first: look at all with `cluster lost --dry-run`, give them up with --yes"
        )
