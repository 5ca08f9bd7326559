"""The reactor: calls, timers, descriptors, and who drives it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pyreplog._native.system.polling import Epoll
from pyreplog.clock import ManualClock
from pyreplog.errors import ClosedError, ForkedError, InvalidArgumentError, ReplogError
from pyreplog.net import driver_lock
from pyreplog.net import reactor as reactor_module
from pyreplog.net.reactor import READ, Reactor
from tests.net.peers import TIMEOUT_S, Recorder, ask, call, forgotten, wait


class CountingEpoll:
    """Notes how long each poll may sleep."""

    def __init__(self, epoll: Epoll) -> None:
        self._epoll = epoll
        self.timeouts: list[float] = []
        self.polled = threading.Condition()

    def poll(self, timeout: float, spin_us: int) -> list[tuple[int, int]]:
        with self.polled:
            self.timeouts.append(timeout)
            self.polled.notify_all()
        return self._epoll.poll(timeout, spin_us)

    def fall_asleep(self) -> bool:
        """Wait for a poll that may sleep for ever."""
        with self.polled:
            return self.polled.wait_for(lambda: self.timeouts[-1] >= reactor_module._FOREVER_S, TIMEOUT_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def test_calls_are_made_in_order_from_any_thread(reactor: Reactor) -> None:
    numbers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda k=k: [reactor.call_soon(lambda i=i: numbers.append(i)) for i in range(k, k + 100)]
        )  # type: ignore[misc]
        for k in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(reactor, lambda: len(numbers) == 300)
    for k in (0, 100, 200):
        assert [i for i in numbers if k <= i < k + 100] == list(range(k, k + 100))


def test_timers_run_at_their_times_unless_cancelled() -> None:
    clock = ManualClock(0)
    gone: list[str] = []
    with Reactor(clock=clock) as reactor:
        reactor.call_later(2.0, lambda: gone.append("second"))
        reactor.call_later(1.0, lambda: gone.append("first"))
        cancelled = reactor.call_later(1.5, lambda: gone.append("never"))
        assert cancelled.cancel() and not cancelled.cancel()

        def after_a_round() -> list[str]:
            rounds: list[None] = []
            reactor.call_soon(lambda: rounds.append(None))
            wait(reactor, lambda: bool(rounds))
            reactor.call_soon(lambda: rounds.append(None))
            wait(reactor, lambda: len(rounds) == 2)
            return gone

        clock.advance(999_000)
        assert after_a_round() == []
        clock.advance(2_000)
        assert after_a_round() == ["first"]
        clock.advance(5_000_000)
        assert after_a_round() == ["first", "second"]


def test_a_timer_set_by_another_thread_wakes_a_sleeping_reactor(reactor: Reactor) -> None:
    gone = threading.Event()
    reactor.call_later(0.001, gone.set)
    assert gone.wait(TIMEOUT_S)


def test_registered_descriptors_call_back_until_unregistered(reactor: Reactor) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen: list[bytes] = []
        ours.setblocking(False)
        reactor.register(ours.fileno(), lambda _: seen.append(ours.recv(10)), READ)
        theirs.send(b"a")
        wait(reactor, lambda: seen == [b"a"])
        reactor.modify(ours.fileno(), 0)
        theirs.send(b"b")
        rounds: list[None] = []
        reactor.call_soon(lambda: rounds.append(None))
        wait(reactor, lambda: bool(rounds))
        assert seen == [b"a"]
        reactor.modify(ours.fileno(), READ)
        wait(reactor, lambda: seen == [b"a", b"b"])
        reactor.unregister(ours.fileno())
        reactor.unregister(ours.fileno())


def test_exceptions_of_callbacks_are_logged_and_do_not_stop_the_reactor(
    reactor: Reactor, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, caplog.at_level(logging.CRITICAL):
        gone: list[str] = []

        def fail(_: int = 0) -> None:
            gone.append("failed")
            raise RuntimeError("planted")

        reactor.register(ours.fileno(), fail, READ)
        theirs.send(b"never read")
        reactor.call_soon(fail)
        reactor.call_later(0.0, fail)
        reactor.call_soon(lambda: gone.append("called"))
        wait(reactor, lambda: gone.count("failed") == 3 and "called" in gone)
        reactor.register(ours.fileno(), lambda _: reactor.unregister(ours.fileno()), READ)  # it was unregistered
        wait(reactor, lambda: ours.fileno() not in reactor._callbacks)


# ---- who drives ------------------------------------------------------------------------------------------------


def test_idle_reactor_does_not_poll() -> None:
    with Reactor() as reactor:
        epoll = reactor._epoll = CountingEpoll(reactor._epoll)  # type: ignore[assignment]
        epoll.timeouts.append(0.0)
        reactor.start()
        assert epoll.fall_asleep()
        assert reactor.drive(lambda: False, 0.001) is False
        assert epoll.fall_asleep(), "the reactor's own thread never took it back"
        assert len(epoll.timeouts) < 10


def test_waiting_thread_drives_a_reactor_without_a_thread() -> None:
    with Reactor() as reactor:
        drivers: list[int] = []
        reactor.call_soon(lambda: drivers.append(threading.get_ident()))
        wait(reactor, lambda: bool(drivers))
        assert drivers == [threading.get_ident()] and not reactor.in_driver()


def test_waiting_thread_takes_over_the_driver_role(reactor: Reactor) -> None:
    drivers: list[int] = []

    def note() -> None:
        drivers.append(threading.get_ident())
        reactor.call_soon(note)

    reactor.call_soon(note)
    wait(reactor, lambda: threading.get_ident() in drivers)


def test_drive_returns_false_after_its_time_out(reactor: Reactor) -> None:
    assert reactor.drive(lambda: False, 0.01) is False
    assert reactor.drive(lambda: True, 0.0) is True
    assert reactor.drive(lambda: False, -1.0) is False


def test_a_callback_that_would_drive_the_reactor_is_refused(reactor: Reactor) -> None:
    errors: list[Exception] = []

    def wait_inside() -> None:
        try:
            reactor.drive(lambda: False, 1.0)
        except InvalidArgumentError as error:
            errors.append(error)

    reactor.call_soon(wait_inside)
    wait(reactor, lambda: bool(errors))
    assert "callback" in str(errors[0])


@pytest.mark.parametrize("started", [True, False])
def test_many_threads_each_get_their_own_reply(
    started: bool, serve: Any, connect: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_lock, "REST_S", TIMEOUT_S)  # wake-ups are not to be made up for
    reactor = opened.enter_context(Reactor())
    if started:
        reactor.start()
    channel = connect(serve(Recorder()), reactor=reactor)
    wrong: list[object] = []

    def work(k: int) -> None:
        for i in range(50):
            body = f"{k}/{i}".encode()
            if call(reactor, channel, body) != body:
                wrong.append(body)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not wrong
    wait(reactor, lambda: channel.inflight == 0)


def test_leaving_driver_wakes_the_next_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_lock, "REST_S", TIMEOUT_S)
    held, asleep = driver_lock.DriverLock(), threading.Event()
    held.owner = threading.get_ident()
    assert held.take() and held.take() and held.is_owned()
    took: list[bool] = []

    def follow() -> None:
        held.wait(lambda: False, TIMEOUT_S, asleep.set)
        took.append(held.take())

    thread = threading.Thread(target=follow)
    thread.start()
    assert asleep.wait(TIMEOUT_S)
    del held.holder[driver_lock.DRIVER]
    held.given_back()
    thread.join(TIMEOUT_S / 2)
    assert took == [True]


def test_exception_of_a_wait_condition_is_raised_in_its_own_thread(reactor: Reactor) -> None:
    ready = threading.Event()
    caught: list[BaseException] = []

    def fail() -> bool:
        if not ready.is_set():
            ready.set()
            return False
        raise RuntimeError("planted")

    def wait_badly() -> None:
        try:
            reactor.drive(fail, TIMEOUT_S)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=wait_badly)
    thread.start()
    assert ready.wait(TIMEOUT_S)
    wait(reactor, lambda: reactor.call_soon(lambda: None) is None and bool(caught))  # type: ignore[func-returns-value]
    thread.join()


def test_busy_polling_finds_the_same(serve: Any, connect: Any, opened: Any) -> None:
    reactor = opened.enter_context(Reactor(busy_poll_us=200))
    channel = connect(serve(Recorder()), reactor=reactor)
    for i in range(20):
        assert call(reactor, channel, b"%d" % i) == b"%d" % i
    assert reactor.drive(lambda: False, 0.001) is False
    with pytest.raises(InvalidArgumentError):
        Reactor(busy_poll_us=-1)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_interrupts_a_waiting_thread(reactor: Reactor, serve: Any, connect: Any) -> None:
    held = Recorder(answer=None)
    server = serve(held, reactor=reactor)
    channel = connect(server)
    outcomes: list[object] = []

    def other() -> None:
        outcomes.append(ask(reactor, channel, b"other"))

    thread = threading.Thread(target=other)
    thread.start()
    wait(reactor, lambda: bool(held.requests))
    waiting = threading.Event()

    def interrupt() -> None:
        assert waiting.wait(TIMEOUT_S)
        signal.raise_signal(signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            reactor.drive(lambda: waiting.set() is not None, TIMEOUT_S)
    interrupter.join(TIMEOUT_S)
    connection, correlation_id, _ = held.requests[0]
    connection.reply(correlation_id, b"reply")  # type: ignore[attr-defined]
    thread.join(TIMEOUT_S)
    assert not thread.is_alive() and bytes(outcomes[0]) == b"reply"  # type: ignore[call-overload]


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """The alarm is a Ctrl-C; which came."""
    came: list[int] = []

    def interrupt(signum: int, _: object) -> None:
        came.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield came
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_at_any_moment_interrupts_one_caller_only(
    reactor: Reactor, serve: Any, connect: Any, opened: ExitStack, interrupts: list[int], seed: int
) -> None:
    """Real signals at random moments of busy calls. The one who is interrupted lets go; others get their outcome."""
    ours = opened.enter_context(Reactor())
    ours.start()
    channel = connect(serve(Recorder()), reactor=ours)
    call(ours, channel, b"warm")
    draw = random.Random(seed)
    stopping = threading.Event()
    outcomes: list[object] = []

    def others() -> None:
        while not stopping.is_set():
            outcomes.append(ask(ours, channel, b"other"))

    threads = [threading.Thread(target=others) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            interrupts.clear()
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0001, 0.004))
                while not interrupts:  # Python swallows one that comes in a finalizer
                    ask(ours, channel, b"mine")
            outcomes.clear()
            wait(ours, lambda: len(outcomes) >= 4)
    finally:
        stopping.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a thread hangs"
    while ask(ours, channel, b"next") != b"next":
        assert channel.error is None


# ---- the end ---------------------------------------------------------------------------------------------------


def test_a_closed_reactor_refuses_calls(reactor: Reactor) -> None:
    reactor.close()
    reactor.close()
    calls: list[Callable[[], object]] = [
        reactor.start,
        reactor.run,
        lambda: reactor.call_soon(gc.collect),
        lambda: reactor.call_later(1.0, gc.collect),
        lambda: reactor.drive(lambda: False),
        lambda: reactor.register(0, lambda _: None, READ),
    ]
    for refused in calls:
        with pytest.raises(ClosedError, match="reactor"):
            refused()
    with pytest.raises(TypeError):
        pickle.dumps(reactor)


def test_close_wakes_waiting_threads(reactor: Reactor) -> None:
    errors: list[ReplogError] = []
    waiting = threading.Barrier(4)

    def wait_long() -> None:
        waiting.wait()
        try:
            reactor.drive(lambda: False, TIMEOUT_S)
        except ReplogError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait_long) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait()
    reactor.close()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [ClosedError] * 3


def test_a_callback_may_close_its_reactor() -> None:
    reactor = Reactor()
    reactor.call_soon(reactor.close)
    with pytest.raises(ClosedError):
        reactor.drive(lambda: False, TIMEOUT_S)
    assert reactor._epoll.closed
    running = Reactor()
    running.call_soon(running.close)
    running.run()
    assert running._epoll.closed


def test_a_stopped_reactor_runs_again() -> None:
    with Reactor() as reactor:
        reactor.call_soon(reactor.stop)
        reactor.run()
        reactor.start()
        with pytest.raises(InvalidArgumentError, match="running"):
            reactor.start()
        reactor.stop()
        reactor.call_soon(reactor.stop)
        reactor.run()


def test_calls_queued_before_close_are_run() -> None:
    numbers: list[int] = []
    with Reactor() as reactor:
        reactor.call_soon(lambda: numbers.append(1))
    assert numbers == [1]


@pytest.mark.parametrize("started", [True, False])
def test_garbage_collected_reactor_emits_a_resource_warning(started: bool) -> None:
    kept = [Reactor()]
    if started:
        kept[0].start()
    thread = kept[0]._thread
    with Reactor() as other:
        forgotten(other, kept, "unclosed reactor")
    if thread is not None:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_a_child_process_is_refused(reactor: Reactor, serve: Any, connect: Any) -> None:
    server = serve(Recorder())
    channel = connect(server)
    assert call(reactor, channel, b"before") == b"before"
    pid = os.fork()
    if pid == 0:
        refused = 0
        try:
            for use in (
                lambda: reactor.drive(lambda: False),
                lambda: reactor.call_soon(gc.collect),
                lambda: channel.request(b"x", on_reply=print, timeout=1.0),
                lambda: server.drain(1.0),
            ):
                try:
                    use()
                except ForkedError:
                    refused += 1
            for handle in (channel, server, reactor):
                handle.close()
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert call(reactor, channel, b"after") == b"after"


def test_a_closed_reactor_does_not_keep_the_others_from_hearing_of_a_fork() -> None:
    """In whatever order they hear of it."""
    closed = [Reactor(), Reactor()]
    with Reactor() as open_one:
        for reactor in closed:
            reactor.close()
        pid = os.fork()
        if pid == 0:
            os._exit(sum(isinstance(reactor._error, ForkedError) for reactor in (*closed, open_one)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_an_idle_process_ends() -> None:
    """A daemon thread that sleeps in epoll does not keep the interpreter, nor is it met by its end."""
    code = "from pyreplog.net.reactor import Reactor; r = Reactor(); r.start(); r.close(); r = Reactor(); r.start(); r.close()"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_process_that_forgets_its_reactor_ends() -> None:
    """Its thread is gone by then, with the baton: a close would wait for it for ever."""
    code = "from pyreplog.net.reactor import Reactor; r = Reactor(); r.start()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
