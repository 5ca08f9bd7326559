"""Appends that wait for the commit point: threads that block, and futures of what was submitted."""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from pyreplog._native.ha.loop_batches import LoopBatches
from pyreplog._native.ha.parking import ParkingLot
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, ReplicationTimeoutError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.net.reactor import Reactor
from pyreplog.purgatory import Purgatory, PurgatoryEntry

_COMMITTED = "committed"

_REST_US = 100_000
"""Longest sleep of a thread that waits while another one drives."""


class PendingCommits:
    """Threads sleep in a `ParkingLot`, all but the one that drives. Futures lie in a `Purgatory`; those of all that
    an event loop's tasks submit in one of its rounds together, for they are sent together. Any thread may call
    anything, but no locks that callbacks take may be held.

    reached: the commit point as it is. offer: sends what was appended. timeout_us: how long acks wait, and threads;
    then the outcome is unknown.
    """

    def __init__(self, reached: int, offer: Callable[[], object], timeout_us: int, clock: Clock) -> None:
        self.failure: BaseException | None = None
        """Why the commit point moves no more."""
        self._offer, self._timeout_us, self._clock = offer, timeout_us, clock
        self._purgatory = Purgatory()
        self.drain = self._purgatory.drain
        """Completes the futures of what was reached; to be called without locks."""
        self.lot = ParkingLot(reached)
        """Where threads sleep. While they are woken one by one (`is_waking`), the last offers what they append."""
        self._watches: deque[tuple[int, PurgatoryEntry]] = deque()  # with their deadlines: all wait equally long
        self._rounds = LoopBatches(self._end_round)
        self.add_of_task = self._rounds.add
        """`add`, of a task of an event loop; False: nothing was done, there is none."""

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, position: int, drive: Callable[[Callable[[], bool], float], bool]) -> None:
        """Block until all before a position is committed. drive: as of the reactor; of all threads that wait, one
        drives, and hands that on when its own append is over.

        Errors: ReplicationTimeoutError; what the commit point failed with; those of `drive`.
        """
        lot, deadline = self.lot, monotonic() + self._timeout_us / 1e6
        is_over = (over := partial(lot.is_over, position))()
        try:
            while not is_over and (left_s := deadline - monotonic()) > 0:
                if lot.lead():
                    is_over = drive(over, left_s)
                else:
                    lot.park(position, min(int(left_s * 1e6), _REST_US))
                    if not lot.is_waking:
                        self._offer()
                    is_over = over()
        finally:
            lot.leave()
        if lot.reached < position:
            raise self._why_not(position)

    def _why_not(self, position: int) -> BaseException:
        if self.failure is None:
            return self._late(position)
        return self.failure.with_traceback(None)  # one for all: their tracebacks must not grow by each other's

    def add(self, position: int, future: AppendFuture[Any]) -> None:
        """Of an append that was not offered yet: it is, soon."""
        if not self.add_of_task(position, future):
            self.watch(position, future)
            self._offer()

    def watch(self, position: int, future: AppendFuture[Any]) -> None:
        """Of an append that somebody offers. Check-watch-check, as the purgatory itself: it is told nothing while there
        are no acks."""
        watch = self._purgatory.watch(_COMMITTED, position, future)
        self._watches.append((self._clock.monotonic_us() + self._timeout_us, watch))
        if (reached := self.lot.reached) >= position:
            self._purgatory.advance_and_drain(_COMMITTED, reached)

    def _end_round(self, loop: AbstractEventLoop) -> None:
        self._watch_together(loop)
        self._offer()

    def _watch_together(self, loop: AbstractEventLoop) -> None:
        """The appends of a loop's round, if it was not taken before."""
        round_batch = self._rounds.take(loop)
        if round_batch is not None:
            whole = AppendFuture[None]()
            whole.add_done_callback(round_batch.settle)
            self.watch(round_batch.position, whole)

    # ---- what happens ---------------------------------------------------------------------------------------

    def advance(self, position: int) -> None:
        """The commit point is there now. Completes nothing: call `drain`, without locks."""
        self.lot.reach(position)
        if self._watches:
            self._purgatory.advance(_COMMITTED, position)

    def fail(self, error: BaseException) -> None:
        """Fail all appends that wait, and those that come later."""
        self.failure = error
        self.lot.close()
        self._purgatory.fail(_COMMITTED, error)
        for loop in self._rounds.loops():
            self._watch_together(loop)

    def tick(self) -> None:
        """Time has passed: to be called a few times within the time-out, and to be followed by an offer."""
        now_us = self._clock.monotonic_us()
        for loop in self._rounds.loops():
            if not loop.is_running():  # it has ended before its round did
                self._watch_together(loop)
        watches = self._watches
        while watches and (watches[0][1].future.done() or watches[0][0] <= now_us):
            _, watch = watches.popleft()
            future = watch.future
            if not future.done():
                self._purgatory.cancel(watch)
                set_exception(future, self._late(watch.threshold))

    def _late(self, position: int) -> ReplicationTimeoutError:
        waited = f"{self._timeout_us // 1000} ms"
        return ReplicationTimeoutError(
            f"position {position} was not committed within {waited} (committed up to {self.lot.reached}): the outcome "
            "is unknown"
        )


def check_may_wait(reactor: Reactor) -> None:
    """Raise InvalidArgumentError if the caller must not block."""
    if _get_running_loop() is not None or reactor.in_driver():
        raise InvalidArgumentError(
            "append waits, and must not be called in an event loop or a callback: use submit, and await its future"
        )
