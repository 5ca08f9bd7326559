"""AppendFuture: one handle for threads and asyncio, settled exactly once."""

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
from functools import partial
from typing import Any, TypeVar

import pytest

from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, PoisonedError, WrongTypeError
from pyreplog.future import AppendFuture, expected_result, set_exception, set_expected, set_result, settle_all

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
    future = AppendFuture(41)
    assert not future.done()
    assert set_result(future)
    assert future.done()
    assert future.result() == 41
    assert future.exception() is None


def test_completes_with_the_value_of_its_completion() -> None:
    future: AppendFuture[range] = AppendFuture()
    assert set_result(future, range(3, 5))
    assert future.result(timeout=0) == range(3, 5)


def test_future_can_complete_with_none() -> None:
    future: AppendFuture[int | None] = AppendFuture(5)
    set_result(future, None)
    assert future.result() is None


def test_failing_raises_in_every_waiter() -> None:
    future = AppendFuture(1)
    error = PoisonedError("sync failed")
    assert set_exception(future, error)
    for _ in range(2):
        with pytest.raises(PoisonedError) as caught:
            future.result()
        assert caught.value is error
    assert future.exception() is error


def test_the_first_outcome_stays() -> None:
    future = AppendFuture(1)
    assert set_result(future, 2)
    assert not set_result(future, 3)
    assert not set_exception(future, PoisonedError("late"))
    assert future.result() == 2
    future = AppendFuture(1)
    error = PoisonedError("sync failed")
    assert set_exception(future, error)
    assert not set_result(future, 3)
    assert future.exception() is error


def test_many_raises_of_one_exception_do_not_pile_up_its_traceback() -> None:
    future = AppendFuture(1)
    set_exception(future, PoisonedError("sync failed"))
    depths = []
    for _ in range(3):
        with pytest.raises(PoisonedError) as caught:
            future.result()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


@pytest.mark.parametrize("timeout", [0, 0.001, -1.0, float("-inf"), -(10**400)])
def test_a_timeout_is_an_unknown_outcome(timeout: float) -> None:
    future = AppendFuture(1)
    with pytest.raises(OutcomeUnknownError, match="may still become durable"):
        future.result(timeout)
    with pytest.raises(OutcomeUnknownError):
        future.exception(timeout)
    assert future.waiting == 0
    set_result(future)
    assert future.result(timeout) == 1


def test_an_ack_can_be_neither_pickled_nor_copied() -> None:
    for refuse in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="belongs to the process"):
            refuse(AppendFuture(1))


# Threads


@pytest.mark.parametrize("timeout", [float("nan"), "1", True, b"", [1]])
def test_invalid_timeout_is_refused(timeout: Any) -> None:
    future: AppendFuture[int] = AppendFuture(1)
    for wait in (future.result, future.exception):
        with pytest.raises((WrongTypeError, InvalidArgumentError), match="timeout: expected a number of seconds"):
            wait(timeout)
    assert not future.waiting


@pytest.mark.parametrize("timeout", [None, 60, float("inf"), 1e30, 10**400])
def test_result_waits_for_another_thread(timeout: float | None) -> None:
    future = AppendFuture(7)
    results: list[int] = []
    waiter = threading.Thread(target=lambda: results.append(future.result(timeout)))
    waiter.start()
    until(lambda: future.waiting)
    set_result(future)
    waiter.join()
    assert results == [7]


def test_every_blocked_thread_is_woken() -> None:
    future = AppendFuture(7)
    results: list[int] = []
    waiters = [threading.Thread(target=lambda: results.append(future.result())) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    until(lambda: future.waiting == 20)
    set_result(future)
    for waiter in waiters:
        waiter.join()
    assert results == [7] * 20


@pytest.mark.usefixtures("eager_switching")
def test_threads_racing_to_settle_have_one_winner_each_and_all_waiters_wake() -> None:
    futures: list[AppendFuture[int]] = [AppendFuture() for _ in range(300)]
    barrier = threading.Barrier(5)
    wins: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    seen: list[list[int]] = []

    def settle(number: int) -> Callable[[], None]:
        def run() -> None:
            barrier.wait()
            won = [i for i, future in enumerate(futures) if set_result(future, number)]
            wins.update(won)

        return run

    def wait() -> None:
        barrier.wait()
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: calls.update([i]))
        seen.append([future.result(60) for future in futures])

    run_threads(settle(1), settle(2), settle(3), wait, wait)
    assert wins == Counter(range(300))
    assert calls == Counter([*range(300)] * 2)
    assert seen[0] == seen[1]
    assert all(not future.waiting for future in futures)


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_interrupts_a_waiting_thread() -> None:
    future = AppendFuture(1)
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def press() -> None:
        until(lambda: future.waiting)
        while not interrupted.is_set():  # a signal just before the wait begins is noticed with the next one
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            interrupted.wait(0.01)

    previous = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            future.result()
    finally:
        presser.join()
        signal.signal(signal.SIGINT, previous)
    assert future.waiting == 0
    assert set_result(future)


