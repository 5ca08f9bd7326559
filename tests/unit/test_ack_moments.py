"""Acks, two calls at a time, at every moment at which the native code of one lets the other in.

That is where it makes an object that the garbage collector tracks: the collection may run a finalizer, which may call
anything, and let other threads run. There is no other one but where it calls Python code.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

import pyreplog._native.log.ack
from pyreplog._native.log.submitted import Submitted
from pyreplog.ack import Ack, settle_all
from pyreplog.errors import PoisonedError

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
    acks: list[Ack[int]] = []

    class Lock:
        """Where a real lock would block, the completion comes at the latest, and must have released it."""

        held = False

        def acquire(self, timeout: float = -1) -> None:
            if self.held:
                acks[-1].complete()
                assert not self.held, "lost wake-up"
            self.held = True

        def release(self) -> None:
            assert self.held, "released twice"
            self.held = False

    monkeypatch.setattr(pyreplog._native.log.ack, "allocate_lock", Lock)
    monkeypatch.setattr(pyreplog._native.log.ack, "LockType", Lock)
    results: list[int] = []

    def scene() -> Play:
        ack = Ack(9)
        acks.append(ack)
        return lambda: results.append(ack.result()), ack.complete

    for _ in everywhere(scene):
        assert results.pop() == 9
        assert not acks[-1]._waiters


def test_two_completions_at_any_moment_have_one_winner() -> None:
    wins: list[tuple[int, bool]] = []
    acks: list[Ack[int]] = []

    def scene() -> Play:
        ack = Ack(0)
        ack.add_done_callback(lambda _: None)
        acks.append(ack)
        wins.clear()
        return lambda: wins.append((1, ack.complete(1))), lambda: wins.append((2, ack.complete(2)))

    for _ in everywhere(scene):
        assert [acks[-1].result(0)] == [number for number, won in wins if won]


@pytest.mark.parametrize("completer_first", [True, False])
def test_a_callback_added_at_any_moment_of_the_completion_is_called_once(completer_first: bool) -> None:
    calls: list[str] = []

    def scene() -> Play:
        calls.clear()
        ack = Ack(0)
        ack.add_done_callback(lambda _: calls.append("early"))
        pair = (ack.complete, lambda: ack.add_done_callback(lambda _: calls.append("racing")))
        return pair if completer_first else (pair[1], pair[0])

    for _ in everywhere(scene):
        assert sorted(calls) == ["early", "racing"]


def test_two_first_waiters_at_any_moment_are_both_told() -> None:
    calls: list[str] = []
    acks: list[Ack[int]] = []

    def scene() -> Play:
        calls.clear()
        ack = Ack(0)
        acks.append(ack)
        return (
            lambda: ack.add_done_callback(lambda _: calls.append("one")),
            lambda: ack.add_done_callback(lambda _: calls.append("two")),
        )

    for _ in everywhere(scene):
        acks[-1].complete()
        assert sorted(calls) == ["one", "two"]


def test_a_completion_at_any_moment_wakes_the_task_that_is_about_to_wait() -> None:
    waits: list[Any] = []
    outcomes: list[Any] = []

    def scene() -> Play:
        ack = Ack(9)

        def start_waiting() -> None:
            waits.append(ack.__await__())
            try:
                outcomes.append(next(waits[-1]))
            except StopIteration as stop:
                outcomes.append(stop.value)

        return start_waiting, ack.complete

    async def main() -> None:
        for _ in everywhere(scene):
            outcome = outcomes.pop()
            if outcome != 9:
                await asyncio.sleep(0)
                assert outcome.done()

    asyncio.run(main())


def test_a_group_settled_at_any_moment_by_two_is_settled_once() -> None:
    calls: list[object] = []
    groups: list[list[Ack[int]]] = []

    def scene() -> Play:
        calls.clear()
        group = [Ack(i) for i in range(2)]
        groups.append(group)
        for ack in group:
            ack.add_done_callback(calls.append)
        outcomes = [(ack, None) for ack in group]
        return lambda: settle_all(outcomes), lambda: settle_all(outcomes)

    for _ in everywhere(scene):
        assert sorted(calls, key=id) == sorted(groups[-1], key=id)


def test_a_group_and_a_single_completion_at_any_moment_have_one_winner() -> None:
    acks: list[Ack[int]] = []
    wins: list[bool] = []
    error = PoisonedError("sync failed")

    def scene() -> Play:
        wins.clear()
        ack = Ack(1)
        acks.append(ack)
        return lambda: settle_all([(ack, error)]), lambda: wins.append(ack.complete(2))

    for _ in everywhere(scene):
        assert acks[-1].exception(0) is (None if wins[0] else error)


def test_an_outcome_that_is_replaced_is_not_seen_after_its_end() -> None:
    """Its finalizer asks the ack that it was the value of."""
    seen: list[object] = []
    acks: list[Ack[object]] = []

    class Value:
        def __del__(self) -> None:
            ack = acks[-1]
            seen.append((ack.done(), ack._result, ack.complete(3)))

    for settle in (lambda ack: ack.complete(2), lambda ack: ack.expect(2)):
        acks.append(Ack(Value()))
        settle(acks[-1])
    assert seen == [(True, 2, False), (False, 2, True)]


def drain(submitted: Submitted) -> None:
    submitted.drain()


def move(submitted: Submitted) -> None:
    submitted.advance(30)
    submitted.drain()


def fail(submitted: Submitted) -> None:
    submitted.fail(PoisonedError("sync failed"))


def submit(submitted: Submitted) -> None:
    submitted.watch(25, Ack(25))


@pytest.mark.parametrize("second", [drain, move, fail, submit])
@pytest.mark.parametrize("first", [drain, move, fail])
def test_two_calls_at_any_moment_tell_each_ack_once(
    first: Callable[[Submitted], None], second: Callable[[Submitted], None]
) -> None:
    told: list[Ack[int]] = []
    lines: list[Submitted] = []

    def scene() -> Play:
        told.clear()
        line = Submitted()
        lines.append(line)
        for position in (10, 20, 30):
            ack = Ack(position)
            ack.add_done_callback(told.append)
            line.watch(position, ack)
        line.advance(20)
        return lambda: first(line), lambda: second(line)

    for _ in everywhere(scene):
        move(lines[-1])
        assert sorted(ack._result for ack in told) == [10, 20, 30]
        assert [ack.exception() for ack in told if ack._result < 30] == [None, None]
