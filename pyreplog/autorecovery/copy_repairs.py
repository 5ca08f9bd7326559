"""CopyRepairs: repairs bad copies, and takes entries off the list of lost entries when a disk returns.

Readers, scrubs, recoveries and replica checks note bad copies below /repairs. No bookie is replaced, because the
metadata of these ledgers name the right members: the noted member gets the entries that it lacks from the other
members.
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

_SEARCHED_MAX = 64
"""Maximum number of ledgers with lost entries that a run examines although no bookie has returned."""
_LIST = "list of lost entries"
"""Stands for the bookie id in the failures of ledgers whose lost entries are searched."""


@dataclass
class RepairCounters:
    """Counters of repairs since the process began.

    Attributes:
        entries: number of copies that were written again.
        bytes: their size in bytes.
        members: number of pairs of a ledger and a bookie whose notes were settled.
        found: number of entries that were taken off the list of lost entries.
    """

    entries: int = 0
    bytes: int = 0
    members: int = 0
    found: int = 0


class CopyRepairs:
    """Repairs noted copies. One thread at a time calls `run`; any thread may use the rest.

    Args:
        runtime: runtime of the cluster.
        rate_limiter: limits the bytes per second.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, rate_limiter: CopyRateLimiter, clock: Clock) -> None:
        self._runtime, self._store = runtime, runtime.metadata
        self._rate_limiter, self._clock = rate_limiter, clock
        self._failures: dict[tuple[int, str], FailedAttempt] = {}  # by ledger and bookie
        self._next_lost = 0  # next ledger with lost entries to search
        self._is_stopping = False
        self.counters = RepairCounters()

    @property
    def failures(self) -> dict[int, str]:
        """Errors of the ledgers with copies that cannot be repaired now."""
        return {ledger: f"{bookie}: {failure.error}" for (ledger, bookie), failure in list(self._failures.items())}

    def stop(self) -> None:
        """Make `run` return after the ledger in progress. Any thread may call it."""
        self._is_stopping = True

    def run(self, lost: Collection[str]) -> None:
        """Repair noted copies, and search returned bookies for lost entries.

        Args:
            lost: ids of bookies whose data are lost; they get no requests.

        Raises:
            ReplogError: errors of the metadata store.
        """
        registered = {status.bookie for status in self._runtime.bookie_statuses()}
        gone = frozenset(lost) - registered
        concerned = self._repair_noted(registered, gone) | self._search_lost(registered, gone)
        self._failures = {key: failure for key, failure in self._failures.items() if key in concerned}

    # ---- notes ----------------------------------------------------------------------------------------------

    def _repair_noted(self, registered: Collection[str], gone: frozenset[str]) -> set[tuple[int, str]]:
        """Repair members with notes. Returns the pairs of ledger and bookie that have notes."""
        notes: dict[tuple[int, str], list[RepairNote]] = {}
        for note in repairs(self._store)[0]:
            notes.setdefault((note.ledger, note.bookie), []).append(note)
        for (ledger, bookie), noted in notes.items():
            self._attempt(ledger, bookie, partial(self._repair, noted, bookie in registered, gone))
        return set(notes)

    def _repair(self, notes: Sequence[RepairNote], is_registered: bool, gone: frozenset[str]) -> None:
        """Repair a member, and delete its notes; only delete the notes if it is no longer a member.

        Raises:
            UnreadableError: the member does not run, or an entry cannot be copied now.
            ReplogError: errors of the store.
        """
        ledger, _, bookie = notes[0]
        stored = find_ledger(self._store, ledger)
        is_closed = stored is None or stored.metadata.state is State.CLOSED
        if not is_closed:  # notes of its writer wait until the ledger is closed
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
        """Add the entries of a closed ledger of which no bookie has a copy to the list of lost entries.

        The version of the metadata is checked first: a member that denied an entry may have removed it as surplus
        because it was replaced, and that changes the version.

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

    # ---- lost entries ---------------------------------------------------------------------------------------

    def _search_lost(self, registered: Collection[str], gone: frozenset[str]) -> set[tuple[int, str]]:
        """Search for lost entries, and return the ledgers that have some.

        A ledger is searched at once if a bookie that had the last copies runs again; a few others are searched in
        turns. The latter is necessary because two processes that examine a ledger concurrently may list entries that a
        third process has just found.
        """
        listed = list_lost(self._store)
        turn = self._next_turn(sorted(listed))
        self._forget_deleted(turn)
        for ledger, lost in listed.items():
            returned = sorted({item.bookie for item in lost.ranges if item.bookie in registered})
            if lost.ranges and (returned or ledger in turn):
                self._attempt(ledger, _LIST, partial(self._search, ledger, lost.ranges, returned, gone))
        return {(ledger, _LIST) for ledger in listed}

    def _next_turn(self, listed: list[int]) -> list[int]:
        """Return the next few ledgers."""
        first = bisect_left(listed, self._next_lost)
        turn = listed[first : first + _SEARCHED_MAX]
        self._next_lost = turn[-1] + 1 if len(turn) == _SEARCHED_MAX else 0
        return turn

    def _forget_deleted(self, ledgers: list[int]) -> None:
        """Delete the lists of lost entries of deleted ledgers."""
        for ledger, stored in zip(ledgers, self._store.get_many([*map(metadata_key, ledgers)]), strict=True):
            if stored is None:
                delete_key(self._store, lost_key(ledger))

    def _search(self, ledger: int, lost: Sequence[LostRange], returned: Sequence[str], gone: frozenset[str]) -> None:
        """Copy lost entries from returned bookies to the members of a ledger, and take them off the list.

        The version of the metadata is changed first: a worker that considers the entries lost may be about to replace a
        member that has just received them by a bookie that lacks them.

        Raises:
            UnreadableError: a member does not run, or no bookie has the entries.
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
        if copied:  # a worker that is about to list them as lost, and to replace a member, must read the metadata again
            if not change_version(self._store, ledger, stored.version):
                raise UnreadableError(ledger, "its metadata were changed while lost entries were copied")
            remove_lost(self._store, ledger, copied)
            self.counters.found += len(copied)
            where = f"found on {', '.join(returned)}" if returned else "found"
            logger.warning("ledger %d: %d lost entries were %s", ledger, len(copied), where)
        if len(copied) < len(entries):
            raise UnreadableError(ledger, f"{len(entries) - len(copied)} lost entries were not found")

    # ---- attempts -------------------------------------------------------------------------------------------

    def _attempt(self, ledger: int, bookie: str, repair: Callable[[], None]) -> None:
        """Run a repair, unless it waits for its next attempt. Failed repairs are retried with exponential back-off."""
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
        """Run a repair and wait for its end. Raises UnreadableError."""
        repaired: MemberRepaired = self._runtime.wait(run_machine(machine.ledger, machine, self._runtime))
        self.counters.entries += repaired.entries
        self.counters.bytes += repaired.bytes
        return repaired


def _entries_of(ranges: Iterable[LostRange], metadata: LedgerMetadata) -> npt.NDArray[np.int64]:
    """Return the entries of ranges, ascending.

    Ranges are cut at the end of the ledger; if it is not closed, at the beginning of its last fragment.
    """
    stop = metadata.last_entry + 1 if metadata.state is State.CLOSED else metadata.last_fragment.first
    parts = [np.arange(lost.start, min(lost.stop, stop), lost.step, dtype=np.int64) for lost in ranges]
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