# Callbacks


def test_callbacks_are_called_in_order_with_the_ack() -> None:
    future = AppendFuture(1)
    calls: list[tuple[str, AppendFuture[int]]] = []
    future.add_done_callback(lambda done: calls.append(("first", done)))
    future.add_done_callback(lambda done: calls.append(("second", done)))
    assert calls == []
    set_result(future)
    future.add_done_callback(lambda done: calls.append(("now", done)))
    assert calls == [("first", future), ("second", future), ("now", future)]


def test_a_raising_callback_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    future = AppendFuture(1)
    calls: list[object] = []
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR):
        assert set_result(future)
    assert calls == [future]
    assert "ZeroDivisionError" in caplog.text


def test_ctrl_c_in_a_callback_is_raised_after_the_others_were_called() -> None:
    futures = [AppendFuture(i) for i in range(3)]
    calls: list[object] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    for future in futures:
        future.add_done_callback(interrupted)
        future.add_done_callback(calls.append)
    with pytest.raises(KeyboardInterrupt):
        settle_all([(future, None) for future in futures])
    assert sorted(calls, key=id) == sorted(futures, key=id)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_callback_does_not_end_other_threads_than_the_main_one(error: type[BaseException]) -> None:
    future = AppendFuture(1)
    ended: list[bool] = []

    def leave(_: object) -> None:
        raise error

    def settle() -> None:
        try:
            ended.append(not set_result(future))
        except BaseException:
            ended.append(True)

    future.add_done_callback(leave)
    run_threads(settle)
    assert ended == [False]


def test_any_number_of_callbacks_may_raise_what_is_no_exception() -> None:
    futures = [AppendFuture(i) for i in range(100_000)]

    def leave(_: object) -> None:
        raise SystemExit

    for future in futures:
        future.add_done_callback(leave)
    with pytest.raises(SystemExit):
        settle_all([(future, None) for future in futures])
    assert not any(future.waiting for future in futures)


# Groups


def test_a_group_is_settled_each_in_its_own_way() -> None:
    error = PoisonedError("sync failed")
    won_before, completed, failed = AppendFuture("a"), AppendFuture("b"), AppendFuture("c")
    set_result(won_before, "first")
    settle_all([(won_before, error), (completed, None), (failed, error)])
    assert [won_before.result(), completed.result()] == ["first", "b"]
    assert failed.exception() is error


def test_settle_all_refuses_values_that_are_no_futures() -> None:
    for wrong in (None, 5):
        with pytest.raises((AttributeError, TypeError)):
            settle_all([(wrong, None)])  # type: ignore[list-item]


def test_settle_all_settles_every_future_before_it_runs_callbacks() -> None:
    futures = [AppendFuture(i) for i in range(3)]
    told: list[list[bool]] = []
    for future in futures:
        future.add_done_callback(lambda _: told.append([each.done() for each in futures]))
    settle_all([(future, None) for future in futures])
    assert told == [[True] * 3] * 3


def test_ctrl_c_in_settle_all_leaves_no_future_unsettled() -> None:
    class Interrupted(list[tuple[AppendFuture[Any], BaseException | None]]):
        """Outcomes of which the first reader sees one, then Ctrl-C is pressed."""

        armed = True

        def __iter__(self) -> Iterator[tuple[AppendFuture[Any], BaseException | None]]:
            for place in range(len(self)):
                if place == 1 and self.armed:
                    self.armed = False
                    raise KeyboardInterrupt
                yield self[place]

    futures = [AppendFuture(i) for i in range(3)]
    calls: list[object] = []
    for future in futures:
        future.add_done_callback(calls.append)
    with pytest.raises(KeyboardInterrupt):
        settle_all(Interrupted((future, None) for future in futures))
    assert calls == futures


# asyncio


def test_await_returns_the_result_and_raises_the_failure() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        good, bad = AppendFuture(1), AppendFuture(2)
        loop.call_soon(partial(set_result, good))
        loop.call_soon(partial(set_exception, bad), PoisonedError("sync failed"))
        assert await good == 1
        with pytest.raises(PoisonedError):
            await bad

    run(main())


def test_awaiting_what_is_done_takes_no_turn_of_the_loop() -> None:
    future = AppendFuture(3)
    set_result(future)
    with pytest.raises(StopIteration) as stopped:
        next(future.__await__())
    assert stopped.value.value == 3


