"""The waiting room: callers that wait for a number to be reached wait here.

acks=all produces wait for the high watermark, tailing readers for the end, appends of a replica group for the
commit point. The name and the check-watch-check are Kafka's. Two of its lessons shape the rest:

- *A thread that moves a number on often holds locks* (KAFKA-7697, KAFKA-8334: pokes under a lock deadlocked). So
  `advance` only notes the number, and `drain` completes, later, with no lock held.
- *Skipping when somebody else is at work lost completions* (KAFKA-6653). So what is skipped is written down
  first.

Everything that happens to the room is an *event* in one queue, its inbox. One thread at a time works through
the inbox; others leave their event there and go on. Why no event is lost: a thread appends its event before
it looks whether somebody is at work, and who is at work looks at the inbox again after having stopped. So
nobody ever blocks here, which also means that callbacks, finalizers and signal handlers may call anything at
any time. As in `future`, single list, deque and `del` operations are relied on to be atomic under the GIL.

Check-watch-check: `watch` looks at the key's number, leaves its registration in the inbox, where the next
drain finds it, and looks again. If the advance that reaches the threshold was applied by then, the second
look shows it, and `watch` drains. If not, the thread that applies it works on until the inbox is empty, and comes
upon the registration before the advance or after it; either way the two meet.
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
"""The key of those that wait for no number, but for their deadline: it never gets one."""


class PurgatoryEntry:
    """One waiter: `future` is completed when the number of `key` reaches `threshold`, or fails at `deadline_us`.
    One of `complete_at` is completed at `deadline_us`.

    To be kept by a caller that may want to `cancel` it. Its fields belong to the Purgatory. It has no `future` any more
    when it was cancelled.
    """

    __slots__ = ("deadline_us", "future", "key", "threshold", "waiting")

    def __init__(self, key: Hashable, threshold: int, future: AppendFuture[Any], deadline_us: int | None) -> None:
        self.key = key
        self.threshold = threshold
        self.future = future
        self.deadline_us = deadline_us
        self.waiting = False  # True while it is in its key's line and counted there


class _Line:
    """The waiters of one key, by threshold, and what the key has come to.

    Thresholds mostly arrive in order and then cost a deque's append and popleft; the others go through a
    heap. Waiters that left early (`waiting` is False) stay until their turn, or until they outnumber the
    rest.
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
        """The waiters with thresholds up to `limit`, by threshold. Each is removed when the next is taken."""
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
        """Removes those that left early when they are the majority, which costs O(1) for each of them."""
        if len(self.ordered) + len(self.late) > 2 * self.live:
            self.ordered = deque(watch for watch in self.ordered if watch.waiting)
            self.late = [entry for entry in self.late if entry[2].waiting]
            heapify(self.late)


