"""The driver of state machines, with machines and a runtime of a few lines."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyreplog._native.machines.effects import Send, Settle
from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog._native.quorum.ack_tracker import AckTracker, Part
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Driver
from pyreplog.ledger.protocol.effects import Effect, Finished, Wake
from tests.ledger.conftest import Apart
from tests.switching import eager_switching

PATIENCE_S = 30.0
ROUNDS, TIMERS = 400, 100

REQUEST = Request(RequestKind.LAST)
OnReply = Callable[[Reply | Exception], None]


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeRuntime:
    """Answers each request before `send` returns, with the reply that `answer` gives."""

    metadata: Any = None

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.answer: Callable[[OnReply], None] = lambda on_reply: on_reply(Reply(ReplyStatus.OK))

    def expect(self, done: AppendFuture[Any]) -> None:
        return

    def send(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        self.answer(on_reply)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer())
        return self.timers[-1]

    wait: Any = None
    work: Any = None
    report: Any = None
    note_waiting: Any = None
    note_lacking: Any = None
    suspect: Any = None
    note_degraded: Any = None


class Machine:
    """Counts replies, and returns the effects of `on_reply` for each."""

    def __init__(self, on_reply: Callable[[], Iterable[Effect]] = tuple) -> None:
        self.replies, self.inside, self.on_reply = 0, False, on_reply

    def replied(self, send: Send, reply: Reply) -> Iterable[Effect]:
        assert not self.inside, "two events at a time"
        self.inside = True
        self.replies += 1
        effects = self.on_reply()
        self.inside = False
        return effects

    def failed(self, send: Send, error: Exception) -> Iterable[Effect]:
        return [Finished(error=error)]

    def woken(self, about: object) -> Iterable[Effect]:
        return []


def ask() -> list[Effect]:
    return [Send("bookie", REQUEST)]


def settling(future: AppendFuture[Any]) -> list[Effect]:
    return [Settle([(future, None)])]


def test_answers_before_send_returns_are_taken_after_it() -> None:
    left = [Finished(7)] + [Send("bookie", REQUEST)] * 5000  # nested calls would be too deep
    machine = Machine(lambda: [left.pop()])
    driver = Driver(0, machine, FakeRuntime())
    driver.post(ask)
    assert (driver.done.result(0), machine.replies) == (7, 5001)


def test_drivers_do_not_nest_in_each_other() -> None:
    count = 3000
    drivers: list[Driver] = []

    def next_one(number: int) -> list[Effect]:
        if number + 1 < count:
            drivers[number + 1].post(ask)
        return [Finished(number)]

    drivers += (Driver(i, Machine(lambda i=i: next_one(i)), FakeRuntime()) for i in range(count))
    drivers[0].post(ask)
    assert [driver.done.result(0) for driver in drivers] == list(range(count))


def test_callbacks_run_without_a_lock(apart: Apart) -> None:
    """A callback may call the driver whose effect called it, and so may a thread for which it waits."""
    driver = Driver(0, Machine(), FakeRuntime())
    future: AppendFuture[int] = AppendFuture(1)
    seen: list[Any] = []
    with ThreadPoolExecutor(1) as other:

        def callback(_: AppendFuture[int]) -> None:
            seen.append(driver.call(lambda: (2, [])))
            seen.append(other.submit(driver.call, lambda: (3, [])).result(timeout=30))

        future.add_done_callback(callback)
        apart(driver.call, lambda: (None, [*settling(future), *ask()]))
    assert seen == [2, 3]


def test_a_call_that_raises_leaves_no_event_behind() -> None:
    machine = Machine()
    driver = Driver(0, machine, FakeRuntime())
    threads: list[threading.Thread] = []

    def refuse() -> tuple[None, list[Effect]]:
        threads.append(threading.Thread(target=driver.post, args=(ask,)))
        threads[0].start()
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        driver.call(refuse)
    threads[0].join()
    assert machine.replies == 1


def test_many_threads_one_event_at_a_time() -> None:
    machine = Machine()
    driver = Driver(0, machine, FakeRuntime())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: driver.post(ask), range(2000)))
    assert machine.replies == 2000


def test_adds_that_follow_each_other_are_handed_over_together() -> None:
    """Each entry is handled once for all of its bookies. Other effects between adds keep their order."""
    tracker, handed = AckTracker(3, 3, 2), list[list[str]]()

    class Adding(FakeRuntime):
        def add(self, adds: Sequence[Any]) -> None:
            handed.append([bookie for bookie, _, _ in adds])

        def send(self, bookie: str, request: Request, on_reply: OnReply) -> None:
            handed.append([f"{bookie} is asked"])

    def adds(bookies: str) -> list[Effect]:
        return [Send(bookie, REQUEST, Part(tracker, place, 0, 0)) for place, bookie in enumerate(bookies)]

    driver = Driver(0, Machine(), Adding())
    driver.post(lambda: [*adds("abc"), Send("a", REQUEST), *adds("bc")])
    assert handed == [["a", "b", "c"], ["a is asked"], ["b", "c"]]


def test_acks_are_settled_in_the_machines_order() -> None:
    futures: list[AppendFuture[int]] = [AppendFuture(number) for number in range(2000)]
    coming = iter(futures)
    order: list[int] = []
    for future in futures:
        future.add_done_callback(lambda future: order.append(future.result()))
    driver = Driver(0, Machine(lambda: settling(next(coming))), FakeRuntime())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: driver.post(ask), futures))
    assert order == sorted(order) and len(order) == len(futures)


def test_a_driver_takes_a_repeated_answer_once() -> None:
    runtime, machine = FakeRuntime(), Machine()
    runtime.answer = lambda on_reply: [on_reply(Reply(ReplyStatus.OK)) for _ in range(3)]
    Driver(0, machine, runtime).post(ask)
    assert machine.replies == 1


def test_finishing_takes_back_the_timers() -> None:
    runtime = FakeRuntime()
    driver = Driver(0, Machine(lambda: [Finished(1)]), runtime)
    driver.post(lambda: [Wake(60, None), Wake(60, None)])
    assert [timer.cancelled for timer in runtime.timers] == [False, False]
    driver.post(ask)
    assert [timer.cancelled for timer in runtime.timers] == [True, True]


def test_timers_fire_in_another_thread_while_a_driver_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    calls: list[Callable[[], None]] = []

    def set_timer(seconds: float, call: Callable[[], None]) -> Timer:
        calls.append(call)
        return Timer()

    monkeypatch.setattr(runtime, "wake_after", set_timer)
    with eager_switching(), ThreadPoolExecutor(1) as pool:
        for _ in range(ROUNDS):
            driver = Driver(0, Machine(lambda: [Finished(1)]), runtime)
            driver.post(lambda: [Wake(60, None)] * TIMERS)
            fired = pool.submit(lambda due: [call() for call in due], calls[:])
            driver.post(ask)
            fired.result(PATIENCE_S)
            assert driver.done.result(PATIENCE_S) == 1
            calls.clear()


@pytest.mark.parametrize(("rest", "timers"), [([Finished(7)], 0), ([], 1)])
def test_a_timer_is_set_if_anything_is_waited_for(rest: list[Effect], timers: int) -> None:
    runtime = FakeRuntime()
    driver = Driver(0, Machine(lambda: rest), runtime)
    driver.post(lambda: [*ask(), Wake(1.0, None)])
    assert (len(runtime.timers), driver.done.done()) == (timers, not timers)


def test_a_timer_that_is_due_before_its_driver_has_it_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, machine = FakeRuntime(), Machine()
    set_timer = runtime.wake_after

    def at_once(seconds: float, call: Callable[[], None]) -> Timer:
        call()
        return set_timer(seconds, call)

    monkeypatch.setattr(runtime, "wake_after", at_once)
    monkeypatch.setattr(machine, "woken", lambda about: [Finished(about)], raising=False)
    driver = Driver(7, machine, runtime)
    driver.post(lambda: [Wake(0.001, "metadata")])
    assert driver.done.result(0) == "metadata" and not driver._timers


def test_a_machine_that_fails_is_done(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[Effect]:
        raise ZeroDivisionError("a bug")

    driver = Driver(5, Machine(broken), FakeRuntime())
    with caplog.at_level(logging.ERROR):
        driver.post(ask)
    with pytest.raises(ZeroDivisionError):
        driver.done.result(0)
    assert "ledger 5" in caplog.text


def test_a_callback_that_ends_its_thread_leaves_nothing_undone() -> None:
    first, second = AppendFuture(1), AppendFuture(2)
    first.add_done_callback(lambda _: exec("raise SystemExit"))
    driver = Driver(0, Machine(lambda: [*settling(second), Finished(3)]), FakeRuntime())
    with pytest.raises(SystemExit):
        driver.call(lambda: (None, [*settling(first), *ask()]))
    assert (second.result(0), driver.done.result(0), in_callback()) == (2, 3, False)


def test_callbacks_know_that_they_must_not_wait() -> None:
    future: AppendFuture[int] = AppendFuture(1)
    caught: list[Exception] = []

    def callback(_: AppendFuture[int]) -> None:
        with pytest.raises(InvalidArgumentError) as actual_caught:
            check_may_wait()
        caught.append(actual_caught.value)

    future.add_done_callback(callback)
    Driver(0, Machine(), FakeRuntime()).call(lambda: (None, settling(future)))
    check_may_wait()
    assert len(caught) == 1


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


def test_ctrl_c_comes_after_the_step() -> None:
    done: list[str] = []

    def step() -> list[Effect]:
        signal.raise_signal(signal.SIGINT)
        done.append("step")
        return ask()

    machine = Machine()
    driver = Driver(0, machine, FakeRuntime())
    with pytest.raises(KeyboardInterrupt):
        driver.post(step)
    assert (done, machine.replies) == (["step"], 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_handled_once_behind_the_outermost_block() -> None:
    calls: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append("handled"))
    try:
        with defer_sigint:
            with defer_sigint:
                signal.raise_signal(signal.SIGINT)
            calls.append("behind the inner one")
        assert calls == ["behind the inner one", "handled"]
        with defer_sigint:
            calls.append("nothing came")
        assert calls == ["behind the inner one", "handled", "nothing came"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_of_others_is_theirs() -> None:
    """A thread other than the main one does not change the handler, and an ignored signal stays ignored."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: (defer_sigint.__enter__(), signal.getsignal(signal.SIGINT)))
        assert future.result()[1] is signal.default_int_handler
        pool.submit(defer_sigint.__exit__, None, None, None).result()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_sigint:
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
