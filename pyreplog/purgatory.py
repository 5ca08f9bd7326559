"""Purgatory: completes futures that wait for a number to be reached.

Produce requests with acks=all wait for the high watermark, tailing readers for the end of the log, appends of a replica
group for the commit point. The name and the check-watch-check are Kafka's. Two of Kafka's bugs shape the rest:

- *A thread that advances a number often holds locks* (KAFKA-7697, KAFKA-8334: completing requests under a lock
  deadlocked). So `advance` only notes the number, and `drain` completes futures later, with no lock held.
- *Skipping a completion while another thread completes lost it* (KAFKA-6653). So a thread records its event before it
  leaves the work to another thread.

Every call puts an *event* into one queue, the inbox. One thread at a time applies the events; other threads leave their
events there and return. No event is lost: a thread appends its event before it checks whether another thread is
draining, and the draining thread checks the inbox again after it has stopped. So no call blocks, and callbacks,
finalizers and signal handlers may call every method at any time. As in `future`, single operations of lists, deques and
`del` have to be atomic under the GIL.

Check-watch-check: `watch` checks the key's number, puts its registration into the inbox, where the next drain finds it,
and checks again. If the advance that reaches the threshold was applied by then, the second check shows it, and `watch`
drains. If not, the thread that applies the advance goes on until the inbox is empty, so that it applies the
registration as well, before the advance or after it; in either order the future is completed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, TypeAlias

from pyreplog._native.machines.purgatory_base import PurgatoryBase
from pyreplog.errors import OutcomeUnknownError
from pyreplog.future import AppendFuture, Outcome, set_result, settle_all
from pyreplog.timing_wheel import TimingWheel

_DEADLINE_ALONE = object()
"""The key of entries that wait for their deadline only. Its number never advances."""


class PurgatoryEntry:
    """One waiter: its future is completed when the number of `key` reaches `threshold`, or fails at `deadline_us`.

    The future of an entry of `complete_at` is completed at `deadline_us`. A caller keeps the entry to `cancel` it. The
    fields belong to the Purgatory. A cancelled entry has no attribute `future`.
    """

    __slots__ = ("deadline_us", "future", "key", "threshold", "waiting")

    def __init__(self, key: Hashable, threshold: int, future: AppendFuture[Any], deadline_us: int | None) -> None:
        self.key = key
        self.threshold = threshold
        self.future = future
        self.deadline_us = deadline_us
        self.waiting = False  # True while the entry is in the line of its key, and counted in `live`


class _Line:
    """The state of one key: its number, its failure, and its waiters by threshold.

    Thresholds mostly arrive in order, and then cost an append and a popleft of a deque; the others go through a heap.
    Cancelled and expired waiters (`waiting` is False) stay until their threshold is reached, or until they outnumber
    the others.
    """

    __slots__ = ("exception", "late", "late_arrivals", "live", "number", "ordered")

    def __init__(self) -> None:
        self.number: float = -inf  # an int from the first advance on
        self.exception: BaseException | None = None
        self.ordered: deque[PurgatoryEntry] = deque()
        self.late: list[tuple[int, int, PurgatoryEntry]] = []  # a heap by (threshold, order of arrival)
        self.late_arrivals = 0
        self.live = 0

    def is_blank(self) -> bool:
        return self.live == 0 and self.number == -inf and self.exception is None

    def add(self, watch: PurgatoryEntry) -> None:
        if not self.ordered or self.ordered[-1].threshold <= watch.threshold:
            self.ordered.append(watch)
        else:
            self.late_arrivals += 1
            heappush(self.late, (watch.threshold, self.late_arrivals, watch))
        watch.waiting = True
        self.live += 1

    def leave(self, watch: PurgatoryEntry) -> None:
        watch.waiting = False
        self.live -= 1

    def up_to(self, limit: float) -> Iterator[PurgatoryEntry]:
        """Iterate over the waiters with thresholds up to `limit`, by threshold; remove each before giving the next."""
        ordered, late = self.ordered, self.late
        while ordered or late:
            in_order = not late or (bool(ordered) and ordered[0].threshold <= late[0][0])
            watch = ordered[0] if in_order else late[0][2]
            if watch.threshold > limit:
                return
            if watch.waiting:
                yield watch
            if in_order:
                ordered.popleft()
            else:
                heappop(late)

    def purge(self) -> None:
        """Remove cancelled and expired waiters if they are the majority; the amortized cost of each is O(1)."""
        if len(self.ordered) + len(self.late) > 2 * self.live:
            self.ordered = deque(watch for watch in self.ordered if watch.waiting)
            self.late = [entry for entry in self.late if entry[2].waiting]
            heapify(self.late)


class Purgatory(PurgatoryBase):
    """Completes futures when numbers reach thresholds. Numbers only grow; each has a key, any hashable object.

    Any thread may call all methods, and none blocks. All methods except `advance` may settle futures, whose callbacks
    then run inside the call: the caller must hold no lock that they take. If another thread is draining, its call
    settles the futures. There is no thread, clock or I/O inside.

    To complete k of n waiters costs O(k) if thresholds arrived in order, O(k log n) in the worst case.
    """

    __slots__ = ("_idle", "_wheel")

    def __init__(self, tick_us: int = 1000) -> None:
        """tick_us: microseconds by which a deadline may be noticed late."""
        self._lines: defaultdict[Hashable, _Line] = defaultdict(_Line)
        self._wheel: TimingWheel[PurgatoryEntry] = TimingWheel(tick_us)
        self._inbox: deque[_Event] = deque()
        self._idle = True  # deleted by the thread that drains: `del` is one C call, and only one thread succeeds

    def watch(
        self, key: Hashable, threshold: int, future: AppendFuture[Any], deadline_us: int | None = None
    ) -> PurgatoryEntry:
        """Complete a future, with the result given at its creation, when the number of `key` is `threshold` or more.

        The future is completed at once if the threshold is reached already. Otherwise it fails if the key has failed,
        and fails with OutcomeUnknownError if the deadline passes first.

        key: key of the number. threshold: number to wait for. future: the future. deadline_us: microseconds of the
        clock of `expire`; None: no deadline. If the deadline is earlier than the one for which the caller of `expire`
        sleeps, the caller of `watch` has to wake it.

        Returns the entry, for `cancel`.
        """
        watch = PurgatoryEntry(key, threshold, future, deadline_us)
        line = self._lines.get(key)
        if line is not None and threshold <= line.number:
            set_result(future)
            return watch
        self._inbox.append((Purgatory._admit, key, watch))
        line = self._lines.get(key)
        if line is not None and (threshold <= line.number or line.exception is not None):
            self.drain()
        return watch

    def complete_at(self, deadline_us: int, future: AppendFuture[Any]) -> PurgatoryEntry:
        """Complete a future, with the result given at its creation, when a deadline passes.

        deadline_us: microseconds of the clock of `expire`; for an early one the caller of `expire` has to be woken, as
        for `watch`. future: the future.

        Returns the entry, for `cancel`.
        """
        watch = PurgatoryEntry(_DEADLINE_ALONE, 0, future, deadline_us)
        self._inbox.append((Purgatory._admit, _DEADLINE_ALONE, watch))
        return watch

    def cancel(self, watch: PurgatoryEntry) -> None:
        """Cancel a wait. The future stays open, unless it was settled, or another thread is settling it."""
        self._inbox.append((Purgatory._discard, watch.key, watch))
        self.drain()

    def advance(self, key: Hashable, number: int) -> None:
        """Note that the number of `key` is at least `number`. A number below the current one changes nothing.

        Takes no lock and completes no future: call `drain` afterwards, with no lock held.
        """
        self._inbox.append((Purgatory._advance, key, number))

    def drain(self) -> None:
        """Complete the waiters of all numbers that were advanced."""
        if not self._inbox:
            return
        outcomes: list[Outcome] = []
        try:
            self._work(outcomes)
        except BaseException:  # Ctrl-C: other threads have left their events to this thread
            self._work(outcomes)
            raise
        finally:
            if outcomes:
                settle_all(outcomes)

    def advance_and_drain(self, key: Hashable, number: int) -> None:
        """Call `advance`, then `drain`."""
        self._inbox.append((Purgatory._advance, key, number))
        self.drain()

    def fail(self, key: Hashable, exception: BaseException) -> None:
        """Fail all waiters of `key`, and later ones, until `reset`. The number of the key stays.

        For a log that was poisoned, closed or truncated.
        """
        self._inbox.append((Purgatory._fail, key, exception))
        self.drain()

    def reset(self, key: Hashable) -> None:
        """Clear the number and the failure of `key`. Its waiters keep waiting.

        A key that has a number or a failure takes memory until then.
        """
        self._inbox.append((Purgatory._reset, key, None))
        self.drain()

    def expire(self, now_us: int) -> int | None:
        """Fail the waiters whose deadline has passed with OutcomeUnknownError; complete those of `complete_at`.

        now_us: the time, microseconds.

        Returns the next deadline, when this has to be called again; None: there is none. A deadline in the past means
        that another thread is draining: call again.
        """
        self._inbox.append((Purgatory._expire, None, now_us))
        self.drain()
        return self._wheel.next_deadline_us()

    def waiting(self, key: Hashable) -> int:
        """Return the number of waiters of `key`."""
        self.drain()
        line = self._lines.get(key)
        return 0 if line is None else line.live

    def _work(self, outcomes: list[Outcome]) -> None:
        while self._inbox:
            try:
                del self._idle
            except AttributeError:
                return  # another thread is draining, and checks the inbox again when it has set _idle
            try:
                self._apply_events(outcomes)
            finally:
                self._idle = True

    def _apply_events(self, outcomes: list[Outcome]) -> None:
        inbox = self._inbox
        while inbox:
            apply, key, subject = inbox[0]
            apply(self, outcomes, key, subject)
            inbox.popleft()  # only now: an event that Ctrl-C has interrupted is applied again; events are idempotent

    # The events; one thread at a time applies them.

    def _admit(self, outcomes: list[Outcome], key: Hashable, watch: PurgatoryEntry) -> None:
        line = self._lines[key]
        if watch.threshold <= line.number:
            outcomes.append((watch.future, None))
        elif line.exception is not None:
            outcomes.append((watch.future, line.exception))
        elif not watch.waiting:
            if watch.deadline_us is not None:
                self._wheel.add(watch, watch.deadline_us)
            line.add(watch)

    def _discard(self, outcomes: list[Outcome], key: Hashable, watch: PurgatoryEntry) -> None:
        if watch.waiting:
            if watch.deadline_us is not None:
                self._wheel.cancel(watch, watch.deadline_us)
            self._remove_waiter(watch)
            del watch.future  # breaks a reference cycle: a callback refers to the waiter, the waiter to this entry

    def _advance(self, outcomes: list[Outcome], key: Hashable, number: int) -> None:
        line = self._lines[key]
        if line.exception is not None:
            return  # a sync that succeeds after a failed one proves nothing
        if number > line.number:
            line.number = number
        if line.live:
            self._release(outcomes, line, number)

    def _fail(self, outcomes: list[Outcome], key: Hashable, exception: BaseException) -> None:
        line = self._lines[key]
        line.exception = exception
        self._release(outcomes, line, inf)

    def _reset(self, outcomes: list[Outcome], key: Hashable, _: None) -> None:
        line = self._lines[key]
        line.number, line.exception = -inf, None
        self._drop_if_blank(key, line)

    def _expire(self, outcomes: list[Outcome], _: None, now_us: int) -> None:
        for watch in self._wheel.expire(now_us):
            error = None if watch.key is _DEADLINE_ALONE else self._timeout_error(watch)
            outcomes.append((watch.future, error))
            self._remove_waiter(watch)

    # Helpers of the events.

    def _release(self, outcomes: list[Outcome], line: _Line, limit: float) -> None:
        for watch in line.up_to(limit):
            outcomes.append((watch.future, line.exception))
            if watch.deadline_us is not None:
                self._wheel.cancel(watch, watch.deadline_us)
            line.leave(watch)
        line.purge()

    def _timeout_error(self, watch: PurgatoryEntry) -> OutcomeUnknownError:
        number = self._lines[watch.key].number
        progress = "has no number yet" if number == -inf else f"is at {number}"
        waited = f"the time to wait for {watch.key!r} to reach {watch.threshold} ran out"
        return OutcomeUnknownError(f"{waited}, it {progress}: it may still get there")

    def _remove_waiter(self, watch: PurgatoryEntry) -> None:
        line = self._lines[watch.key]
        line.leave(watch)
        line.purge()
        self._drop_if_blank(watch.key, line)

    def _drop_if_blank(self, key: Hashable, line: _Line) -> None:
        if line.is_blank():
            del self._lines[key]


_Event: TypeAlias = tuple[Callable[[Purgatory, list[Outcome], Any, Any], None], Hashable, Any]
