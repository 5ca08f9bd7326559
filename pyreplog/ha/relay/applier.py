"""Applier: applies what a receiver writes into a relay log, through a callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    OutOfRangeError,
    PositionError,
    ReadOnlyError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.ha.relay.applier_machine import NEVER, ApplierState, Until
from pyreplog.ha.relay.apply_pipeline import ApplyPipeline, NothingToApply
from pyreplog.ha.relay.apply_task import Apply, ApplyTask, in_two_phases
from pyreplog.ha.relay.config import ApplierConfig, ApplierSettings
from pyreplog.ha.relay.position import Applied, PositionStore
from pyreplog.ha.relay.relay_log_reader import RelayLogReader
from pyreplog.ha.relay.space_limit import PausableReceiver, SpaceLimit, landing_bytes
from pyreplog.ha.relay.stats import ApplierStats
from pyreplog.handles import Handle
from pyreplog.log.commitlog import CommitLog
from pyreplog.log.reader import LogReader
from pyreplog.purgatory import Purgatory

logger = logging.getLogger(__name__)

_APPLIED = "applied"
_SLICE_US = 200_000  # a thread that sleeps on the log looks up this often
_NUDGE_S = 0.005
_DELAY_SLICE_US = 1_000_000  # wall clocks are set: a delay is looked at again


class Applier(Handle):
    """Hands the entries of a relay log to a callback, in order, batch by batch, and keeps how far it is.

    Receiving and applying are apart: who fills the relay log never waits for the callback, but for space.

    relay: the log that a receiver fills, open in this process. It stays the caller's to close, after the applier.
    apply: called as `apply(batch, advance)`; see `Apply`. It must not keep the batch's views longer than it needs: they
        hold a segment of the relay log.
    store: SqlPosition (exactly once) or PositionFile (at least once).
    start: the first entry to be applied when nothing is stored; must be given if the relay log begins behind entry 0.
    receiver: is told to pause and to resume when there is a space limit.
    settings: those of ApplierConfig.

    A batch that the callback refuses, by any Exception, is handed out again entry by entry: that gets over a trouble
    that passes, and finds the entry to name otherwise. Then the applier has failed: `error` says where, receiving goes
    on, and nothing happens until `start` (to try again) or `skip`.

    Any thread may call anything; asyncio code awaits what `applied` returns. The callback runs in threads of the
    applier's own, one per worker.
    Errors: ReadOnlyError, the log was opened for reading; TrimmedError, the relay log begins behind what is to be
    applied; PositionError, the stored position is of another log; those of the store; ConfigError;
    InvalidArgumentError.
    """

    def __init__(
        self, relay: CommitLog, apply: Apply, store: PositionStore, *, start: int | None = None,
        receiver: PausableReceiver | None = None, clock: Clock | None = None, **settings: Unpack[ApplierSettings],
    ) -> None:  # fmt: skip
        self.config = ApplierConfig.of(settings)
        if isinstance(relay, LogReader):
            raise ReadOnlyError(
                f"{relay.path} was opened for reading: an applier removes what is applied: it "
                "needs the handle that writes the log, a Relay's or that of pyreplog.open without a mode"
            )
        segment_bytes = relay.stats().segment_bytes
        self._check_settings(apply, 2 * segment_bytes + landing_bytes(segment_bytes))
        self._relay = relay
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._changed = threading.Condition()  # the machine's lock
        self._commands = threading.Lock()  # one command at a time
        self._threads: list[threading.Thread] = []
        self._watching = False  # a thread sleeps until the log grows
        self._told: ReplogError | None = None  # the failure that was logged last
        self._purgatory = Purgatory()
        space = SpaceLimit(self.config.space_limit_bytes, segment_bytes, receiver)
        source = RelayLogReader(relay, self.config.batch_bytes)
        self._pipeline = ApplyPipeline(source, apply, store, space, self.config, start)
        self._machine = self._pipeline.machine
        self.landed(relay.tail.end)
        self._purgatory.advance(_APPLIED, self._machine.applied.entry)
        super().__init__(f"applier of {relay.path}")

    def _check_settings(self, apply: Apply, least: int) -> None:
        limit = self.config.space_limit_bytes
        if limit is not None and limit < least:
            raise InvalidArgumentError(f"space_limit_bytes: expected at least two segments, {least}, found {limit}")
        if self.config.workers > 1 and not in_two_phases(apply):
            raise InvalidArgumentError("several workers need a generator function that yields before it commits")

    # ---- commands -------------------------------------------------------------------------------------------

    def start(self, *, until_entry: int | None = None, until_time_us: int | None = None) -> None:
        """Apply, from what is stored on.

        until_entry: end before this entry. until_time_us: end before the first entry that was appended at or after
        this time (microseconds since the epoch); until one comes, the applier waits for it.
        Errors: InvalidArgumentError, it runs; those of the store.
        """
        until = Until(*(NEVER if end is None else end for end in (until_entry, until_time_us)))
        with self._at_rest():
            with self._changed:
                self._check_open()  # again: close does not wait for this command
                self._pipeline.start(until)
            self._purgatory.reset(_APPLIED)
            self._purgatory.advance_and_drain(_APPLIED, self._machine.applied.entry)
            self._spawn()

    def _spawn(self) -> None:
        names = (f"pyreplog-apply-{number}" for number in range(self.config.workers))
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Hand out nothing more, and wait for the batches in flight (in the callback itself: do not wait)."""
        self._check_open()
        self._halt()

    def skip(self, entry: int) -> None:
        """Count the next entry as applied without applying it, durably. Only by its number, while nothing runs.

        Errors: InvalidArgumentError; PositionError; those of the store and of CommitLog.read.
        """
        with self._at_rest():
            with self._changed:
                self._pipeline.skip(entry)
            self._purgatory.advance_and_drain(_APPLIED, self._machine.applied.entry)

    def landed(self, position: int) -> None:
        """To be called by the receiver when the relay log ends at `position`, after each frame: judges the space limit.

        Calls the receiver's `pause` at once, when that is due. Never blocks for the callback. What was applied before,
        and comes again into a new relay log, is removed as it comes.
        """
        applied = self._machine.applied
        if self._relay.end < applied.entry:
            self._pipeline.purge(applied)
        self._pipeline.space.landed(position, self._relay.end)

    # ---- progress -------------------------------------------------------------------------------------------

    @property
    def state(self) -> ApplierState:
        """What it does now; "finished" and "stopped" while batches are still in flight, too."""
        return self._machine.state

    @property
    def error(self) -> ReplogError | None:
        """Why it has failed: ApplyError names entry and position; else the relay log or the store has."""
        return self._machine.error

    @property
    def position(self) -> Applied:
        """All before it is applied, and stored."""
        return self._machine.applied

    def applied(self, entry: int) -> AppendFuture[int]:
        """An AppendFuture that completes, with `entry`, when that entry is applied; for `await`, or `result(timeout)`.

        It fails with `error` when the applier fails, with ClosedError when it is closed.
        """
        self._check_open()
        future = AppendFuture(entry)
        self._purgatory.watch(_APPLIED, entry + 1, future)
        return future

    def wait_applied(self, entry: int, timeout: float | None = None) -> None:
        """Wait until an entry is applied. Errors: as `applied`; OutcomeUnknownError after `timeout` seconds."""
        self._check_open()
        watch = self._purgatory.watch(_APPLIED, entry + 1, AppendFuture(entry))
        try:
            watch.future.result(timeout)
        finally:
            if not watch.future.done():
                self._purgatory.cancel(watch)

    def wait_ended(self, timeout: float | None = None) -> ApplierState:
        """Wait until the applier has ended and nothing is in flight, at most `timeout` seconds; its state then."""
        machine = self._machine
        with self._changed:
            self._changed.wait_for(lambda: machine.state is not ApplierState.RUNNING and not machine.in_flight, timeout)
            return machine.state

    def stats(self) -> ApplierStats:
        """Where it stands now."""
        self._check_open()
        relay, space, machine = self._relay, self._pipeline.space, self._machine
        applied, tail = machine.applied, relay.tail
        return ApplierStats(
            state=machine.state.value,
            error="" if machine.error is None else str(machine.error),
            received_entry=tail.end_entry,
            received_position=tail.end,
            visible_entry=relay.end,
            applied_entry=applied.entry,
            applied_position=applied.position,
            lag_entries=max(tail.end_entry - applied.entry, 0),
            lag_bytes=max(tail.end - applied.position, 0),
            lag_us=self._lag_us(applied.entry),
            relay_bytes=tail.end - relay.start_position,
            space_limit_bytes=self.config.space_limit_bytes,
            paused=space.paused,
            pauses=space.pauses,
            in_flight=machine.in_flight,
            retried=machine.retried,
        )

    def _lag_us(self, entry: int) -> int:
        try:
            return max(self._clock.now_us() - self._relay.get(entry).timestamp, 0)
        except OutOfRangeError:  # nothing waits; or it was applied, and purged, this moment
            return 0

    # ---- the threads ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        task: ApplyTask | None = None
        try:
            while (task := self._next()) is not None:
                task.prepare()
                self._finish(task)
        except BaseException as error:
            self._break(error, task)

    def _next(self) -> ApplyTask | None:
        """The next group, waited for; None when the applier has ended."""
        with self._changed:
            while self._machine.state is ApplierState.RUNNING or self._machine.in_flight:
                visible = self._relay.tail.visible
                found = self._pipeline.take(self._clock.now_us())
                if isinstance(found, ApplyTask):
                    self._changed.notify_all()
                    return found
                self._pause(found, visible)
            self._changed.notify_all()
            return None

    def _pause(self, wait: NothingToApply, visible: int) -> None:
        """Give the lock away until something may have changed. One thread watches the log for all."""
        if wait.us is not None:
            self._changed.wait(min(wait.us, _DELAY_SLICE_US) / 1e6)
        elif not wait.data or self._watching:
            # `take` may have come to the end
            if self._machine.state is ApplierState.RUNNING or self._machine.in_flight:
                self._changed.wait()
        else:
            self._watching = True
            self._changed.release()
            try:
                self._relay.tail.wait_for(visible, _SLICE_US)
            finally:
                self._changed.acquire()
                self._watching = False

    def _finish(self, task: ApplyTask) -> None:
        """Commit it in its turn, or undo it."""
        if not self._await_turn(task):
            self._undo(task)
            return
        try:
            self._pipeline.commit(task)
        except Exception as error:
            self._refused(task, error)
        else:
            self._committed(task)

    def _await_turn(self, task: ApplyTask) -> bool:
        """False: it never comes."""
        with self._changed:
            self._changed.wait_for(lambda: task.group.doomed or self._machine.is_turn(task.group))
            return not task.group.doomed

    def _undo(self, task: ApplyTask) -> None:
        try:
            task.roll_back()
        except Exception:
            logger.exception("%s: the callback raised while it was rolled back", self._what)
        with self._changed:
            self._machine.rolled_back(task.group)
            self._changed.notify_all()

    def _committed(self, task: ApplyTask) -> None:
        applied = task.group.advance.after
        try:
            self._pipeline.purge(applied)
        finally:
            with self._changed:
                self._machine.committed(task.group)
                self._changed.notify_all()
            self._purgatory.advance_and_drain(_APPLIED, applied.entry)

    def _refused(self, task: ApplyTask, error: Exception) -> None:
        """The callback raised. Its transaction may have committed all the same: the store says so."""
        try:
            committed = self._pipeline.has_committed(task)
        except Exception as unknown:
            logger.error("%s: whether entries were applied is unknown: %s", self._what, unknown)
            self._break(error, task)
            return
        if committed:
            self._committed(task)
        elif isinstance(error, PositionError):
            self._break(error, task)
        else:
            with self._changed:
                self._machine.failed(task.group, task.refused(error))
                self._changed.notify_all()
            self._tell_failure()

    def _break(self, error: BaseException, task: ApplyTask | None) -> None:
        """Not the entry's fault: the log, the store, or what is no Exception."""
        cause = error
        if not isinstance(error, ReplogError):
            error = PositionError(f"the applier has ended by {type(error).__name__}: {error}")
            error.__cause__ = cause
        with self._changed:
            self._machine.broken(error)
            if task is not None:
                self._machine.rolled_back(task.group)
            self._changed.notify_all()
        self._tell_failure()

    def _tell_failure(self) -> None:
        error = self._machine.error
        if error is not None and error is not self._told:
            self._told = error
            logger.error("%s: %s", self._what, error)
            self._purgatory.fail(_APPLIED, error)

    # ---- ending ---------------------------------------------------------------------------------------------

    def _halt(self) -> None:
        with self._changed:
            self._machine.stop()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            self._relay.tail.wake()
        else:
            self._join()

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """For a command: one at a time, when nothing runs. InvalidArgumentError when something does; ClosedError."""
        self._check_open()
        if threading.current_thread() in self._threads:
            raise InvalidArgumentError(f"the {self._what} cannot be commanded by its own callback, except to stop")
        with self._commands:
            if self._machine.state is ApplierState.RUNNING:
                raise InvalidArgumentError(f"the {self._what} runs; stop it first")
            self._join()
            yield

    def _join(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                if self._watching:  # it may be falling asleep this moment
                    self._relay.tail.wake()
                thread.join(_NUDGE_S if self._watching else None)

    def _let_go(self) -> None:
        self._halt()
        self._purgatory.fail(_APPLIED, ClosedError(f"the {self._what} was closed"))
