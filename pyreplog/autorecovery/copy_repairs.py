"""CopyRepairs: has bad copies written again, and takes entries off the list of lost ones when a disk returns.

Readers, scrubs, recoveries and checks of replicas note bad copies below /repairs. The ledgers are still named right, so
that no bookie takes another's place: the member that was noted gets what it lacks from the others.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.autorecovery.failed_attempt import FailedAttempt
from pyreplog.autorecovery.lost_entries import (
    LostRange,
    find_lost,
    list_lost,
    lost_key,
    note_lost,
    ranges_of,
    remove_lost,
)
from pyreplog.autorecovery.protocol.effects import lost_entries
from pyreplog.autorecovery.protocol.member_repair import MemberRepair, MemberRepaired
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError, UnreadableError
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, metadata_key
from pyreplog.ledger.ledger_store import VersionedMetadata, change_version, find_ledger, load_ledger
from pyreplog.ledger.repair_notes import RepairNote, forget_repair, has_note_of_reader, repairs
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.changes import delete_key

logger = logging.getLogger(__name__)

_LOOKED_UP = 64
"""So many of the ledgers with lost entries are looked at in a run, although no bookie has returned."""
_LIST = "list of lost entries"
"""Stands for a bookie among the failures of ledgers whose lost entries are looked for."""


@dataclass
class RepairCounters:
    """What was repaired since the process began.

    Attributes:
        entries: copies that were written again.
        bytes: their bytes.
        members: pairs of a ledger and a bookie whose notes are settled.
        found: entries that were taken off the list of lost ones.
    """

    entries: int = 0
    bytes: int = 0
    members: int = 0
    found: int = 0


class CopyRepairs:
    """Repairs the copies that are noted. One thread at a time calls `run`; any thread reads the rest.

    Args:
        runtime: of a cluster.
        rate_limiter: limits the bytes in a second.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, rate_limiter: CopyRateLimiter, clock: Clock) -> None:
        self._runtime, self._store = runtime, runtime.metadata
        self._rate_limiter, self._clock = rate_limiter, clock
        self._failures: dict[tuple[int, str], FailedAttempt] = {}  # by ledger and bookie
        self._next_lost = 0  # the ledger with lost entries that is looked up next
        self._is_stopping = False
        self.counters = RepairCounters()

    @property
    def failures(self) -> dict[int, str]:
        """Ledgers with copies that cannot be repaired now, and why."""
        return {ledger: f"{bookie}: {failure.error}" for (ledger, bookie), failure in list(self._failures.items())}

    def stop(self) -> None:
        """Have `run` return after the ledger that it repairs. Any thread."""
        self._is_stopping = True

    def run(self, lost: Collection[str]) -> None:
        """Repair the copies that are noted, and look for lost entries on bookies that have returned.

        Args:
            lost: ids of bookies whose copies are gone. They are not asked.

        Raises:
            ReplogError: errors of the metadata store.
        """
        registered = {status.bookie for status in self._runtime.bookie_statuses()}
        gone = frozenset(lost) - registered
        concerned = self._repair_noted(registered, gone) | self._find_lost(registered, gone)
        self._failures = {key: failure for key, failure in self._failures.items() if key in concerned}

    # ---- notes ----------------------------------------------------------------------------------------------

    def _repair_noted(self, registered: Collection[str], gone: frozenset[str]) -> set[tuple[int, str]]:
        """Repair members that have notes. Returns the ledgers and bookies that have notes."""
        notes: dict[tuple[int, str], list[RepairNote]] = {}
        for note in repairs(self._store)[0]:
            notes.setdefault((note.ledger, note.bookie), []).append(note)
        for (ledger, bookie), noted in notes.items():
            self._attempt(ledger, bookie, partial(self._repair, noted, bookie in registered, gone))
        return set(notes)

    def _repair(self, notes: Sequence[RepairNote], is_registered: bool, gone: frozenset[str]) -> None:
        """Repair the member that some notes are about, and forget them; also if it is no member any more.

        Raises:
            UnreadableError: the member does not run, or an entry cannot be copied now.
            ReplogError: errors of the store.
        """
        ledger, _, bookie = notes[0]
        stored = find_ledger(self._store, ledger)
        is_closed = stored is None or stored.metadata.state is State.CLOSED
        if not is_closed:  # a note of its writer waits until it is closed
            notes = [note for note in notes if has_note_of_reader(self._store, note)]
        if stored is not None and notes and bookie in stored.metadata.bookies():
            if not is_registered:
                raise UnreadableError(ledger, "the bookie does not run")
            stop = None if is_closed else max(note.entry for note in notes) + 1
            machine = MemberRepair(stored.metadata, bookie, absent=gone, stop=stop, throttle=self._rate_limiter.spend)
            self._list_missing(stored, bookie, self._run(machine).missing, gone)
        for note in notes:
            forget_repair(self._store, note, closed=is_closed)
        self.counters.members += bool(notes)

    def _list_missing(
        self, stored: VersionedMetadata, bookie: str, missing: Sequence[int], gone: frozenset[str]
    ) -> None:
        """List the entries of a closed ledger of which no bookie has a copy.

        A member that denied an entry may have removed it as surplus, because another one took its place meanwhile. It
        changes the version of the metadata before.

        Raises:
            UnreadableError: the ledger is not closed, or its metadata have changed.
            ReplogError: errors of the store.
        """
        if not missing:
            return
        metadata = stored.metadata
        if metadata.state is not State.CLOSED:
            raise UnreadableError(metadata.ledger, f"no bookie has a copy of entry {missing[0]} yet")
        current = find_ledger(self._store, metadata.ledger)
        if current is None or current.version != stored.version:
            raise UnreadableError(metadata.ledger, "its metadata were changed while its copies were looked for")
        listed = _entries_of(find_lost(self._store, metadata.ledger).ranges, metadata)
        missing = np.setdiff1d(np.array(missing, np.int64), listed).tolist()
        if not missing:
            return
        losses, now_us = lost_entries(metadata, missing, bookie, gone), self._clock.now_us()
        ranges = [lost for holder, entries in losses.by_bookie for lost in ranges_of(entries, holder, now_us)]
        note_lost(self._store, metadata.ledger, ranges)
        logger.error(
            "ledger %d has lost %d entries, from %d to %d: no bookie has a copy of them", metadata.ledger, len(missing),
            missing[0], missing[-1],
        )  # fmt: skip

    # ---- disks that return ----------------------------------------------------------------------------------

    def _find_lost(self, registered: Collection[str], gone: frozenset[str]) -> set[tuple[int, str]]:
        """Look for lost entries: at once where a bookie runs again that had the last copies, else a few in turns.

        Two processes that look at a ledger at a time may list entries that a third one has found a moment before. So
        those are looked for, too, whose last bookie does not run. Returns what is listed.
        """
        listed = list_lost(self._store)
        turn = self._next_turn(sorted(listed))
        self._forget_deleted(turn)
        for ledger, lost in listed.items():
            returned = sorted({item.bookie for item in lost.ranges if item.bookie in registered})
            if lost.ranges and (returned or ledger in turn):
                self._attempt(ledger, _LIST, partial(self._find, ledger, lost.ranges, returned, gone))
        return {(ledger, _LIST) for ledger in listed}

    def _next_turn(self, listed: list[int]) -> list[int]:
        """Return a few of the ledgers, others each time."""
        first = bisect_left(listed, self._next_lost)
        turn = listed[first : first + _LOOKED_UP]
        self._next_lost = turn[-1] + 1 if len(turn) == _LOOKED_UP else 0
        return turn

    def _forget_deleted(self, ledgers: list[int]) -> None:
        """Take ledgers off the list that were deleted."""
        for ledger, stored in zip(ledgers, self._store.get_many([*map(metadata_key, ledgers)]), strict=True):
            if stored is None:
                delete_key(self._store, lost_key(ledger))

    def _find(self, ledger: int, lost: Sequence[LostRange], returned: Sequence[str], gone: frozenset[str]) -> None:
        """Give the members of a ledger what returned bookies have of its lost entries, and take these off the list.

        The version of the metadata is changed before: a worker that holds the entries for lost may be about to name a
        bookie that lacks them, in place of a member that has been given them.

        Raises:
            UnreadableError: a member does not run, or the bookies do not have the entries.
            ReplogError: errors of the store.
        """
        stored = load_ledger(self._store, ledger)
        metadata = stored.metadata
        entries = _entries_of(lost, metadata)
        begins = [fragment.first for fragment in metadata.fragments]
        fragment_of = np.searchsorted(begins, entries, "right") - 1
        firsts: set[int] = set()
        members: set[str] = set()
        for index in np.unique(fragment_of).tolist():
            fragment = metadata.fragments[index]
            firsts.add(fragment.first)
            for turn in np.unique(entries[fragment_of == index] % metadata.ensemble_size).tolist():
                places = write_set(turn, metadata.ensemble_size, metadata.write_quorum)
                members.update(fragment.ensemble[place] for place in places)
        missing: set[int] = set()
        for bookie in sorted(members):
            machine = MemberRepair(
                metadata, bookie, absent=gone, others=returned, firsts=firsts, throttle=self._rate_limiter.spend
            )  # fmt: skip
            missing.update(self._run(machine).missing)
        copied = {int(entry) for entry in entries} - missing
        if copied:  # a worker that lists them now, and moves a member without them, has to look again
            if not change_version(self._store, ledger, stored.version):
                raise UnreadableError(ledger, "its metadata were changed while lost entries were copied")
            remove_lost(self._store, ledger, copied)
            self.counters.found += len(copied)
            where = f"found on {', '.join(returned)}" if returned else "found"
            logger.warning("ledger %d: %d lost entries were %s", ledger, len(copied), where)
        if len(copied) < len(entries):
            raise UnreadableError(ledger, f"{len(entries) - len(copied)} lost entries are not there, either")

    # ---- attempts -------------------------------------------------------------------------------------------

    def _attempt(self, ledger: int, bookie: str, repair: Callable[[], None]) -> None:
        """Repair, unless it failed lately; after a failure it is tried again later and later."""
        failure = self._failures.get((ledger, bookie))
        now_us = self._clock.monotonic_us()
        if self._is_stopping or (failure is not None and now_us < failure.retry_us):
            return
        try:
            repair()
        except ClosedError:
            self._is_stopping = True
        except ReplogError as error:
            self._failures[ledger, bookie] = FailedAttempt.after(failure, error, now_us)
            level = logging.WARNING if failure is None else logging.DEBUG
            logger.log(level, "ledger %d: copies on %s are not repaired yet: %s", ledger, bookie, error)
        else:
            self._failures.pop((ledger, bookie), None)

    def _run(self, machine: MemberRepair) -> MemberRepaired:
        """Run a repair and wait for it. Raises UnreadableError."""
        repaired: MemberRepaired = self._runtime.wait(run_machine(machine.ledger, machine, self._runtime))
        self.counters.entries += repaired.entries
        self.counters.bytes += repaired.bytes
        return repaired


def _entries_of(ranges: Iterable[LostRange], metadata: LedgerMetadata) -> npt.NDArray[np.int64]:
    """Return the entries of some ranges, ascending.

    What is listed is bounded by what the ledger has; of one that is not closed, by the beginning of its last fragment.
    """
    stop = metadata.last_entry + 1 if metadata.state is State.CLOSED else metadata.last_fragment.first
    parts = [np.arange(lost.start, min(lost.stop, stop), lost.step, dtype=np.int64) for lost in ranges]
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
