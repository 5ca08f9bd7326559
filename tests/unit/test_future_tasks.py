"""Tasks that await an AppendFuture: what they wait on stands in for a Future, of any kind of task and loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import uvloop

from pyreplog.future import AppendFuture, set_result, settle_all

T = TypeVar("T")

PATIENCE_S = 60

number: contextvars.ContextVar[int] = contextvars.ContextVar("number")


def plain() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def debugging() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def python_tasks() -> asyncio.AbstractEventLoop:
    """Its tasks are those written in Python, as a debugger's or another interpreter's."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda loop, coro, **kw: asyncio.tasks._PyTask(coro, loop=loop, **kw))  # type: ignore
    return loop


LOOPS = {"plain": plain, "debugging": debugging, "python tasks": python_tasks, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    sample = request.param()
    yield sample
    sample.close()


def run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(asyncio.wait_for(main, PATIENCE_S))


async def awaited(future: AppendFuture[T]) -> T:
    return await future


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def settle(futures: list[AppendFuture[int]]) -> None:
    settle_all([(future, None) for future in futures])


def test_tasks_go_on_in_order_and_again(loop: asyncio.AbstractEventLoop) -> None:
    rounds = [[AppendFuture(100 * r + i) for i in range(50)] for r in range(5)]
    order: list[int] = []

    async def task(place: int) -> None:
        for futures in rounds:
            result = await futures[place]
            order.append(result)

    async def main() -> None:
        tasks = [loop.create_task(task(place)) for place in range(50)]
        for r, futures in enumerate(rounds):
            while not all(future.waiting for future in futures):
                await asyncio.sleep(0)
            in_a_thread(lambda futures=futures: settle(futures)) if r % 2 else settle(futures)
        await asyncio.gather(*tasks)

    run(loop, main())
    assert order == [100 * r + i for r in range(5) for i in range(50)]


def test_each_task_goes_on_in_its_own_context(loop: asyncio.AbstractEventLoop) -> None:
    async def task(mine: int, future: AppendFuture[int]) -> None:
        number.set(mine)
        await future
        assert number.get() == mine
        number.set(-mine)

    async def main() -> None:
        number.set(7)
        futures = [AppendFuture(i) for i in range(20)]
        tasks = [loop.create_task(task(i, future)) for i, future in enumerate(futures)]
        await asyncio.sleep(0)
        settle(futures)
        await asyncio.gather(*tasks)
        assert number.get() == 7

    run(loop, main())


def test_futures_settled_together_cost_one_call_of_their_loop() -> None:
    loop = asyncio.new_event_loop()
    rounds = [[AppendFuture(i) for i in range(256)] for _ in range(2)]
    calls: list[object] = []
    really_call_soon = loop.call_soon

    def count(callback: Any, *args: Any, **kwargs: Any) -> asyncio.Handle:
        calls.append(callback)
        return really_call_soon(callback, *args, **kwargs)

    async def task(place: int) -> None:
        await rounds[0][place]
        await rounds[1][place]

    async def main() -> None:
        tasks = [loop.create_task(task(place)) for place in range(256)]
        await asyncio.sleep(0)
        loop.call_soon = count  # type: ignore[method-assign, assignment]
        settle(rounds[0])
        turns = 0
        while not all(future.waiting for future in rounds[1]):
            turns += 1
            await asyncio.sleep(0)  # which is a call, too
        assert len(calls) == 1 + turns
        del loop.call_soon
        settle(rounds[1])
        await asyncio.gather(*tasks)

    run(loop, main())
    loop.close()


def test_cancelled_task_gets_the_cancel_message(loop: asyncio.AbstractEventLoop) -> None:
    heard: list[tuple[object, ...]] = []

    async def task(future: AppendFuture[int]) -> None:
        try:
            await future
        except asyncio.CancelledError as error:
            heard.append(error.args)
            raise

    async def main() -> None:
        future = AppendFuture(1)
        tasks = [loop.create_task(task(future)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel("enough")
        tasks[1].cancel()
        assert await asyncio.wait(tasks, timeout=0.0) is not None
        while not (tasks[0].done() and tasks[1].done()):
            await asyncio.sleep(0)
        assert future.waiting == 1
        set_result(future)
        await tasks[2]
        assert [task.cancelled() for task in tasks] == [True, True, False]

    run(loop, main())
    assert heard == [("enough",), ()]


def test_a_task_cancelled_before_it_awaits_never_waits(loop: asyncio.AbstractEventLoop) -> None:
    async def task(future: AppendFuture[int]) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await future

    async def main() -> None:
        future = AppendFuture(1)
        with pytest.raises(asyncio.CancelledError):
            await loop.create_task(task(future))
        assert not future.waiting

    run(loop, main())


def test_a_task_that_goes_on_cancels_the_next_one(loop: asyncio.AbstractEventLoop) -> None:
    """Both were settled, and are to go on in the same call of the loop."""
    futures = [AppendFuture(1), AppendFuture(2)]
    tasks: list[asyncio.Task[Any]] = []

    async def first() -> None:
        await futures[0]
        tasks[1].cancel()

    async def main() -> None:
        tasks.extend([loop.create_task(first()), loop.create_task(awaited(futures[1]))])
        await asyncio.sleep(0)
        settle(futures)
        await tasks[0]
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]

    run(loop, main())


def test_future_can_be_awaited_again_after_a_timeout(loop: asyncio.AbstractEventLoop) -> None:
    future = AppendFuture(5)

    async def main() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await future
        assert not future.waiting
        loop.call_soon(partial(set_result, future))
        return await future

    assert run(loop, main()) == 5


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exception_that_leaves_the_loop_does_not_stop_other_waiting_tasks(
    loop: asyncio.AbstractEventLoop, leaving: type[BaseException]
) -> None:
    futures = [AppendFuture(i) for i in range(10)]

    async def task(future: AppendFuture[int]) -> int:
        if await future == 3:
            raise leaving
        return future.result()

    tasks = [loop.create_task(task(future)) for future in futures]

    async def start() -> None:
        await asyncio.sleep(0)
        settle(futures)

    starting = loop.create_task(start())
    with pytest.raises(leaving):
        loop.run_forever()
    assert starting.done()
    others = [task for place, task in enumerate(tasks) if place != 3]
    assert run(loop, gathered(others)) == [i for i in range(10) if i != 3]
    assert isinstance(tasks[3].exception(), leaving)


@pytest.mark.parametrize("scheduled", [False, True])
def test_ctrl_c_while_loops_are_scheduled_leaves_no_task_waiting(scheduled: bool) -> None:
    """scheduled: it comes when the call of the first loop was scheduled already."""
    future = AppendFuture(5)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    tasks = [loop.create_task(awaited(future)) for loop in loops]
    for loop in loops:
        run(loop, asyncio.sleep(0))
    first = loops[0]

    def interrupted(*args: Any) -> None:
        del first.call_soon_threadsafe
        if scheduled:
            first.call_soon_threadsafe(*args)
        raise KeyboardInterrupt

    first.call_soon_threadsafe = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        set_result(future)
    for loop, task in zip(loops, tasks, strict=True):
        assert run(loop, gathered([task])) == [5]
        loop.close()


async def gathered(tasks: list[asyncio.Task[int]]) -> list[int]:
    return await asyncio.gather(*tasks)


def test_a_closed_awaiter_is_forgotten() -> None:
    future = AppendFuture(5)

    async def main() -> None:
        waiting = future.__await__()
        next(waiting)
        assert future.waiting == 1
        waiting.close()
        assert not future.waiting

    asyncio.run(main())


def test_resuming_an_unsettled_future_raises_runtime_error() -> None:
    future = AppendFuture(5)

    async def main() -> None:
        waiting = future.__await__()
        next(waiting)
        with pytest.raises(RuntimeError, match="await wasn't used"):
            next(waiting)
        assert not future.waiting

    asyncio.run(main())


def test_a_wait_is_as_a_future_is() -> None:
    async def main() -> None:
        future = AppendFuture(5)
        waiting = future.__await__()
        wait = next(waiting)
        assert asyncio.isfuture(wait) and wait._asyncio_future_blocking
        assert wait.get_loop() is asyncio.get_running_loop()
        with pytest.raises(asyncio.InvalidStateError):
            wait.result()
        called: list[object] = []
        wait.add_done_callback(called.append)
        with pytest.raises(RuntimeError):
            wait.add_done_callback(called.append)
        assert wait.cancel() and not wait.cancel() and wait.cancelled() and wait.done()
        assert not called
        await asyncio.sleep(0)
        assert called == [wait]
        with pytest.raises(asyncio.CancelledError):
            wait.result()
        late = AppendFuture(6).__await__()
        wait = next(late)
        wait.cancel()
        wait.add_done_callback(called.append)
        await asyncio.sleep(0)
        assert called[1:] == [wait]

    asyncio.run(main())
