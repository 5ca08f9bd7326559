"""What an applier hands out next, in which order groups commit, when it ends: decisions only, no I/O, no clock.

A *group* is a run of entries, applied in one transaction. Groups follow each other without a gap. Several may be in
flight, on one worker each; they are prepared side by side and committed in the order of the log, so that what is
applied is a prefix of the log at any moment (MySQL's replica_preserve_commit_order). A group waits for those before it
that have a key in common with it (MySQL's write sets): records of one key are applied in order.

That a group fails counts in its turn, too: all before it is applied then. Those behind it are doomed: they are rolled
back. Its entries are handed out one by one, which either works (the trouble was a passing one) or finds the entry to
name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from pyreplog.errors import InvalidArgumentError, ReplogError
from pyreplog.ha.relay.position import Advance, Applied

NEVER = 1 << 62


class ApplierState(StrEnum):
    """What an applier does: STOPPED by command, RUNNING, FINISHED at its `until_…`, or FAILED with an error."""

    STOPPED = "stopped"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class StopBefore(NamedTuple):
    """Where to end: before this entry number, before the first record appended at or after this time (us)."""

    entry: int = NEVER
    time_us: int = NEVER


class Times(Protocol):
    """Ascending numbers: a list, or a column of a batch."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


class Allowance(NamedTuple):
    """How many records may be handed out now, and, if that is none, after how many microseconds to ask again."""

    records: int
    wait_us: int | None = None


@dataclass(eq=False, slots=True)
class ApplyGroup:
    """keys: of its records, None among them for those without one. doomed: one before it failed; to be rolled back."""

    advance: Advance
    keys: frozenset[bytes | None]
    doomed: bool = False

    @property
    def entries(self) -> int:
        return self.advance.after.entry - self.advance.before.entry


class ApplierMachine:
    """The state of one applier. Every method is an event or a question; none waits.

    applied: all before it is applied and stored. next: what is handed out next; between the two lies what is in flight.
    """

    def __init__(self, applied: Applied, *, workers: int, batch_entries: int, delay_us: int) -> None:
        self.applied = self.next = applied
        self.state = ApplierState.STOPPED
        self.error: ReplogError | None = None
        self.retried = 0  # groups that failed, and then were handed out one by one
        self._workers, self._batch_entries, self._delay_us = workers, batch_entries, delay_us
        self._until = StopBefore()
        self._alone_until = 0  # entries before this one are handed out one by one
        self._groups: deque[ApplyGroup] = deque()

    # ---- commands -------------------------------------------------------------------------------------------

    def start(self, applied: Applied, until: StopBefore) -> None:
        """Go on behind what the store says is applied. Nothing is in flight."""
        self.state, self.error, self._until = ApplierState.RUNNING, None, until
        self.applied = self.next = applied

    def stop(self) -> None:
        """Hand out nothing more; what is in flight commits, so that no gap is left."""
        if self.state is ApplierState.RUNNING:
            self.state = ApplierState.STOPPED

    def check_skip(self, entry: int) -> None:
        """Only the next entry may be skipped, by its number, while nothing runs. InvalidArgumentError."""
        if self.state is ApplierState.RUNNING or self._groups:
            raise InvalidArgumentError(f"entry {entry} cannot be skipped while the applier runs; stop it first")
        if entry != self.applied.entry:
            raise InvalidArgumentError(f"entry {entry} cannot be skipped: the next one is {self.applied.entry}")

    def skipped(self, after: Applied) -> None:
        """The next entry was skipped, and that is stored."""
        self.applied = self.next = after
        if self.state is ApplierState.FAILED:
            self.state, self.error = ApplierState.STOPPED, None

    # ---- handing out ----------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Groups handed out and neither committed nor rolled back."""
        return len(self._groups)

    @property
    def has_room(self) -> bool:
        """Whether another group may be handed out; not while any of those in flight is to be rolled back."""
        doomed = bool(self._groups) and self._groups[-1].doomed
        return self.state is ApplierState.RUNNING and len(self._groups) < self._workers and not doomed

    def limit(self) -> int:
        """How many entries the next group may have; 0: it ends here."""
        left = self._until.entry - self.next.entry
        if left <= 0:
            self._finish()
            return 0
        return min(1 if self.next.entry < self._alone_until else self._batch_entries, left)

    def allow(self, times: Times, now_us: int) -> Allowance:
        """How many of the records at hand may be handed out. times: when they were appended (us), ascending; now_us: on
        the same clock."""
        before_end = bisect_left(times, self._until.time_us)
        if not before_end:
            self._finish()
            return Allowance(0)
        if not self._delay_us:
            return Allowance(before_end)
        old_enough = bisect_right(times, now_us - self._delay_us)
        if not old_enough:
            return Allowance(0, int(times[0]) + self._delay_us - now_us)
        return Allowance(min(before_end, old_enough))

    def conflicts(self, keys: frozenset[bytes | None]) -> bool:
        """Whether a group in flight has one of these keys: records of a key are applied in order."""
        return any(not keys.isdisjoint(group.keys) for group in self._groups)

    def take(self, after: Applied, keys: frozenset[bytes | None]) -> ApplyGroup:
        """Hand out the records up to `after`."""
        group = ApplyGroup(Advance(self.next, after), keys)
        self._groups.append(group)
        self.next = after
        return group

    def _finish(self) -> None:
        if self.state is ApplierState.RUNNING:
            self.state = ApplierState.FINISHED

    # ---- what became of groups ------------------------------------------------------------------------------

    def is_turn(self, group: ApplyGroup) -> bool:
        """Whether a group may commit: all before it have."""
        return not group.doomed and self._groups[0] is group

    def committed(self, group: ApplyGroup) -> None:
        """It is applied, and its position stored."""
        self._groups.popleft()
        self.applied = group.advance.after

    def rolled_back(self, group: ApplyGroup) -> None:
        """It is undone. It may have been taken off already."""
        if group in self._groups:
            self._groups.remove(group)

    def failed(self, group: ApplyGroup, error: ReplogError) -> None:
        """In its turn, the callback refused it, and it is undone: its position is not stored.

        error: for the state, if this is final.
        """
        self.rolled_back(group)
        if group.doomed:  # the log, or the store, broke meanwhile
            return
        self._doom()
        if group.entries == 1:
            self.state, self.error = ApplierState.FAILED, error
            return
        self.retried += 1
        self.next, self._alone_until = group.advance.before, group.advance.after.entry
        if self.state is ApplierState.FINISHED:  # not yet, after all
            self.state = ApplierState.RUNNING

    def broken(self, error: ReplogError) -> None:
        """The log, or the store of the position, failed: nothing that has not committed may."""
        self._doom()
        if self.state is not ApplierState.FAILED:
            self.state, self.error = ApplierState.FAILED, error

    def _doom(self) -> None:
        for group in self._groups:
            group.doomed = True
