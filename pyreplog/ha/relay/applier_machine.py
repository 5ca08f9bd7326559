"""ApplierMachine: decides which entries are applied next, in which order groups commit, and when the applier ends.

It does no I/O and has no clock. A *group* is a run of entries that are applied in one transaction. Groups follow each
other without a gap. Several may be in flight, each on one worker. They are prepared concurrently and committed in the
order of the log, so that a prefix of the log is applied at any time (MySQL's replica_preserve_commit_order). A group
waits for earlier groups with a key in common (MySQL's write sets): the records of a key are applied in order.

The failure of a group also counts in its turn only: then all earlier groups are applied. Later groups are doomed, and
rolled back. The entries of the failed group are handed out one by one. Either that succeeds, because the failure was
temporary, or it finds the entry that the error names.
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
    """The state of an applier: STOPPED by a command, RUNNING, FINISHED at its `until_…`, or FAILED with an error."""

    STOPPED = "stopped"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class StopBefore(NamedTuple):
    """Where an applier ends: before an entry, or before the first record appended at a time or later, microseconds."""

    entry: int = NEVER
    time_us: int = NEVER


class Times(Protocol):
    """Ascending times: a list, or a column of a batch."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


class Allowance(NamedTuple):
    """How many records may be handed out now; if none, after how many microseconds to ask again."""

    records: int
    wait_us: int | None = None


@dataclass(eq=False, slots=True)
class ApplyGroup:
    """A group of entries. keys: of its records; None for records without a key. doomed: an earlier group failed, and
    this one must be rolled back."""

    advance: Advance
    keys: frozenset[bytes | None]
    doomed: bool = False

    @property
    def entries(self) -> int:
        return self.advance.after.entry - self.advance.before.entry


class ApplierMachine:
    """The state of one applier. No method waits.

    Attributes:
        applied: the applied position, which is stored.
        next: position of the next group. The entries between the two positions are in flight.
    """

    def __init__(self, applied: Applied, *, workers: int, batch_entries: int, delay_us: int) -> None:
        self.applied = self.next = applied
        self.state = ApplierState.STOPPED
        self.error: ReplogError | None = None
        self.retried = 0  # groups that failed, and whose entries were then handed out one by one
        self._workers, self._batch_entries, self._delay_us = workers, batch_entries, delay_us
        self._until = StopBefore()
        self._alone_until = 0  # entries before this one are handed out one by one
        self._groups: deque[ApplyGroup] = deque()

    # ---- commands -------------------------------------------------------------------------------------------

    def start(self, applied: Applied, until: StopBefore) -> None:
        """Start behind the stored position, with no group in flight."""
        self.state, self.error, self._until = ApplierState.RUNNING, None, until
        self.applied = self.next = applied

    def stop(self) -> None:
        """Hand out no more groups. Those in flight are committed, so that they leave no gap."""
        if self.state is ApplierState.RUNNING:
            self.state = ApplierState.STOPPED

    def check_skip(self, entry: int) -> None:
        """Raise InvalidArgumentError unless `entry` is the next one, and nothing runs."""
        if self.state is ApplierState.RUNNING or self._groups:
            raise InvalidArgumentError(f"entry {entry} cannot be skipped while the applier runs; stop it first")
        if entry != self.applied.entry:
            raise InvalidArgumentError(f"entry {entry} cannot be skipped: the next one is {self.applied.entry}")

    def skipped(self, after: Applied) -> None:
        """Report that the next entry was skipped, and the new position stored."""
        self.applied = self.next = after
        if self.state is ApplierState.FAILED:
            self.state, self.error = ApplierState.STOPPED, None

    # ---- handing out ----------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of groups that were handed out, and neither committed nor rolled back."""
        return len(self._groups)

    @property
    def has_room(self) -> bool:
        """Whether another group may be handed out. False while doomed groups are in flight."""
        doomed = bool(self._groups) and self._groups[-1].doomed
        return self.state is ApplierState.RUNNING and len(self._groups) < self._workers and not doomed

    def limit(self) -> int:
        """Return how many entries the next group may have; 0: the applier ends here."""
        left = self._until.entry - self.next.entry
        if left <= 0:
            self._finish()
            return 0
        return min(1 if self.next.entry < self._alone_until else self._batch_entries, left)

    def allow(self, times: Times, now_us: int) -> Allowance:
        """Return how many of the next records may be handed out.

        Args:
            times: when they were appended, microseconds, ascending.
            now_us: the time now, by the same clock.
        """
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
        """Return whether a group in flight has one of these keys: the records of a key are applied in order."""
        return any(not keys.isdisjoint(group.keys) for group in self._groups)

    def take(self, after: Applied, keys: frozenset[bytes | None]) -> ApplyGroup:
        """Hand out the records up to `after` as a group."""
        group = ApplyGroup(Advance(self.next, after), keys)
        self._groups.append(group)
        self.next = after
        return group

    def _finish(self) -> None:
        if self.state is ApplierState.RUNNING:
            self.state = ApplierState.FINISHED

    # ---- outcomes of groups ---------------------------------------------------------------------------------

    def is_turn(self, group: ApplyGroup) -> bool:
        """Return whether a group may commit, because all earlier groups have committed."""
        return not group.doomed and self._groups[0] is group

    def committed(self, group: ApplyGroup) -> None:
        """Report that a group is applied, and its position stored."""
        self._groups.popleft()
        self.applied = group.advance.after

    def rolled_back(self, group: ApplyGroup) -> None:
        """Report that a group was rolled back; it may have been removed already."""
        if group in self._groups:
            self._groups.remove(group)

    def failed(self, group: ApplyGroup, error: ReplogError) -> None:
        """Report that the callback raised in the group's turn, and was undone: its position is not stored.

        error: error of the applier, if the entries are not retried one by one.
        """
        self.rolled_back(group)
        if group.doomed:  # the log or the store has failed meanwhile
            return
        self._doom()
        if group.entries == 1:
            self.state, self.error = ApplierState.FAILED, error
            return
        self.retried += 1
        self.next, self._alone_until = group.advance.before, group.advance.after.entry
        if self.state is ApplierState.FINISHED:  # the end was reached too early: entries are retried
            self.state = ApplierState.RUNNING

    def broken(self, error: ReplogError) -> None:
        """Report that the log or the store failed: no group commits any more."""
        self._doom()
        if self.state is not ApplierState.FAILED:
            self.state, self.error = ApplierState.FAILED, error

    def _doom(self) -> None:
        for group in self._groups:
            group.doomed = True
