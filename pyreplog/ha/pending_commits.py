"""PendingCommits: appends that wait for the commit point, in threads or as futures."""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from pyreplog._native.ha.loop_batches import LoopBatches
from pyreplog._native.ha.master_base import PendingCommitsBase
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, ReplicationTimeoutError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.net.reactor import Reactor
from pyreplog.purgatory import Purgatory, PurgatoryEntry

_COMMITTED = "committed"

_PARK_US = 100_000
"""Longest sleep of a waiting thread while another one drives the reactor, microseconds."""


class PendingCommits(PendingCommitsBase):
    """Appends that wait for the commit point.

    Waiting threads sleep in a `ParkingLot`, except for one, which drives the reactor. Futures are in a `Purgatory`. The
    futures that tasks of an event loop submit in one round of the loop have one entry there, because they are sent
    together. Thread-safe; callers must not hold locks that callbacks take.

    Args:
        reached: the commit point, a position.
        offer: sends appended entries to replicas.
        timeout_us: microseconds that an append waits; then its outcome is unknown.
        clock: source of time.
    """

    def __init__(self, reached: int, offer: Callable[[], object], timeout_us: int, clock: Clock) -> None:
        super().__init__(reached)
        self.failure: BaseException | None = None
        """The error of all later appends, once the commit point cannot move any more; None: it can."""
        self._offer, self._timeout_us, self._clock = offer, timeout_us, clock
        self._purgatory = Purgatory()
        self.drain = self._purgatory.drain
        """Complete the futures up to the commit point. Call it without locks."""
        self.watches: deque[tuple[int, PurgatoryEntry]] = deque()  # (deadline, entry), in order: all wait equally long
        self._rounds = LoopBatches(self._end_round)
        self.add_of_task = self._rounds.add
        """As `add`, for a task of an event loop. False: the caller is no task, and nothing was added."""

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, position: int, drive: Callable[[Callable[[], bool], float], bool]) -> None:
        """Block until all entries before a position are committed.

        One of the waiting threads drives the reactor, and passes that on when its own append is committed.

        Args:
            position: end of the entries.
            drive: as `Reactor.drive`.

        Raises:
            ReplicationTimeoutError: the time ran out; the outcome is unknown.
            ReplogError: the failure of the commit point, or an error of `drive`.
        """
        lot, deadline = self.lot, monotonic() + self._timeout_us / 1e6
        is_over = (over := partial(lot.is_over, position))()
        try:
            while not is_over and (left_s := deadline - monotonic()) > 0:
                if lot.lead():
                    is_over = drive(over, left_s)
                else:
                    lot.park(position, min(int(left_s * 1e6), _PARK_US))
                    if not lot.is_waking:
                        self._offer()
                    is_over = over()
        finally:
            lot.leave()
        if lot.reached < position:
            raise self._error_of(position)

    def _error_of(self, position: int) -> BaseException:
        if self.failure is None:
            return self._timeout_error(position)
        return self.failure.with_traceback(None)  # shared by all threads, which would each extend its traceback

    def add(self, position: int, future: AppendFuture[Any]) -> None:
        """Add the future of an append, and offer the append soon."""
        if not self.add_of_task(position, future):
            self.watch(position, future)
            self._offer()

    def watch(self, position: int, future: AppendFuture[Any]) -> None:
        """Add the future of an append that the caller offers.

        The commit point is read after the entry was added, because `advance` does not inform an empty purgatory.
        """
        watch = self._purgatory.watch(_COMMITTED, position, future)
        self.watches.append((self._clock.monotonic_us() + self._timeout_us, watch))
        if (reached := self.lot.reached) >= position:
            self._purgatory.advance_and_drain(_COMMITTED, reached)

    def _end_round(self, loop: AbstractEventLoop) -> None:
        self._watch_round(loop)
        self._offer()

    def _watch_round(self, loop: AbstractEventLoop) -> None:
        """Add the futures of a loop's round as one entry, unless that was done before."""
        round_batch = self._rounds.take(loop)
        if round_batch is not None:
            whole = AppendFuture[None]()
            whole.add_done_callback(round_batch.settle)
            self.watch(round_batch.position, whole)

    # ---- the commit point -----------------------------------------------------------------------------------

    def _advance_futures(self, position: int, /) -> None:
        self._purgatory.advance(_COMMITTED, position)

    def fail(self, error: BaseException) -> None:
        """Fail all waiting appends, and all later ones."""
        self.failure = error
        self.lot.close()
        self._purgatory.fail(_COMMITTED, error)
        for loop in self._rounds.loops():
            self._watch_round(loop)

    def tick(self) -> None:
        """Fail appends that waited too long. Call it a few times within the timeout, and offer afterwards."""
        now_us = self._clock.monotonic_us()
        for loop in self._rounds.loops():
            if not loop.is_running():  # the loop ended within a round
                self._watch_round(loop)
        watches = self.watches
        while watches and (watches[0][1].future.done() or watches[0][0] <= now_us):
            _, watch = watches.popleft()
            future = watch.future
            if not future.done():
                self._purgatory.cancel(watch)
                set_exception(future, self._timeout_error(watch.threshold))

    def _timeout_error(self, position: int) -> ReplicationTimeoutError:
        waited = f"{self._timeout_us // 1000} ms"
        return ReplicationTimeoutError(
            f"position {position} was not committed within {waited} (committed up to {self.lot.reached}): the outcome "
            "is unknown"
        )


def check_may_wait(reactor: Reactor) -> None:
    """Raise InvalidArgumentError if the caller must not block, in an event loop or a callback of the reactor."""
    if _get_running_loop() is not None or reactor.in_driver():
        raise InvalidArgumentError(
            "append waits, and must not be called in an event loop or a callback: use submit, and await its future"
        )
