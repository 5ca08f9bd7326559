"""Simulation of an applier in one thread, from a seed: crashes at any step, restarts, refusals, stops and delays.

`Schedule(seed, crash_at=n).run()` crashes once, at the n-th step on the disk or in the database, and then runs to the
end. BrokenInvariantError names the invariant that did not hold.
"""

from __future__ import annotations

from random import Random
from typing import Any

from pyreplog import ManualClock
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.ha.relay import Applier, ApplierState, refetch_from
from pyreplog.ha.relay.apply_task import ApplyTask

from .model import (
    SEGMENT,
    SEGMENT_BYTES,
    STRIDE,
    BrokenInvariantError,
    Callback,
    Crash,
    Disk,
    Record,
    Relay,
    Steps,
    Store,
    demand,
)

ENTRIES, BATCH = 40, 3
LIMIT_BYTES = 3 * SEGMENT_BYTES
TURNS_MAX = 4000


class Stepped(Applier):
    """An applier without threads: the schedule runs their steps."""

    def _spawn(self) -> None:
        return

    def vanish(self) -> None:
        """Abandon the applier, as a process that was killed does."""
        self._error = ClosedError("crashed")


class Schedule:
    """Runs on one disk, each ended by a crash, until all entries are applied."""

    def __init__(self, seed: int, *, exactly_once: bool, crash_at: int | None = None) -> None:
        self._rng = rng = Random(f"applier {seed} {exactly_once}")
        self.exactly_once = exactly_once
        self.workers = rng.choice((1, 1, 2, 4))
        self._delay_s = rng.choice((0, 0, 3))
        self._limited = rng.random() < 0.5
        self._uncommitted = rng.choice(((0,), (0,), (0, 3, 9, 25)))  # how many received entries may be uncommitted
        self._clock = ManualClock(10**15)
        self._keys = rng.choice((1, 3, 20))
        self.master: list[Record] = []
        self.refuses = {n: rng.choice((1, 1, 2, 3)) for n in range(ENTRIES) if rng.random() < 0.1}
        self.steps = Steps(crash_at)
        self.disk = Disk()
        self.paused = False
        self.lives = self.failures = self.most_in_flight = 0
        self.applier: Stepped | None = None
        self._checked = -1, -1

    # ---- a life -----------------------------------------------------------------------------------------------

    def _begin_life(self, *, lost: int) -> None:
        """Start the applier again. lost: how many of the received entries a power cut removed."""
        self.lives += 1
        self.taken: list[ApplyTask] = []
        self.prepared: list[ApplyTask] = []
        self.paused = False
        store = Store(self.disk, self.steps, transactional=self.exactly_once)
        self._relay = self._relay_after(store, lost)
        self._relay.purged = lambda entry: self._purged(store, entry)
        callback = Callback(self.disk, self.steps, exactly_once=self.exactly_once, refuses=self.refuses)
        callback.check = self._check_due
        self._until = ENTRIES
        self.applier = Stepped(
            self._relay, callback.apply if self.workers == 1 else callback.apply_in_two, store,
            clock=self._clock, receiver=self, workers=self.workers, batch_entries=BATCH, delay_ms=self._delay_s * 1000,
            space_limit_bytes=LIMIT_BYTES if self._limited else None,
        )  # fmt: skip

    def _relay_after(self, store: Store, lost: int) -> Relay:
        """Return the relay log after a restart: discarded and received again from the applied position, or the former
        one without the entries that a power cut removed."""
        applied = store.load()
        if self.lives == 1 or self._rng.random() < 0.5:
            start = refetch_from(applied, SEGMENT_BYTES) // STRIDE
            return Relay(self.master, start, self.steps)
        relay = Relay(self.master, self._relay.start, self.steps)
        relay.received_end = max(self._relay.received_end - lost, relay.start)
        relay.end = min(self._relay.end, relay.received_end)
        return relay

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # ---- what must hold -----------------------------------------------------------------------------------------

    def _purged(self, store: Store, entry: int) -> None:
        applied = store.load()
        demand(applied is not None and entry <= applied.entry, "PurgedOnlyApplied", f"up to {entry}, {applied}")

    def _check_due(self, record: Record) -> None:
        demand(record.entry < self._until, "UntilHolds", f"{record.entry} is applied, until {self._until}")
        age = self._clock.now_us() - record.timestamp
        demand(age >= self._delay_s * 1_000_000, "DelayHolds", f"{record.entry} is {age} us old")

    def check(self) -> None:
        used = self._relay.tail.end - self._relay.start_position
        holds = not self._limited or used <= LIMIT_BYTES or self._uncommitted != (0,)
        demand(holds, "LimitHolds", f"{used} bytes, {LIMIT_BYTES} allowed")
        stored, so_far = max(self._stored(), 0), self.disk.applied_to
        if self._checked == (stored, len(self.disk.rows)):
            return
        self._checked = stored, len(self.disk.rows)
        done = {*self.disk.rows, *self.disk.skipped}
        demand(done == set(range(so_far)), "NothingSkipped", f"{sorted(done)} are applied, {stored} is stored")
        if self.exactly_once:
            rows = [n for n in range(stored) if n not in self.disk.skipped]
            demand(self.disk.rows == rows, "ExactlyOnce", f"{stored} is stored, the rows are {self.disk.rows}")
        else:
            demand(stored <= so_far <= stored + BATCH, "AtLeastOnce", f"{stored} is stored, {so_far} are applied")

    # ---- turns --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._live()
        for _ in range(TURNS_MAX):
            if self._stored() == ENTRIES and not self._machine.in_flight:
                self.applier.vanish()
                return
            try:
                self._turn()
            except Crash:
                self._live()
            self.check()
        self.applier.vanish()
        demand(False, "EverythingIsApplied", f"{self.disk.applied_to} of {ENTRIES}, {self.applier.stats()}")

    def _stored(self) -> int:
        stored = self.disk.row if self.exactly_once else self.disk.file
        return -1 if stored is None else stored.entry

    def _live(self) -> None:
        """Restart until a restart does not crash."""
        while True:
            if self.applier is not None:
                self.applier.vanish()
            try:
                self._begin_life(lost=self._rng.choice((0, 0, 2, 7)))
                return
            except Crash:
                continue

    def _turn(self) -> None:
        turn = self._rng.choice((self._receive, self._receive, self._work, self._work, self._work, self._command))
        turn()

    def _receive(self) -> None:
        self._clock.advance(self._rng.choice((0, 500_000, 2_000_000)))
        if len(self.master) < ENTRIES:
            key = b"key %d" % self._rng.randrange(self._keys)
            self.master.append(Record(len(self.master), key, self._clock.now_us()))
        for _ in range(self._rng.randint(0, 3)):
            if not self.paused and self._relay.received_end < len(self.master):
                self._relay.received_end += 1
                self._show(self._relay.received_end - self._rng.choice(self._uncommitted))
                self.applier.note_received(self._relay.tail.end)
        if not self.paused and self._relay.received_end == ENTRIES:
            self._show(ENTRIES)

    def _show(self, entry: int) -> None:
        """Move the commit point. It follows the records in the stream, so a receiver that is paused does not get it."""
        self._relay.end = max(self._relay.end, entry)

    def _work(self) -> None:
        """Run the next step of one of the applier's threads."""
        if len(self.taken) + len(self.prepared) < self.workers and self._rng.random() < 0.5:
            if self.applier.state is ApplierState.RUNNING:
                self._take()
            return
        if self.taken and self._rng.random() < 0.5:
            task = self.taken.pop(self._rng.randrange(len(self.taken)))
            task.prepare()
            self.prepared.append(task)
            return
        ready = [task for task in self.prepared if task.group.doomed or self._machine.is_turn(task.group)]
        if ready:
            task = self._rng.choice(ready)
            self.prepared.remove(task)
            self.applier._finish(task)

    @property
    def _machine(self) -> Any:
        return self.applier._machine

    def _take(self) -> None:
        taken_items = self.applier._pipeline.take(self._clock.now_us())
        if isinstance(taken_items, ApplyTask):
            self.most_in_flight = max(self.most_in_flight, self._machine.in_flight)
            self.taken.append(taken_items)

    def _command(self) -> None:
        """Stop the applier, start it, or skip an entry."""
        applier = self.applier
        if applier.state is ApplierState.RUNNING:
            if self._rng.random() < 0.1:
                applier.stop()
            return
        if self._machine.in_flight:
            return
        if applier.state is ApplierState.FAILED:
            self.failures += 1
            self._judge_failure(applier.error)
            if self._rng.random() < 0.5:
                self._skip(applier.position.entry)
        self._until = self._rng.choice((ENTRIES, ENTRIES, applier.position.entry + self._rng.randint(0, 6)))
        applier.start(until_entry=self._until)

    def _judge_failure(self, error: ReplogError | None) -> None:
        entry = getattr(error, "entry", None)
        demand(entry == self.applier.position.entry, "TheEntryIsNamed", f"{error!r} at {self.applier.position.entry}")

    def _skip(self, entry: int) -> None:
        try:
            self.applier.skip(entry)
        finally:  # an entry counts as skipped also if the process crashes after storing that
            if self._stored() > entry:
                self.disk.skip(entry)


def explore(seed: int, *, exactly_once: bool, stride: int = 1) -> int:
    """Run a schedule without a crash, then with a crash at each step, or at each `stride`-th one from a random first
    one.

    Return the number of steps. An AssertionError names the schedule that broke an invariant.
    """
    steps = _run(seed, exactly_once, None)
    for step in range(1 + seed % stride, steps + 1, stride):
        _run(seed, exactly_once, step)
    return steps


def _run(seed: int, exactly_once: bool, crash_at: int | None) -> int:
    schedule = Schedule(seed, exactly_once=exactly_once, crash_at=crash_at)
    try:
        schedule.run()
    except BrokenInvariantError as error:
        raise AssertionError(f"Schedule({seed}, exactly_once={exactly_once}, crash_at={crash_at}): {error}") from error
    return schedule.steps.done


assert LIMIT_BYTES >= 2 * SEGMENT_BYTES and SEGMENT > 1
