"""EventQueue: events run in the order of their posts, one at a time, also behind one that fails."""

from __future__ import annotations

import logging
import threading

import pytest

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.event_queue import EventQueue


def test_an_event_that_is_posted_by_an_event_runs_behind_it() -> None:
    queue, ran = EventQueue(), []

    def first() -> None:
        queue.post(lambda: ran.append("second"))
        ran.append("first")

    queue.post(first)
    assert ran == ["first", "second"]


def test_events_run_as_callbacks_that_must_not_wait() -> None:
    seen: list[bool] = []
    EventQueue().post(lambda: seen.append(in_callback()))
    assert seen == [True] and not in_callback()


def test_the_events_behind_one_that_fails_run(caplog: pytest.LogCaptureFixture) -> None:
    queue, ran = EventQueue(), []

    def failing() -> None:
        queue.post(lambda: ran.append("behind"))
        raise OSError("no luck")

    with caplog.at_level(logging.ERROR, "pyreplog.event_queue"):
        queue.post(failing)
    assert ran == ["behind"]
    assert "no luck" in caplog.text


def test_an_interrupted_event_leaves_the_others_to_the_same_post() -> None:
    queue, ran = EventQueue(), []

    def interrupted() -> None:
        queue.post(lambda: ran.append("behind"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.post(interrupted)
    assert ran == ["behind"]
    queue.post(lambda: ran.append("later"))
    assert ran == ["behind", "later"]


def test_the_thread_that_runs_events_runs_those_of_others() -> None:
    queue = EventQueue()
    threads: list[int] = []
    is_inside, may_end = threading.Event(), threading.Event()

    def held() -> None:
        is_inside.set()
        assert may_end.wait(10.0)

    runner = threading.Thread(target=lambda: queue.post(held))
    runner.start()
    assert is_inside.wait(10.0)
    queue.post(lambda: threads.append(threading.get_ident()))  # returns at once
    assert threads == []
    may_end.set()
    runner.join()
    assert threads == [runner.ident]
