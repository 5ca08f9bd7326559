"""What an epoll of ours finds, asleep or not, and what it says when there is nothing."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pyreplog._native.system.polling import Epoll
from pyreplog.net.reactor import BROKEN, READ, WRITE

Pair = tuple[socket.socket, socket.socket]

LONG_S = 60.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def epoll() -> Iterator[Epoll]:
    epoll = Epoll()
    yield epoll
    epoll.close()


WAYS = {"asleep": 0, "spinning": int(LONG_S * 1e6), "first one, then the other": 100}


@pytest.mark.parametrize("spin_us", WAYS.values(), ids=WAYS)
def test_poll_reports_an_event_until_it_is_over(epoll: Epoll, pair: Pair, spin_us: int) -> None:
    ours, theirs = pair
    epoll.register(theirs.fileno(), READ)
    sender = threading.Timer(0.01, lambda: ours.send(b"x"))
    sender.start()
    for _ in range(2):
        assert epoll.poll(LONG_S, spin_us) == [(theirs.fileno(), READ)]
    sender.join()
    epoll.modify(theirs.fileno(), READ | WRITE)
    assert epoll.poll(LONG_S, spin_us) == [(theirs.fileno(), READ | WRITE)]
    theirs.recv(1)
    assert epoll.poll(LONG_S, spin_us) == [(theirs.fileno(), WRITE)]
    epoll.unregister(theirs.fileno())
    assert epoll.poll(0.0, spin_us) == []


@pytest.mark.parametrize(("timeout_s", "spin_us"), [(0.0, 0), (-1.0, 0), (0.0, 1 << 40), (0.001, 0), (0.001, 1 << 40)])
def test_poll_returns_an_empty_list_at_its_timeout(epoll: Epoll, timeout_s: float, spin_us: int) -> None:
    assert epoll.poll(timeout_s, spin_us) == []


def test_poll_reports_a_broken_stream_registered_for_no_events(epoll: Epoll, pair: Pair) -> None:
    ours, theirs = pair
    epoll.register(theirs.fileno(), 0)
    ours.close()
    ((fd, events),) = epoll.poll(LONG_S, 0)
    assert fd == theirs.fileno() and events & BROKEN


def test_more_events_than_one_look_takes_come_with_the_next(epoll: Epoll) -> None:
    streams = [os.eventfd(1) for _ in range(100)]
    try:
        for fd in streams:
            epoll.register(fd, READ)
        left = set(streams)
        while left:
            actual_events = epoll.poll(LONG_S, 0)
            assert actual_events and len(actual_events) <= 64
            for fd, events in actual_events:
                assert events == READ
                os.eventfd_read(fd)
                left.remove(fd)
        assert epoll.poll(0.0, 0) == []
    finally:
        for fd in streams:
            os.close(fd)


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has something called by the handler of a signal that comes while the caller sleeps."""
    done = threading.Event()

    def begin(call: Callable[[], object]) -> None:
        def ring() -> None:
            main = threading.main_thread().ident
            while not done.wait(0.01):
                signal.pthread_kill(main or 0, signal.SIGALRM)

        signal.signal(signal.SIGALRM, lambda *_: call())
        thread.append(threading.Thread(target=ring))
        thread[0].start()

    thread: list[threading.Thread] = []
    before = signal.getsignal(signal.SIGALRM)
    try:
        yield begin
    finally:
        done.set()
        thread[0].join()
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_poll_and_its_handler_is_called(
    epoll: Epoll, alarm: Callable[[Callable[[], object]], None]
) -> None:
    came: list[None] = []
    alarm(lambda: came.append(None))
    assert epoll.poll(LONG_S, 0) == [] and came


def test_poll_raises_exceptions_of_signal_handlers(epoll: Epoll, alarm: Callable[[Callable[[], object]], None]) -> None:
    def fail() -> None:
        if not failed:
            failed.append(None)
            raise KeyError("of the handler")

    failed: list[None] = []
    with pytest.raises(KeyError):
        alarm(fail)
        while True:
            epoll.poll(LONG_S, 0)


def test_a_signal_that_comes_while_it_spins_ends_no_sleep_behind(epoll: Epoll, pair: Pair) -> None:
    ours, theirs = pair
    came, in_time = threading.Event(), []

    def ring() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        in_time.append(came.wait(30.0))
        ours.send(b"the sleep is over")

    epoll.register(theirs.fileno(), READ)
    before = signal.signal(signal.SIGALRM, lambda *_: came.set())
    ringer = threading.Timer(0.05, ring)
    try:
        ringer.start()
        while not came.is_set():
            epoll.poll(LONG_S, 200_000)
        ringer.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert in_time == [True]


def test_calls_of_a_closed_epoll_raise_value_error(epoll: Epoll, pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(OSError) as caught:
        epoll.modify(ours.fileno(), READ)
    assert caught.value.errno == errno.ENOENT
    assert not epoll.closed
    epoll.close()
    assert epoll.closed
    for call in (
        lambda: epoll.poll(0.0, 0), lambda: epoll.modify(ours.fileno(), READ), lambda: epoll.register(ours.fileno(), READ)
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()
