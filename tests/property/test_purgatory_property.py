"""The waiting room: its calls in any order against naive lists, and any two of them at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pyreplog.purgatory
import pyreplog.timing_wheel
from pyreplog.errors import ClosedError, OutcomeUnknownError, PoisonedError
from pyreplog.future import AppendFuture, expected_result
from pyreplog.purgatory import Purgatory, PurgatoryEntry
from pyreplog.timing_wheel import TimingWheel
from tests.tracing import opcodes_traced

TICK_US = 4
keys = st.sampled_from(["synced", "committed"])
numbers = st.integers(-2, 20)
delays = st.none() | st.integers(-10, 60)


def is_due(deadline_us: int | None, now_us: int) -> bool:
    return deadline_us is not None and -(-deadline_us // TICK_US) <= now_us // TICK_US


@dataclass(eq=False)
class Waiter:
    """What the naive room knows of one waiter."""

    name: int
    key: str
    threshold: int
    deadline_us: int | None


class WaitingRoom(RuleBasedStateMachine):
    """Every call on a Purgatory, and on a list that is searched from end to end each time.

    What happened to whom is compared as one log, so that order counts as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.room = Purgatory(TICK_US)
        self.watches: list[PurgatoryEntry] = []
        self.log: list[tuple[int, str]] = []
        self.waiters: list[Waiter] = []
        self.expected: list[tuple[int, str]] = []
        self.reached: dict[str, int] = {}
        self.failed: set[str] = set()
        self.now_us = 0

    def note(self, future: AppendFuture[int]) -> None:
        exception = future.exception(0)
        self.log.append((expected_result(future), type(exception).__name__))

    def settle(self, waiters: list[Waiter], outcome: type[BaseException] | None) -> None:
        self.expected += [(w.name, "NoneType" if outcome is None else outcome.__name__) for w in waiters]
        self.waiters = [w for w in self.waiters if w not in waiters]

    @rule(key=keys, threshold=numbers, delay=delays)
    def watch(self, key: str, threshold: int, delay: int | None) -> None:
        waiter = Waiter(len(self.watches), key, threshold, None if delay is None else max(0, self.now_us + delay))
        future = AppendFuture(waiter.name)
        future.add_done_callback(self.note)
        self.watches.append(self.room.watch(key, threshold, future, waiter.deadline_us))
        self.waiters.append(waiter)
        if key in self.reached and threshold <= self.reached[key]:
            self.settle([waiter], None)
        elif key in self.failed:
            self.settle([waiter], ClosedError)

    @rule(key=keys, number=numbers)
    def advance(self, key: str, number: int) -> None:
        self.room.advance_and_drain(key, number)
        self.reach(key, number)

    @rule(advances=st.lists(st.tuples(keys, numbers), max_size=4))
    def advance_then_drain(self, advances: list[tuple[str, int]]) -> None:
        for key, number in advances:
            self.room.advance(key, number)
        assert self.log == self.expected
        self.room.drain()
        for key, number in advances:
            self.reach(key, number)

    def reach(self, key: str, number: int) -> None:
        if key in self.failed:
            return
        self.reached[key] = max(number, self.reached.get(key, number))
        done = [w for w in self.waiters if w.key == key and w.threshold <= self.reached[key]]
        self.settle(sorted(done, key=lambda w: w.threshold), None)

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.integers(0, len(self.watches) - 1))
        self.room.cancel(self.watches[name])
        self.waiters = [w for w in self.waiters if w.name != name]

    @rule(key=keys)
    def fail(self, key: str) -> None:
        self.room.fail(key, ClosedError("closed"))
        self.failed.add(key)
        gone = [w for w in self.waiters if w.key == key]
        self.settle(sorted(gone, key=lambda w: w.threshold), ClosedError)

    @rule(key=keys)
    def reset(self, key: str) -> None:
        self.room.reset(key)
        self.reached.pop(key, None)
        self.failed.discard(key)

    @rule(us=st.integers(0, 30))
    def expire(self, us: int) -> None:
        self.now_us += us
        following = self.room.expire(self.now_us)
        due = [w for w in self.waiters if is_due(w.deadline_us, self.now_us)]
        self.settle(sorted(due, key=lambda w: -(-(w.deadline_us or 0) // TICK_US)), OutcomeUnknownError)
        deadlines = [w.deadline_us for w in self.waiters if w.deadline_us is not None]
        assert following == min((-(-d // TICK_US) * TICK_US for d in deadlines), default=None)

    @invariant()
    def the_same_happened_to_the_same(self) -> None:
        assert self.log == self.expected

    @invariant()
    def as_many_wait(self) -> None:
        for key in ("synced", "committed"):
            assert self.room.waiting(key) == sum(w.key == key for w in self.waiters)
        assert self.log == self.expected

    @invariant()
    def nothing_else_is_kept(self) -> None:
        assert len(self.room._wheel) == sum(w.deadline_us is not None for w in self.waiters)
        for line in self.room._lines.values():
            assert len(line.ordered) + len(line.late) <= 2 * line.live


TestWaitingRoom = WaitingRoom.TestCase
TestWaitingRoom.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

moments = st.integers(0, 200)


@given(st.lists(st.tuples(st.sampled_from(["add", "cancel", "expire"]), moments), max_size=60))
def test_a_wheel_is_a_list_sorted_by_tick(steps: list[tuple[str, int]]) -> None:
    wheel: TimingWheel[int] = TimingWheel(TICK_US)
    waiting: dict[int, int] = {}
    now_us = 0
    for item, (step, moment) in enumerate(steps):
        if step == "add":
            wheel.add(item, moment)
            waiting[item] = moment
        elif step == "cancel":
            chosen = moment % len(steps)
            assert wheel.cancel(chosen, waiting.get(chosen, 0)) == (chosen in waiting)
            waiting.pop(chosen, None)
        else:
            now_us = max(now_us, moment)
            due = [each for each, deadline in waiting.items() if is_due(deadline, now_us)]
            assert wheel.expire(now_us) == sorted(due, key=lambda each: -(-waiting[each] // TICK_US))
            for each in due:
                del waiting[each]
            ticks = [-(-deadline // TICK_US) for deadline in waiting.values()]
            assert wheel.next_deadline_us() == (min(ticks) * TICK_US if ticks else None)
        assert len(wheel) == len(waiting)
        assert len(wheel._ticks) <= 2 * len(wheel._buckets)


# Races, at every bytecode

Play: TypeAlias = tuple[Callable[[], object], Callable[[], object]]
TRACED = {module.__file__ for module in (pyreplog.purgatory, pyreplog.timing_wheel)}


def preempted_everywhere(scene: Callable[[], Play]) -> Iterator[int]:
    """Plays `scene`, (action, intruder), once per bytecode of the action, the intruder running before it.

    The intruder runs in the same thread: to code without locks that is what a thread switch at that point is.
    Yields after each play; ends when the action has no bytecode left.
    """
    step = 0
    while True:
        action, intruder = scene()
        left = step

        def trace(frame: Any, event: str, _arg: Any, intruder: Callable[[], object] = intruder) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in TRACED:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == -1:
                    intruder()
            return trace

        with opcodes_traced(trace):
            action()
        if left >= 0:
            assert step > 10, "nothing was traced"
            return
        yield step
        step += 1


def advance(purgatory: Purgatory) -> Callable[[], object]:
    return lambda: purgatory.advance_and_drain("log", 5)


def fail(purgatory: Purgatory) -> Callable[[], object]:
    return lambda: purgatory.fail("log", PoisonedError("sync failed"))


def expire(purgatory: Purgatory) -> Callable[[], object]:
    return lambda: purgatory.expire(10**9)


@pytest.mark.parametrize("watcher_first", [True, False])
@pytest.mark.parametrize("event", [advance, fail])
def test_an_event_at_any_moment_of_a_registration_is_not_lost(
    event: Callable[[Purgatory], Callable[[], object]], watcher_first: bool
) -> None:
    futures: list[AppendFuture[int]] = []
    rooms: list[Purgatory] = []

    def scene() -> Play:
        rooms.append(Purgatory())
        futures.append(AppendFuture(5))
        pair = (lambda: rooms[-1].watch("log", 5, futures[-1]), event(rooms[-1]))
        return pair if watcher_first else (pair[1], pair[0])

    for _ in preempted_everywhere(scene):
        assert futures[-1].done()
        assert rooms[-1].waiting("log") == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [(advance, advance), (advance, expire), (expire, advance), (advance, fail), (fail, expire)],
)
def test_two_events_at_any_moment_settle_once_and_leave_nothing(
    first: Callable[[Purgatory], Callable[[], object]], second: Callable[[Purgatory], Callable[[], object]]
) -> None:
    told: list[AppendFuture[int]] = []
    rooms: list[Purgatory] = []

    def scene() -> Play:
        rooms.append(Purgatory())
        for threshold in (5, 3):
            future = AppendFuture(threshold)
            future.add_done_callback(told.append)
            rooms[-1].watch("log", threshold, future, deadline_us=1000)
        return first(rooms[-1]), second(rooms[-1])

    for _ in preempted_everywhere(scene):
        assert sorted(expected_result(future) for future in told) == [3, 5]
        assert rooms[-1].waiting("log") == 0
        assert len(rooms[-1]._wheel) == 0
        told.clear()


@pytest.mark.parametrize("event", [advance, fail, expire])
def test_a_cancellation_at_any_moment_leaves_nothing(
    event: Callable[[Purgatory], Callable[[], object]],
) -> None:
    rooms: list[Purgatory] = []
    others: list[AppendFuture[int]] = []

    def scene() -> Play:
        room = Purgatory()
        rooms.append(room)
        watch = room.watch("log", 4, AppendFuture(0), deadline_us=1000)
        others.append(AppendFuture(1))
        room.watch("log", 5, others[-1], deadline_us=1000)
        return event(room), lambda: room.cancel(watch)

    for _ in preempted_everywhere(scene):
        assert others[-1].done()
        assert rooms[-1].waiting("log") == 0
        assert len(rooms[-1]._wheel) == 0


def test_the_larger_of_two_racing_advances_stays() -> None:
    rooms: list[Purgatory] = []

    def scene() -> Play:
        rooms.append(Purgatory())
        return (
            lambda: rooms[-1].advance_and_drain("log", 5),
            lambda: rooms[-1].advance_and_drain("log", 9),
        )

    for _ in preempted_everywhere(scene):
        future = AppendFuture(9)
        rooms[-1].watch("log", 9, future)
        assert future.done()