def test_several_tasks_await_one_ack() -> None:
    async def main() -> None:
        future = AppendFuture(3)
        asyncio.get_running_loop().call_soon(partial(set_result, future))
        assert await asyncio.gather(*(awaited(future) for _ in range(10))) == [3] * 10

    run(main())


async def awaited(future: AppendFuture[Any]) -> Any:
    return await future


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
        futures = [AppendFuture(i) for i in range(256)]
        tasks = [asyncio.create_task(awaited(future)) for future in futures]
        await asyncio.sleep(0)
        run_threads(lambda: settle_all([(future, None) for future in futures]))
        assert await asyncio.gather(*tasks) == list(range(256))
        return wake_ups

    assert run(main()) == 1


def test_a_group_completed_in_the_loop_needs_no_wake_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [AppendFuture(i) for i in range(3)]
        tasks = [asyncio.create_task(awaited(future)) for future in futures]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = None  # type: ignore[assignment, method-assign]
        settle_all([(future, None) for future in futures])
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        del loop.call_soon_threadsafe

    run(main())


def test_a_thread_and_the_tasks_of_two_loops_wait_for_one_ack() -> None:
    future = AppendFuture(5)
    results: list[int] = []

    def in_a_loop() -> None:
        async def main() -> None:
            results.extend(await asyncio.gather(*(awaited(future) for _ in range(3))))

        run(main())

    def complete() -> None:
        until(lambda: future.waiting == 7)
        set_result(future)

    run_threads(in_a_loop, in_a_loop, lambda: results.append(future.result()), complete)
    assert results == [5] * 7


def test_a_cancelled_awaiter_leaves_the_others_waiting() -> None:
    async def main() -> None:
        future = AppendFuture(5)
        tasks = [asyncio.create_task(awaited(future)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert future.waiting == 2
        assert not future.done()
        set_result(future)
        assert [await tasks[0], await tasks[2]] == [5, 5]
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]

    run(main())


def test_an_awaiter_cancelled_while_its_wake_up_is_on_the_way() -> None:
    async def main() -> None:
        future = AppendFuture(5)
        cancelled, other = (asyncio.create_task(awaited(future)) for _ in range(2))
        await asyncio.sleep(0)
        run_threads(partial(set_result, future))  # the loop has not run yet
        cancelled.cancel()
        assert await other == 5
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(main())


def test_wait_for_times_out_without_settling_the_ack() -> None:
    async def main() -> None:
        future = AppendFuture(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, timeout=0.001)
        assert not future.done()
        assert not future.waiting
        set_result(future)
        assert await future == 5

    run(main())


def test_settling_a_future_with_a_waiter_of_a_closed_loop_succeeds() -> None:
    future = AppendFuture(5)
    waiting = future.__await__()

    async def suspend() -> None:
        next(waiting)

    asyncio.run(suspend())
    calls: list[object] = []
    future.add_done_callback(calls.append)
    assert set_result(future)
    assert calls == [future]


@pytest.mark.usefixtures("eager_switching")
def test_tasks_of_two_loops_racing_with_a_completer_all_wake() -> None:
    futures = [AppendFuture(i) for i in range(400)]
    barrier = threading.Barrier(3)
    results: list[list[int]] = []

    def in_a_loop() -> None:
        async def main() -> list[int]:
            tasks = [asyncio.create_task(awaited(future)) for future in futures]
            barrier.wait()
            return await asyncio.gather(*tasks)

        results.append(run(main()))

    def complete() -> None:
        barrier.wait()
        for start in range(0, 400, 10):
            settle_all([(future, None) for future in futures[start : start + 10]])

    run_threads(in_a_loop, in_a_loop, complete)
    assert results == [list(range(400))] * 2


def test_callers_find_no_way_to_settle_a_future() -> None:
    """Only who carries out an append says how it ended: with the functions of `pyreplog.future`."""
    public = {name for name in dir(AppendFuture) if not name.startswith("_")}
    assert public == {"add_done_callback", "done", "exception", "result", "waiting"}
    future = AppendFuture(1)
    for name in ("settled", "value", "error"):
        with pytest.raises(AttributeError):
            setattr(future, name, True)
    assert not future.done()
    for settle in (set_result, set_exception):
        with pytest.raises(TypeError):
            settle(None, ValueError("no future"))  # type: ignore[arg-type]


def test_the_result_that_is_expected_may_change_until_the_end() -> None:
    future = AppendFuture(1)
    set_expected(future, 2)
    assert expected_result(future) == 2 and not future.done()
    assert set_result(future) and future.result(0) == 2
