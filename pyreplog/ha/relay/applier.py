"""Applier: applies the entries of a log through a callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

from pyreplog.arguments import as_int, as_microseconds
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    OutOfRangeError,
    PositionError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.ha.relay.applier_machine import NEVER, ApplierState, StopBefore
from pyreplog.ha.relay.apply_pipeline import ApplyPipeline, NothingToApply
from pyreplog.ha.relay.apply_task import Apply, ApplyTask, in_two_phases
from pyreplog.ha.relay.config import ApplierConfig, ApplierSettings
from pyreplog.ha.relay.position import Applied, PositionStore
from pyreplog.ha.relay.relay_log_reader import RelayLogReader
from pyreplog.ha.relay.space_limit import PausableReceiver, SpaceLimit, incoming_bytes
from pyreplog.ha.relay.stats import ApplierStats
from pyreplog.handles import Handle
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader
from pyreplog.purgatory import Purgatory
from pyreplog.times import Time

logger = logging.getLogger(__name__)

_APPLIED = "applied"
_SLICE_US = 200_000  # longest sleep of a thread that waits for the log to grow
_NUDGE_S = 0.005
_DELAY_SLICE_US = 1_000_000  # longest sleep for a delay, since wall clocks may be set


class Applier(Handle):
    """Hands the entries of a relay log to a function, in order and batch by batch, and keeps the applied position.

    Receiving and applying are separate: the receiver never waits for the function, except for space. A batch for which
    the function raises an Exception is handed out again entry by entry. That overcomes a temporary failure, or finds
    the entry that fails. In that case the applier has failed, `error` names the entry, receiving goes on, and nothing
    is applied until `start` (to try again) or `skip` is called.

    Any thread may call any method; coroutines await the future of `applied`. The function runs in threads of the
    applier, one for each worker. It must not keep views of a batch longer than it needs them, because they keep a
    segment of the relay log open.

    Args:
        relay: the log that a receiver fills, or any other log. If it is open for writing, segments whose entries are
            all applied are removed (`purge`). A log that is open for reading keeps them. Close it after the applier.
        apply: called as `apply(batch, advance)`; see `Apply`.
        store: stores the applied position: `SqlPosition` (exactly once) or `PositionFile` (at least once).
        start: number of the first entry to apply if no position is stored. Required if the relay log begins behind
            entry 0.
        cursor: name of a cursor of the log, which is created if missing. It protects entries that are not applied from
            the retention of the log's writer. None: retention alone decides.
        receiver: is paused and resumed if there is a space limit.
        clock: source of time; None: the clock of the machine.
        settings: fields of `ApplierConfig` as keywords.

    Raises:
        LockedError: another applier or reader has the cursor.
        TrimmedError: the relay log begins behind the entry to apply next.
        PositionError: the stored position belongs to another log.
        ConfigError: a setting is unknown or outside its bounds.
        InvalidArgumentError: the space limit is too small, or several workers need a generator function.

    Example:
        ```python
        def apply(batch, advance):
            for record in batch:
                print(record.entry, record.value)

        with Applier(node.log, apply, PositionFile("applied.pos")) as applier:
            applier.start()
            applier.wait_applied(41, timeout=10.0)
        ```

    See docs/relay.md.
    """

    def __init__(
        self, relay: CommitLog | LogReader, apply: Apply, store: PositionStore, *, start: int | None = None,
        cursor: str | None = None, receiver: PausableReceiver | None = None, clock: Clock | None = None,
        **settings: Unpack[ApplierSettings],
    ) -> None:  # fmt: skip
        self.config = ApplierConfig.of(settings)
        segment_bytes = relay.segment_bytes
        self._check_settings(apply, 2 * segment_bytes + incoming_bytes(segment_bytes))
        self._relay = relay
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._changed = threading.Condition()  # the machine's lock
        self._commands = threading.Lock()  # one command at a time
        self._threads: list[threading.Thread] = []
        self._watching = False  # whether a thread sleeps until the log grows
        self._logged_error: ReplogError | None = None  # the last failure that was logged
        self._purgatory = Purgatory()
        space = SpaceLimit(self.config.space_limit_bytes, segment_bytes, receiver)
        self._source = source = RelayLogReader(relay, self.config.batch_bytes)
        self._pipeline = ApplyPipeline(source, apply, store, space, self.config, start, cursor)
        self._machine = self._pipeline.machine
        self.note_received(source.received[0])
        self._purgatory.advance(_APPLIED, self._machine.applied.entry)
        super().__init__(f"applier of {relay.path}")

    def _check_settings(self, apply: Apply, least: int) -> None:
        limit = self.config.space_limit_bytes
        if limit is not None and limit < least:
            raise InvalidArgumentError(f"space_limit_bytes: expected at least two segments, {least}, found {limit}")
        if self.config.workers > 1 and not in_two_phases(apply):
            raise InvalidArgumentError(
                "workers: expected 1, or a generator function as apply that yields before it commits, found "
                f"{self.config.workers} and a function"
            )

    # ---- commands -------------------------------------------------------------------------------------------

    def start(self, *, until_entry: int | None = None, until_time: Time | None = None) -> None:
        """Start to apply, from the stored position on.

        Args:
            until_entry: end before this entry; None: no such end.
            until_time: end before the first entry that was appended at or after this time, a datetime with a time zone
                or microseconds since 1970-01-01 UTC. The applier waits for such an entry. None: no such end.

        Raises:
            WrongTypeError: an argument has another type.
            InvalidArgumentError: the applier runs already, or `until_time` has no time zone.
            ReplogError: the store failed.
        """
        until = StopBefore(
            NEVER if until_entry is None else as_int("until_entry", until_entry),
            NEVER if until_time is None else as_microseconds("until_time", until_time),
        )
        with self._while_stopped():
            with self._changed:
                self._check_open()  # again, because `close` does not wait for this command
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
        """Stop handing out batches, and wait for the batches in flight, unless the function itself calls it.

        Raises:
            ClosedError: the applier was closed.
        """
        self._check_open()
        self._halt()

    def skip(self, entry: int) -> None:
        """Count the next entry as applied without applying it, durably. Only while the applier does not run.

        Args:
            entry: number of the next entry; another number is refused.

        Raises:
            InvalidArgumentError: the applier runs, or another entry comes next.
            PositionError: the stored position was moved by another applier.
            ReplogError: the entry cannot be read, or the store failed.
        """
        with self._while_stopped():
            with self._changed:
                self._pipeline.skip(entry)
            self._purgatory.advance_and_drain(_APPLIED, self._machine.applied.entry)

    def note_received(self, position: int) -> None:
        """Report the end of the relay log. A receiver calls it after each frame.

        It checks the space limit, and pauses the receiver at once if necessary. It never waits for the function.

        Args:
            position: end of the relay log, bytes from the beginning of the log.
        """
        applied = self._machine.applied
        if self._relay.end < applied.entry:
            self._pipeline.purge(applied)
        self._pipeline.space.note_received(position, self._relay.end)

    # ---- progress -------------------------------------------------------------------------------------------

    @property
    def state(self) -> ApplierState:
        """The present state. With "finished" and "stopped", batches may still be in flight."""
        return self._machine.state

    @property
    def error(self) -> ReplogError | None:
        """Why the applier has failed; None: it has not failed.

        An ApplyError names the entry; other errors are those of the relay log or the store.
        """
        return self._machine.error

    @property
    def position(self) -> Applied:
        """The applied position: all earlier entries are applied, and the position is stored."""
        return self._machine.applied

    def applied(self, entry: int) -> AppendFuture[int]:
        """Return a future that completes when an entry is applied.

        Args:
            entry: number of the entry.

        Returns:
            An `AppendFuture` that gives `entry`. It fails with `error` if the applier fails, and with ClosedError if
                it is closed.

        Raises:
            ClosedError: the applier was closed.
        """
        self._check_open()
        future = AppendFuture(entry)
        self._purgatory.watch(_APPLIED, entry + 1, future)
        return future

    def wait_applied(self, entry: int, timeout: float | None = None) -> None:
        """Wait until an entry is applied.

        Args:
            entry: number of the entry.
            timeout: seconds to wait; None: without a limit.

        Raises:
            OutcomeUnknownError: the time ran out.
            ReplogError: the applier failed, or was closed.
        """
        self._check_open()
        watch = self._purgatory.watch(_APPLIED, entry + 1, AppendFuture(entry))
        try:
            watch.future.result(timeout)
        finally:
            if not watch.future.done():
                self._purgatory.cancel(watch)

    def wait_ended(self, timeout: float | None = None) -> ApplierState:
        """Wait until the applier has ended and no batch is in flight.

        Args:
            timeout: seconds to wait; None: without a limit.

        Returns:
            The state then; `ApplierState.RUNNING` if the time ran out.
        """
        machine = self._machine
        with self._changed:
            self._changed.wait_for(lambda: machine.state is not ApplierState.RUNNING and not machine.in_flight, timeout)
            return machine.state

    def stats(self) -> ApplierStats:
        """Return the state of the applier at this moment.

        Raises:
            ClosedError: the applier was closed.
        """
        self._check_open()
        relay, space, machine = self._relay, self._pipeline.space, self._machine
        applied, (position, entry) = machine.applied, self._source.received
        return ApplierStats(
            state=machine.state.value,
            error="" if machine.error is None else str(machine.error),
            received_entry=entry,
            received_position=position,
            visible_entry=relay.end,
            applied_entry=applied.entry,
            applied_position=applied.position,
            lag_entries=max(entry - applied.entry, 0),
            lag_bytes=max(position - applied.position, 0),
            lag_us=self._lag_us(applied.entry),
            relay_bytes=position - relay.start_position,
            space_limit_bytes=self.config.space_limit_bytes,
            paused=space.paused,
            pauses=space.pauses,
            in_flight=machine.in_flight,
            retried=machine.retried,
        )

    def _lag_us(self, entry: int) -> int:
        try:
            return max(self._clock.now_us() - self._relay.get(entry).timestamp, 0)
        except OutOfRangeError:  # all is applied; or the entry was just applied and purged
            return 0

    # ---- the threads ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        task: ApplyTask | None = None
        try:
            while (task := self._next()) is not None:
                task.prepare()
                self._finish(task)
        except BaseException as error:
            self._fail(error, task)

    def _next(self) -> ApplyTask | None:
        """Wait for the next group, and return it; None: the applier has ended."""
        with self._changed:
            while self._machine.state is ApplierState.RUNNING or self._machine.in_flight:
                visible = self._relay.end_position
                task = self._pipeline.take(self._clock.now_us())
                if isinstance(task, ApplyTask):
                    self._changed.notify_all()
                    return task
                self._wait_for_change(task, visible)
            self._changed.notify_all()
            return None

    def _wait_for_change(self, wait: NothingToApply, visible: int) -> None:
        """Release the lock until there may be a group. One thread watches the log for all of them."""
        if wait.us is not None:
            self._changed.wait(min(wait.us, _DELAY_SLICE_US) / 1e6)
        elif not wait.data or self._watching:
            # `take` may have ended the applier
            if self._machine.state is ApplierState.RUNNING or self._machine.in_flight:
                self._changed.wait()
        else:
            self._watching = True
            self._changed.release()
            try:
                self._relay.wait_growth(visible, _SLICE_US)
            finally:
                self._changed.acquire()
                self._watching = False

    def _finish(self, task: ApplyTask) -> None:
        """Commit a group in its turn, or roll it back."""
        if not self._await_turn(task):
            self._roll_back(task)
            return
        try:
            self._pipeline.commit(task)
        except Exception as error:
            self._on_apply_error(task, error)
        else:
            self._committed(task)

    def _await_turn(self, task: ApplyTask) -> bool:
        """Wait until a group may commit. Return False if it must be rolled back instead."""
        with self._changed:
            self._changed.wait_for(lambda: task.group.doomed or self._machine.is_turn(task.group))
            return not task.group.doomed

    def _roll_back(self, task: ApplyTask) -> None:
        try:
            task.roll_back()
        except Exception:
            logger.exception("%s: the callback raised while it was rolled back", self._label)
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

    def _on_apply_error(self, task: ApplyTask, error: Exception) -> None:
        """Handle an error of the callback. The store says whether its transaction has committed anyway."""
        try:
            committed = self._pipeline.has_committed(task)
        except Exception as unknown:
            logger.error("%s: whether entries were applied is unknown: %s", self._label, unknown)
            self._fail(error, task)
            return
        if committed:
            self._committed(task)
        elif isinstance(error, PositionError):
            self._fail(error, task)
        else:
            with self._changed:
                self._machine.failed(task.group, task.refused(error))
                self._changed.notify_all()
            self._report_failure()

    def _fail(self, error: BaseException, task: ApplyTask | None) -> None:
        """Fail the applier with an error that no entry causes: of the log, of the store, or a BaseException."""
        cause = error
        if not isinstance(error, ReplogError):
            error = PositionError(f"the applier has ended by {type(error).__name__}: {error}")
            error.__cause__ = cause
        with self._changed:
            self._machine.broken(error)
            if task is not None:
                self._machine.rolled_back(task.group)
            self._changed.notify_all()
        self._report_failure()

    def _report_failure(self) -> None:
        error = self._machine.error
        if error is not None and error is not self._logged_error:
            self._logged_error = error
            logger.error("%s: %s", self._label, error)
            self._purgatory.fail(_APPLIED, error)

    # ---- stopping -------------------------------------------------------------------------------------------

    def _halt(self) -> None:
        with self._changed:
            self._machine.stop()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            self._relay.wake()
        else:
            self._join()

    @contextmanager
    def _while_stopped(self) -> Iterator[None]:
        """Run a command, one at a time, while the applier does not run. Raises InvalidArgumentError if it runs, and
        ClosedError."""
        self._check_open()
        if threading.current_thread() in self._threads:
            raise InvalidArgumentError(f"the {self._label} cannot be commanded by its own callback, except to stop")
        with self._commands:
            if self._machine.state is ApplierState.RUNNING:
                raise InvalidArgumentError(f"the {self._label} runs; stop it first")
            self._join()
            yield

    def _join(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                if self._watching:  # the thread may begin to wait just now
                    self._relay.wake()
                thread.join(_NUDGE_S if self._watching else None)

    def _do_close(self) -> None:
        self._halt()
        self._pipeline.close()
        self._purgatory.fail(_APPLIED, ClosedError(f"the {self._label} was closed"))
