"""Ack: one handle for threads and asyncio, settled exactly once."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from pyreplog.ack import Ack, settle_all
from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, PoisonedError, WrongTypeError

T = TypeVar("T")


def run_threads(*targets: Callable[[], object]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        os.sched_yield()


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 60))


# Outcomes


def test_completes_with_the_value_of_its_creation() -> None:
    ack = Ack(41)
    assert not ack.done()
    assert ack.complete()
    assert ack.done()
    assert ack.result() == 41
    assert ack.exception() is None


def test_completes_with_the_value_of_its_completion() -> None:
    ack: Ack[range] = Ack()
    assert ack.complete(range(3, 5))
    assert ack.result(timeout=0) == range(3, 5)


def test_none_is_a_value_to_complete_with() -> None:
    ack: Ack[int | None] = Ack(5)
    ack.complete(None)
    assert ack.result() is None


def test_failing_raises_in_every_waiter() -> None:
    ack = Ack(1)
    error = PoisonedError("sync failed")
    assert ack.fail(error)
    for _ in range(2):
        with pytest.raises(PoisonedError) as caught:
            ack.result()
        assert caught.value is error
    assert ack.exception() is error


def test_the_first_outcome_stays() -> None:
    ack = Ack(1)
    assert ack.complete(2)
    assert not ack.complete(3)
    assert not ack.fail(PoisonedError("late"))
    assert ack.result() == 2
    ack = Ack(1)
    error = PoisonedError("sync failed")
    assert ack.fail(error)
    assert not ack.complete(3)
    assert ack.exception() is error


def test_many_raises_of_one_exception_do_not_pile_up_its_traceback() -> None:
    ack = Ack(1)
    ack.fail(PoisonedError("sync failed"))
    depths = []
    for _ in range(3):
        with pytest.raises(PoisonedError) as caught:
            ack.result()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


@pytest.mark.parametrize("timeout", [0, 0.001, -1.0, float("-inf"), -(10**400)])
def test_a_timeout_is_an_unknown_outcome(timeout: float) -> None:
    ack = Ack(1)
    with pytest.raises(OutcomeUnknownError, match="may still become durable"):
        ack.result(timeout)
    with pytest.raises(OutcomeUnknownError):
        ack.exception(timeout)
    assert ack._waiters == []
    ack.complete()
    assert ack.result(timeout) == 1


def test_an_ack_can_be_neither_pickled_nor_copied() -> None:
    for refuse in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="belongs to the process"):
            refuse(Ack(1))


# Threads


@pytest.mark.parametrize("timeout", [float("nan"), "1", True, b"", [1]])
def test_what_is_no_time_to_wait_is_refused(timeout: Any) -> None:
    ack: Ack[int] = Ack(1)
    for wait in (ack.result, ack.exception):
        with pytest.raises((WrongTypeError, InvalidArgumentError), match="timeout: expected a number of seconds"):
            wait(timeout)
    assert not ack._waiters


@pytest.mark.parametrize("timeout", [None, 60, float("inf"), 1e30, 10**400])
def test_result_waits_for_another_thread(timeout: float | None) -> None:
    ack = Ack(7)
    results: list[int] = []
    waiter = threading.Thread(target=lambda: results.append(ack.result(timeout)))
    waiter.start()
    until(lambda: ack._waiters)
    ack.complete()
    waiter.join()
    assert results == [7]


def test_every_blocked_thread_is_woken() -> None:
    ack = Ack(7)
    results: list[int] = []
    waiters = [threading.Thread(target=lambda: results.append(ack.result())) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    until(lambda: len(ack._waiters) == 20)
    ack.complete()
    for waiter in waiters:
        waiter.join()
    assert results == [7] * 20


@pytest.mark.usefixtures("eager_switching")
def test_threads_racing_to_settle_have_one_winner_each_and_all_waiters_wake() -> None:
    acks: list[Ack[int]] = [Ack() for _ in range(300)]
    barrier = threading.Barrier(5)
    wins: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    seen: list[list[int]] = []

    def settle(number: int) -> Callable[[], None]:
        def run() -> None:
            barrier.wait()
            won = [i for i, ack in enumerate(acks) if ack.complete(number)]
            wins.update(won)

        return run

    def wait() -> None:
        barrier.wait()
        for i, ack in enumerate(acks):
            ack.add_done_callback(lambda _, i=i: calls.update([i]))
        seen.append([ack.result(60) for ack in acks])

    run_threads(settle(1), settle(2), settle(3), wait, wait)
    assert wins == Counter(range(300))
    assert calls == Counter([*range(300)] * 2)
    assert seen[0] == seen[1]
    assert all(not ack._waiters for ack in acks)


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_interrupts_a_waiting_thread() -> None:
    ack = Ack(1)
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def press() -> None:
        until(lambda: ack._waiters)
        while not interrupted.is_set():  # a signal just before the wait begins is noticed with the next one
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            interrupted.wait(0.01)

    previous = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ack.result()
    finally:
        presser.join()
        signal.signal(signal.SIGINT, previous)
    assert ack._waiters == []
    assert ack.complete()


# Callbacks


def test_callbacks_are_called_in_order_with_the_ack() -> None:
    ack = Ack(1)
    calls: list[tuple[str, Ack[int]]] = []
    ack.add_done_callback(lambda done: calls.append(("first", done)))
    ack.add_done_callback(lambda done: calls.append(("second", done)))
    assert calls == []
    ack.complete()
    ack.add_done_callback(lambda done: calls.append(("now", done)))
    assert calls == [("first", ack), ("second", ack), ("now", ack)]


def test_a_raising_callback_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    ack = Ack(1)
    calls: list[object] = []
    ack.add_done_callback(lambda _: 1 // 0)
    ack.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR):
        assert ack.complete()
    assert calls == [ack]
    assert "ZeroDivisionError" in caplog.text


def test_ctrl_c_in_a_callback_is_raised_after_the_others_were_called() -> None:
    acks = [Ack(i) for i in range(3)]
    calls: list[object] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    for ack in acks:
        ack.add_done_callback(interrupted)
        ack.add_done_callback(calls.append)
    with pytest.raises(KeyboardInterrupt):
        settle_all([(ack, None) for ack in acks])
    assert sorted(calls, key=id) == sorted(acks, key=id)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_what_a_callback_raises_ends_no_thread_but_the_main_one(error: type[BaseException]) -> None:
    ack = Ack(1)
    ended: list[bool] = []

    def leave(_: object) -> None:
        raise error

    def settle() -> None:
        try:
            ended.append(not ack.complete())
        except BaseException:
            ended.append(True)

    ack.add_done_callback(leave)
    run_threads(settle)
    assert ended == [False]


def test_any_number_of_callbacks_may_raise_what_is_no_exception() -> None:
    acks = [Ack(i) for i in range(100_000)]

    def leave(_: object) -> None:
        raise SystemExit

    for ack in acks:
        ack.add_done_callback(leave)
    with pytest.raises(SystemExit):
        settle_all([(ack, None) for ack in acks])
    assert not any(ack._waiters for ack in acks)


# Groups


def test_a_group_is_settled_each_in_its_own_way() -> None:
    error = PoisonedError("sync failed")
    won_before, completed, failed = Ack("a"), Ack("b"), Ack("c")
    won_before.complete("first")
    settle_all([(won_before, error), (completed, None), (failed, error)])
    assert [won_before.result(), completed.result()] == ["first", "b"]
    assert failed.exception() is error


def test_what_is_no_ack_is_refused_in_a_group() -> None:
    for wrong in (None, 5):
        with pytest.raises((AttributeError, TypeError)):
            settle_all([(wrong, None)])  # type: ignore[list-item]


def test_all_of_a_group_are_settled_before_the_first_is_told() -> None:
    acks = [Ack(i) for i in range(3)]
    told: list[list[bool]] = []
    for ack in acks:
        ack.add_done_callback(lambda _: told.append([each.done() for each in acks]))
    settle_all([(ack, None) for ack in acks])
    assert told == [[True] * 3] * 3


def test_ctrl_c_while_a_group_is_settled_loses_nobody() -> None:
    class Interrupted(list[tuple[Ack[Any], BaseException | None]]):
        """Outcomes of which the first reader sees one, then Ctrl-C is pressed."""

        armed = True

        def __iter__(self) -> Iterator[tuple[Ack[Any], BaseException | None]]:
            for place in range(len(self)):
                if place == 1 and self.armed:
                    self.armed = False
                    raise KeyboardInterrupt
                yield self[place]

    acks = [Ack(i) for i in range(3)]
    calls: list[object] = []
    for ack in acks:
        ack.add_done_callback(calls.append)
    with pytest.raises(KeyboardInterrupt):
        settle_all(Interrupted((ack, None) for ack in acks))
    assert calls == acks


# asyncio


def test_await_returns_the_result_and_raises_the_failure() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        good, bad = Ack(1), Ack(2)
        loop.call_soon(good.complete)
        loop.call_soon(bad.fail, PoisonedError("sync failed"))
        assert await good == 1
        with pytest.raises(PoisonedError):
            await bad

    run(main())


def test_awaiting_what_is_done_takes_no_turn_of_the_loop() -> None:
    ack = Ack(3)
    ack.complete()
    with pytest.raises(StopIteration) as stopped:
        next(ack.__await__())
    assert stopped.value.value == 3


def test_several_tasks_await_one_ack() -> None:
    async def main() -> None:
        ack = Ack(3)
        asyncio.get_running_loop().call_soon(ack.complete)
        assert await asyncio.gather(*(awaited(ack) for _ in range(10))) == [3] * 10

    run(main())


async def awaited(ack: Ack[Any]) -> Any:
    return await ack


def test_a_group_completed_by_another_thread_wakes_the_loop_once() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        wake_ups = 0
        really_wake = loop.call_soon_threadsafe

        def count(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal wake_ups
            wake_ups += 1
            return really_wake(*args, **kwargs)

        loop.call_soon_threadsafe = count  # type: ignore[method-assign]
        acks = [Ack(i) for i in range(256)]
        tasks = [asyncio.create_task(awaited(ack)) for ack in acks]
        await asyncio.sleep(0)
        run_threads(lambda: settle_all([(ack, None) for ack in acks]))
        assert await asyncio.gather(*tasks) == list(range(256))
        return wake_ups

    assert run(main()) == 1


def test_a_group_completed_in_the_loop_needs_no_wake_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        acks = [Ack(i) for i in range(3)]
        tasks = [asyncio.create_task(awaited(ack)) for ack in acks]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = None  # type: ignore[assignment, method-assign]
        settle_all([(ack, None) for ack in acks])
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        del loop.call_soon_threadsafe

    run(main())


def test_a_thread_and_the_tasks_of_two_loops_wait_for_one_ack() -> None:
    ack = Ack(5)
    results: list[int] = []

    def in_a_loop() -> None:
        async def main() -> None:
            results.extend(await asyncio.gather(*(awaited(ack) for _ in range(3))))

        run(main())

    def complete() -> None:
        until(lambda: len(ack._waiters) == 7)
        ack.complete()

    run_threads(in_a_loop, in_a_loop, lambda: results.append(ack.result()), complete)
    assert results == [5] * 7


def test_a_cancelled_awaiter_leaves_the_others_waiting() -> None:
    async def main() -> None:
        ack = Ack(5)
        tasks = [asyncio.create_task(awaited(ack)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert len(ack._waiters) == 2
        assert not ack.done()
        ack.complete()
        assert [await tasks[0], await tasks[2]] == [5, 5]
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]

    run(main())


def test_an_awaiter_cancelled_while_its_wake_up_is_on_the_way() -> None:
    async def main() -> None:
        ack = Ack(5)
        cancelled, other = (asyncio.create_task(awaited(ack)) for _ in range(2))
        await asyncio.sleep(0)
        run_threads(ack.complete)  # the loop has not run yet
        cancelled.cancel()
        assert await other == 5
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(main())


def test_wait_for_times_out_without_settling_the_ack() -> None:
    async def main() -> None:
        ack = Ack(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ack, timeout=0.001)
        assert not ack.done()
        assert not ack._waiters
        ack.complete()
        assert await ack == 5

    run(main())


def test_a_waiter_of_a_closed_loop_is_nobody_to_wake() -> None:
    ack = Ack(5)
    waiting = ack.__await__()

    async def suspend() -> None:
        next(waiting)

    asyncio.run(suspend())
    calls: list[object] = []
    ack.add_done_callback(calls.append)
    assert ack.complete()
    assert calls == [ack]


@pytest.mark.usefixtures("eager_switching")
def test_tasks_of_two_loops_racing_with_a_completer_all_wake() -> None:
    acks = [Ack(i) for i in range(400)]
    barrier = threading.Barrier(3)
    results: list[list[int]] = []

    def in_a_loop() -> None:
        async def main() -> list[int]:
            tasks = [asyncio.create_task(awaited(ack)) for ack in acks]
            barrier.wait()
            return await asyncio.gather(*tasks)

        results.append(run(main()))

    def complete() -> None:
        barrier.wait()
        for start in range(0, 400, 10):
            settle_all([(ack, None) for ack in acks[start : start + 10]])

    run_threads(in_a_loop, in_a_loop, complete)
    assert results == [list(range(400))] * 2