class Purgatory(PurgatoryBase):
    """A waiting room for numbers that only grow, each known by a key (any hashable).

    All methods may be called from any thread and never block. All but `advance` may settle futures, whose
    callbacks then run inside the call: hold no lock that they take. It may be another thread's call that
    settles a future, if that one is at work right now. There is no thread, clock or I/O inside.

    Completing k of n waiters costs O(k) when thresholds arrived in order, O(k log n) at worst.
    """

    __slots__ = ("_idle", "_wheel")

    def __init__(self, tick_us: int = 1000) -> None:
        """`tick_us`: how late, in microseconds, a deadline may be noticed."""
        self._lines: defaultdict[Hashable, _Line] = defaultdict(_Line)
        self._wheel: TimingWheel[PurgatoryEntry] = TimingWheel(tick_us)
        self._inbox: deque[_Event] = deque()
        self._idle = True  # deleted by the thread at work: `del` is one C call, and only one thread succeeds

    def watch(
        self, key: Hashable, threshold: int, future: AppendFuture[Any], deadline_us: int | None = None
    ) -> PurgatoryEntry:
        """Completes `future`, with the value of its creation, when the number of `key` is `threshold` or more.

        At once, if it is. If the key has failed, the future fails; but a threshold that was reached before stays
        reached. With a `deadline_us` (microseconds, on the clock that `expire` is told) it fails with
        OutcomeUnknownError when the deadline passes first. The driver of `expire` must be told by the caller
        if this deadline comes before the one it sleeps for.
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
        """Completes `future`, with the value of its creation, when the deadline passes; no number is waited for.

        `deadline_us` is in microseconds, on the clock that `expire` is told. As with `watch`, the driver of `expire`
        must be told by the caller if this deadline comes before the one it sleeps for.
        """
        watch = PurgatoryEntry(_DEADLINE_ALONE, 0, future, deadline_us)
        self._inbox.append((Purgatory._admit, _DEADLINE_ALONE, watch))
        return watch

    def cancel(self, watch: PurgatoryEntry) -> None:
        """Stops waiting. The future is left open, unless it was settled or is just being settled elsewhere."""
        self._inbox.append((Purgatory._discard, watch.key, watch))
        self.drain()

    def advance(self, key: Hashable, number: int) -> None:
        """Notes that the number of `key` is at least `number`. Numbers below the present one change nothing.

        Takes no lock and completes nothing: call `drain` afterwards, when your locks are released.
        """
        self._inbox.append((Purgatory._advance, key, number))

    def drain(self) -> None:
        """Completes the waiters of all numbers that were advanced."""
        if not self._inbox:
            return
        outcomes: list[Outcome] = []
        try:
            self._work(outcomes)
        except BaseException:  # Ctrl-C: other threads have left their events to this one
            self._work(outcomes)
            raise
        finally:
            if outcomes:
                settle_all(outcomes)

    def advance_and_drain(self, key: Hashable, number: int) -> None:
        """`advance`, then `drain`."""
        self._inbox.append((Purgatory._advance, key, number))
        self.drain()

    def fail(self, key: Hashable, exception: BaseException) -> None:
        """Fails all waiters of `key`, and later ones, until `reset`. The key's number stays where it is.

        For a log that was poisoned, closed or truncated.
        """
        self._inbox.append((Purgatory._fail, key, exception))
        self.drain()

    def reset(self, key: Hashable) -> None:
        """Forgets number and failure of `key`, as if it were new. Its waiters, if any, wait on.

        A key that has a number or a failure takes memory until then.
        """
        self._inbox.append((Purgatory._reset, key, None))
        self.drain()

    def expire(self, now_us: int) -> int | None:
        """Fails the waiters whose deadline has passed at `now_us` (microseconds) with OutcomeUnknownError.

        Those of `complete_at` are completed instead.

        Returns when to call again: the next deadline, or None. One in the past means that another thread is
        at work right now: call again.
        """
        self._inbox.append((Purgatory._expire, None, now_us))
        self.drain()
        return self._wheel.next_deadline_us()

    def waiting(self, key: Hashable) -> int:
        """How many wait for `key`."""
        self.drain()
        line = self._lines.get(key)
        return 0 if line is None else line.live

    def _work(self, outcomes: list[Outcome]) -> None:
        while self._inbox:
            try:
                del self._idle
            except AttributeError:
                return  # another thread is at work, and looks at the inbox again when it has set _idle
            try:
                self._apply_events(outcomes)
            finally:
                self._idle = True

    def _apply_events(self, outcomes: list[Outcome]) -> None:
        inbox = self._inbox
        while inbox:
            apply, key, subject = inbox[0]
            apply(self, outcomes, key, subject)
            inbox.popleft()  # only now: an event that Ctrl-C cut short is applied again, which does no harm

    # The events. They are applied by one thread at a time.

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
            self._leave_early(watch)
            del watch.future  # a callback refers to the waiter, and the waiter to this entry: they would be a cycle

    def _advance(self, outcomes: list[Outcome], key: Hashable, number: int) -> None:
        line = self._lines[key]
        if line.exception is not None:
            return  # after a failed sync no later one proves anything
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
            self._leave_early(watch)

    # What the events have in common.

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

    def _leave_early(self, watch: PurgatoryEntry) -> None:
        line = self._lines[watch.key]
        line.leave(watch)
        line.purge()
        self._drop_if_blank(watch.key, line)

    def _drop_if_blank(self, key: Hashable, line: _Line) -> None:
        if line.is_blank():
            del self._lines[key]


_Event: TypeAlias = tuple[Callable[[Purgatory, list[Outcome], Any, Any], None], Hashable, Any]
