"""Acks, two calls at a time, at every moment at which the native code of one lets the other in.

That is where it makes an object that the garbage collector tracks: the collection may run a finalizer, which may call
anything, and let other threads run. There is no other one but where it calls Python code.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest

import pyreplog._native.log.future
from pyreplog._native.log.position_waiters import PositionWaiters
from pyreplog.errors import PoisonedError
from pyreplog.future import AppendFuture, expected_result, set_expected, set_result, settle_all

Play: TypeAlias = tuple[Callable[[], object], Callable[[], object]]


def intruded(play: Play, moment: int, before: int) -> bool:
    """Play (action, intruder), the intruder at the collection of that number; whether there was one.

    before: objects made beforehand, for the collector comes at every second one.
    """
    action, intruder = play
    left = moment

    def collecting(phase: str, _: object) -> None:
        nonlocal left
        if phase == "start":
            left -= 1
            if left == -1:
                intruder()

    thresholds = gc.get_threshold()
    hoard = [[[] for _ in range(100)], [{} for _ in range(100)]]  # the interpreter has no free list to use again
    gc.collect()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        hoard.extend([[]] for _ in range(before))
        action()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collecting)
    return left < 0


def everywhere(scene: Callable[[], Play]) -> Iterator[None]:
    """Yields after each play."""
    plays = 0
    gc.collect()
    gc.freeze()  # it is not looked at again, all that other tests have left
    try:
        for before in range(2):
            moment = 0
            while intruded(scene(), moment, before):
                yield
                moment, plays = moment + 1, plays + 1
    finally:
        gc.unfreeze()
    assert plays, "the collector never came"


def test_a_completion_at_any_moment_wakes_the_thread_that_is_about_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    futures: list[AppendFuture[int]] = []

    class Lock:
        """Where a real lock would block, the completion comes at the latest, and must have released it."""

        held = False

        def acquire(self, timeout: float = -1) -> None:
            if self.held:
                set_result(futures[-1])
                assert not self.held, "lost wake-up"
            self.held = True

        def release(self) -> None:
            assert self.held, "released twice"
            self.held = False

    monkeypatch.setattr(pyreplog._native.log.future, "allocate_lock", Lock)
    monkeypatch.setattr(pyreplog._native.log.future, "LockType", Lock)
    results: list[int] = []

    def scene() -> Play:
        future = AppendFuture(9)
        futures.append(future)
        return lambda: results.append(future.result()), partial(set_result, future)

    for _ in everywhere(scene):
        assert results.pop() == 9
        assert not futures[-1].waiting


def test_two_completions_at_any_moment_have_one_winner() -> None:
    wins: list[tuple[int, bool]] = []
    futures: list[AppendFuture[int]] = []

    def scene() -> Play:
        future = AppendFuture(0)
        future.add_done_callback(lambda _: None)
        futures.append(future)
        wins.clear()
        return lambda: wins.append((1, set_result(future, 1))), lambda: wins.append((2, set_result(future, 2)))

    for _ in everywhere(scene):
        assert [futures[-1].result(0)] == [number for number, won in wins if won]


@pytest.mark.parametrize("completer_first", [True, False])
def test_a_callback_added_at_any_moment_of_the_completion_is_called_once(completer_first: bool) -> None:
    calls: list[str] = []

    def scene() -> Play:
        calls.clear()
        future = AppendFuture(0)
        future.add_done_callback(lambda _: calls.append("early"))
        pair = (partial(set_result, future), lambda: future.add_done_callback(lambda _: calls.append("racing")))
        return pair if completer_first else (pair[1], pair[0])

    for _ in everywhere(scene):
        assert sorted(calls) == ["early", "racing"]


def test_concurrent_first_callbacks_are_both_called() -> None:
    calls: list[str] = []
    futures: list[AppendFuture[int]] = []

    def scene() -> Play:
        calls.clear()
        future = AppendFuture(0)
        futures.append(future)
        return (
            lambda: future.add_done_callback(lambda _: calls.append("one")),
            lambda: future.add_done_callback(lambda _: calls.append("two")),
        )

    for _ in everywhere(scene):
        set_result(futures[-1])
        assert sorted(calls) == ["one", "two"]


def test_a_completion_at_any_moment_wakes_the_task_that_is_about_to_wait() -> None:
    waits: list[Any] = []
    outcomes: list[Any] = []

    def scene() -> Play:
        future = AppendFuture(9)

        def start_waiting() -> None:
            waits.append(future.__await__())
            try:
                outcomes.append(next(waits[-1]))
            except StopIteration as stop:
                outcomes.append(stop.value)

        return start_waiting, partial(set_result, future)

    async def main() -> None:
        for _ in everywhere(scene):
            outcome = outcomes.pop()
            if outcome != 9:
                await asyncio.sleep(0)
                assert outcome.done()

    asyncio.run(main())


def test_a_group_settled_at_any_moment_by_two_is_settled_once() -> None:
    calls: list[object] = []
    groups: list[list[AppendFuture[int]]] = []

    def scene() -> Play:
        calls.clear()
        group = [AppendFuture(i) for i in range(2)]
        groups.append(group)
        for future in group:
            future.add_done_callback(calls.append)
        outcomes = [(future, None) for future in group]
        return lambda: settle_all(outcomes), lambda: settle_all(outcomes)

    for _ in everywhere(scene):
        assert sorted(calls, key=id) == sorted(groups[-1], key=id)


def test_a_group_and_a_single_completion_at_any_moment_have_one_winner() -> None:
    futures: list[AppendFuture[int]] = []
    wins: list[bool] = []
    error = PoisonedError("sync failed")

    def scene() -> Play:
        wins.clear()
        future = AppendFuture(1)
        futures.append(future)
        return lambda: settle_all([(future, error)]), lambda: wins.append(set_result(future, 2))

    for _ in everywhere(scene):
        assert futures[-1].exception(0) is (None if wins[0] else error)


def test_an_outcome_that_is_replaced_is_not_seen_after_its_end() -> None:
    """Its finalizer asks the ack that it was the value of."""
    seen: list[object] = []
    futures: list[AppendFuture[object]] = []

    class Value:
        def __del__(self) -> None:
            future = futures[-1]
            seen.append((future.done(), expected_result(future), set_result(future, 3)))

    for settle in (lambda future: set_result(future, 2), lambda future: set_expected(future, 2)):
        futures.append(AppendFuture(Value()))
        settle(futures[-1])
    assert seen == [(True, 2, False), (False, 2, True)]


def drain(submitted: PositionWaiters) -> None:
    submitted.drain()


def move(submitted: PositionWaiters) -> None:
    submitted.advance(30)
    submitted.drain()


def fail(submitted: PositionWaiters) -> None:
    submitted.fail(PoisonedError("sync failed"))


def submit(submitted: PositionWaiters) -> None:
    submitted.watch(25, AppendFuture(25))


@pytest.mark.parametrize("second", [drain, move, fail, submit])
@pytest.mark.parametrize("first", [drain, move, fail])
def test_concurrent_calls_complete_each_future_once(
    first: Callable[[PositionWaiters], None], second: Callable[[PositionWaiters], None]
) -> None:
    told: list[AppendFuture[int]] = []
    lines: list[PositionWaiters] = []

    def scene() -> Play:
        told.clear()
        line = PositionWaiters()
        lines.append(line)
        for position in (10, 20, 30):
            future = AppendFuture(position)
            future.add_done_callback(told.append)
            line.watch(position, future)
        line.advance(20)
        return lambda: first(line), lambda: second(line)

    for _ in everywhere(scene):
        move(lines[-1])
        assert sorted(expected_result(future) for future in told) == [10, 20, 30]
        assert [future.exception() for future in told if expected_result(future) < 30] == [None, None]
