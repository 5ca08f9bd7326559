"""Threads for blocking jobs: which jobs are dropped at the end."""

from __future__ import annotations

import threading
import time

import pytest

from pyreplog.ledger.thread_pool import ThreadPool


def test_jobs_that_were_submitted_are_done() -> None:
    workers, done = ThreadPool(2, "worker"), list[int]()
    for number in range(100):
        workers.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert workers.close()
    workers.submit(lambda: done.append(-1))
    assert sorted(done) == list(range(100))


def test_jobs_that_did_not_begin_in_time_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A job that runs is not interrupted, and its thread ends after it."""
    workers, done = ThreadPool(1, "worker"), list[int]()
    began, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        goes_on.wait()
        done.append(0)

    workers.submit(wait)
    for number in range(1, 4):
        workers.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert began.wait(60)
    began_s = time.monotonic()
    assert not workers.close(0.05)
    assert time.monotonic() - began_s < 30 and done == []
    goes_on.set()
    for thread in workers._threads:
        thread.join(60)
        assert not thread.is_alive()
    assert done == [0]
    assert "worker: 3 jobs had not begun when the time was over, and were dropped" in caplog.text
