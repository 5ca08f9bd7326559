"""Requests that block: connections take turns at the threads, are slowed down alone, and end with their connection."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import ClosedError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.net.connection import JOBS_FULL, Connection
from pyreplog.net.fair_executor import FairExecutor, check_connected, wait_while_connected
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from tests.net.conftest import Connect, Serve
from tests.net.peers import RawClient, call
from tests.waiting import PATIENCE_S, until


class Peer:
    """A connection, as far as FairExecutor knows one."""

    def __init__(self) -> None:
        self.held = 0

    def hold(self, reason: int) -> None:
        self.held |= reason

    def release(self, reason: int) -> None:
        self.held &= ~reason


class Work:
    """Jobs that say that they have begun, and end when they may."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.may_end = threading.Event()

    def job(self, name: str) -> Any:
        def work() -> None:
            self.begun.append(name)
            assert self.may_end.wait(PATIENCE_S)
            self.ended.append(name)

        return work


@contextmanager
def opened(*, threads: int = 4, **settings: int) -> Iterator[tuple[FairExecutor, Any, Work]]:
    jobs, work = FairExecutor("test-jobs", threads=threads, **settings), Work()
    try:
        yield jobs, jobs.submit, work
    finally:
        work.may_end.set()
        jobs.close()


def test_many_jobs_of_one_connection_leave_threads_to_others() -> None:
    with opened(threads_max=4, running_max=2) as (_, submit, work):
        greedy, modest = Peer(), Peer()
        for number in range(50):
            submit(greedy, work.job(f"greedy {number}"))
        until(lambda: len(work.begun) == 2)
        submit(modest, work.job("modest"))
        until(lambda: "modest" in work.begun)
        assert sorted(work.begun) == ["greedy 0", "greedy 1", "modest"]


def test_connections_take_turns_at_the_threads() -> None:
    """With one thread, each in its turn, whoever came first."""
    with opened(threads=1, threads_max=1, running_max=1) as (_, submit, work):
        peers = {name: Peer() for name in "abc"}
        submit(peers["a"], work.job("first"))
        until(lambda: work.begun)
        for name, count in (("a", 5), ("b", 2), ("c", 1)):
            for number in range(count):
                submit(peers[name], work.job(f"{name}{number}"))
        work.may_end.set()
        until(lambda: len(work.ended) == 9)
        assert work.begun == ["first", "b0", "c0", "a0", "b1", "a1", "a2", "a3", "a4"]


def test_threads_that_stand_still_do_not_hold_up_all() -> None:
    """Each of two connections blocks as many threads as it may; a third one is served all the same."""
    with opened(threads=2, threads_max=8, running_max=2) as (_, submit, work):
        for name in "ab":
            peer = Peer()
            for number in range(5):
                submit(peer, work.job(f"{name}{number}"))
        until(lambda: len(work.begun) == 4)
        submit(Peer(), work.job("third"))
        until(lambda: "third" in work.begun)
        assert len(work.begun) == 5


def test_jobs_that_compute_do_not_take_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one after the other is begun, no more run at a time than are wanted."""
    monkeypatch.setattr("pyreplog.net.fair_executor.STALL_S", PATIENCE_S)
    running, most, done = [0], [0], [0]
    lock = threading.Lock()

    def compute() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        sum(range(1000))
        with lock:
            running[0] -= 1
            done[0] += 1

    with opened(threads=2, threads_max=16) as (_, submit, _work):
        peers = [Peer() for _ in range(10)]
        for number in range(2000):
            submit(peers[number % 10], compute)
        until(lambda: done[0] == 2000)
    assert most[0] <= 2


def test_queued_jobs_of_a_closed_connection_are_not_begun() -> None:
    with opened(threads_max=2, running_max=1) as (jobs, submit, work):
        gone, other = Peer(), Peer()
        for number in range(10):
            submit(gone, work.job(f"gone {number}"))
        until(lambda: work.begun)
        jobs.leave(gone)
        submit(other, work.job("other"))
        work.may_end.set()
        until(lambda: len(work.ended) == 2)
        assert sorted(work.begun) == ["gone 0", "other"] and jobs.queued == 0
        submit(gone, work.job("again"))  # nothing of it is left
        until(lambda: "again" in work.ended)


def test_closed_connection_is_freed_while_its_job_is_queued() -> None:
    with opened(threads=1, threads_max=1, running_max=1) as (jobs, submit, work):
        gone = Peer()
        submit(Peer(), work.job("first"))
        until(lambda: work.begun)
        submit(gone, work.job("gone"))
        jobs.leave(gone)
        kept = weakref.ref(gone)
        del gone
        submit(Peer(), work.job("next"))
        work.may_end.set()
        until(lambda: work.ended == ["first", "next"])
        until(lambda: (gc.collect(), kept() is None)[1])


def test_check_connected_raises_in_jobs_of_a_closed_connection_only() -> None:
    """Of the connection that has gone alone; other threads are not concerned."""
    with opened(threads_max=2, running_max=1) as (jobs, submit, _):
        gone, other, steps, ended = Peer(), Peer(), {"gone": 0, "other": 0}, list[str]()
        is_over = threading.Event()

        def work(name: str) -> None:
            try:
                while not is_over.is_set():
                    check_connected()
                    steps[name] += 1
            except ClosedError as error:
                ended.append(f"{name}: {error}")

        submit(gone, lambda: work("gone"))
        submit(other, lambda: work("other"))
        until(lambda: min(steps.values()) > 0)
        jobs.leave(gone)
        until(lambda: ended)
        before = steps["other"]
        until(lambda: steps["other"] > before)
        is_over.set()
        assert ended == ["gone: the connection that asked for this has ended"]
        submit(other, check_connected)
        check_connected()


def test_wait_while_connected_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.net.fair_executor.POLL_S", 0.01)
    with opened(threads_max=3, running_max=2) as (jobs, submit, _):
        gone, outcomes = Peer(), list[Any]()
        never, late, unknown = AppendFuture[int](), AppendFuture(7), AppendFuture[int]()
        set_exception(unknown, OutcomeUnknownError("of the ack itself"))

        def wait(future: AppendFuture[int]) -> None:
            try:
                outcomes.append(wait_while_connected(AppendFuture.result, future))
            except ReplogError as error:
                outcomes.append(f"{type(error).__name__}: {error}")

        for future in (late, unknown, never):
            submit(gone, lambda future=future: wait(future))
        until(lambda: jobs.running == 2)
        set_result(late)
        until(lambda: len(outcomes) == 2)
        assert sorted(map(str, outcomes)) == ["7", "OutcomeUnknownError: of the ack itself"]
        jobs.leave(gone)
        until(lambda: len(outcomes) == 3)
        assert outcomes[2] == "ClosedError: the connection that asked for this has ended"
        assert not never.done(), "others may wait for it, too"
        assert wait_while_connected(AppendFuture.result, late) == 7


def test_connection_with_a_full_job_queue_is_paused() -> None:
    with opened(threads=1, threads_max=1, running_max=1, queued_max=4) as (jobs, submit, work):
        peer, held = Peer(), []
        submit(peer, work.job("first"))
        until(lambda: work.begun)
        for number in range(6):
            submit(peer, work.job(str(number)))
            held.append(peer.held)
        assert held == [0, 0, 0, JOBS_FULL, JOBS_FULL, JOBS_FULL]
        work.may_end.set()
        until(lambda: len(work.ended) == 7)
        assert peer.held == 0 and jobs.queued == 0


def test_paused_connection_is_resumed_when_half_of_its_jobs_have_begun() -> None:
    with opened(threads=1, threads_max=1, running_max=1, queued_max=4) as (jobs, submit, _):
        peer, begun = Peer(), list[int]()
        may_end = [threading.Event() for _ in range(5)]

        def job(number: int) -> None:
            begun.append(number)
            assert may_end[number].wait(PATIENCE_S)

        submit(peer, lambda: job(0))
        until(lambda: begun == [0])
        for number in range(1, 5):
            submit(peer, lambda number=number: job(number))
        assert (jobs.queued, jobs.running, peer.held) == (4, 1, JOBS_FULL)
        may_end[0].set()
        until(lambda: begun == [0, 1])
        assert (jobs.queued, peer.held) == (3, JOBS_FULL), "more than half of them wait"
        may_end[1].set()
        until(lambda: begun == [0, 1, 2])
        assert (jobs.queued, jobs.running, peer.held) == (2, 1, 0)
        for event in may_end:
            event.set()
        until(lambda: jobs.running == 0 and begun == [0, 1, 2, 3, 4])


def test_the_end_waits_for_what_runs_as_long_as_it_may_and_drops_what_waits() -> None:
    with opened(threads=1, threads_max=1, running_max=1) as (jobs, submit, work):
        peer = Peer()
        submit(peer, work.job("runs"))
        until(lambda: work.begun)
        submit(peer, work.job("waits"))
        submit(Peer(), work.job("of another"))
        jobs.close(0.01)
        assert (work.ended, jobs.queued, jobs.running) == ([], 0, 1)
        (thread,) = jobs.stop()
        closing = threading.Thread(target=jobs.close)
        closing.start()
        closing.join(0.01)
        assert closing.is_alive(), "the job still runs"
        work.may_end.set()
        closing.join(PATIENCE_S)
        assert not closing.is_alive() and not thread.is_alive()
        assert (work.begun, work.ended, jobs.stop()) == (["runs"], ["runs"], [])


def test_exception_of_a_job_does_not_stop_other_jobs(caplog: pytest.LogCaptureFixture) -> None:
    with opened(threads=1, threads_max=1, running_max=1) as (_, submit, work):
        work.may_end.set()
        submit(Peer(), lambda: 1 // 0)
        submit(Peer(), work.job("next"))
        until(lambda: work.ended)
    assert "a job raised" in caplog.text


def test_threads_end_and_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.net.fair_executor.IDLE_S", 0.01)
    with opened(threads_max=3, running_max=3) as (_, submit, work):
        peer = Peer()
        for name in "abc":
            submit(peer, work.job(name))
        until(lambda: len(work.begun) == 3)
        work.may_end.set()
        until(lambda: not any(thread.name == "test-jobs" for thread in threading.enumerate()))
        submit(peer, work.job("later"))
        until(lambda: "later" in work.ended)


def test_job_submitted_after_close_is_not_run() -> None:
    jobs, work = FairExecutor("test-jobs"), Work()
    jobs.close()
    jobs.submit(Peer(), work.job("late"))  # type: ignore[arg-type]
    assert work.begun == [] and jobs.queued == 0


# ---- over TCP --------------------------------------------------------------------------------------------------------


class Blocking:
    """A handler whose requests block until they may end, but those that say "now"."""

    def __init__(self) -> None:
        self.jobs = FairExecutor("test-jobs", threads_max=3, running_max=2, queued_max=8)
        self.work = Work()
        self.taken = 0
        self.connections: list[Connection] = []

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def frames(self, connection: Any, batch: FrameBatch) -> None:
        for number, body in batch:
            if body:
                self.taken += 1
                self.jobs.submit(connection, self._job(connection, number, bytes(body)))

    def _job(self, connection: Any, number: int, body: bytes) -> Any:
        wait = (lambda: None) if body == b"now" else self.work.job("slow")

        def work() -> None:
            wait()
            connection.reply(number, b"done")

        return work

    def drained(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self.jobs.leave(connection)


def test_a_flood_is_held_back_and_forgotten_when_its_connection_ends(
    reactor: Reactor, serve: Serve, connect: Connect
) -> None:
    """Also one that is not read any more, and only said that it sends nothing more: no heartbeat comes back to tell."""
    handler, quiet = Blocking(), Limits(heartbeat_ms=1_000_000, silence_ms=10_000_000)
    server = serve(handler, limits=quiet)
    channel = connect(server)
    try:
        with RawClient(server, limits=quiet) as flood:
            for number in range(100):
                flood.send(number, b"slow")
            until(lambda: handler.jobs.queued >= 8 and len(handler.work.begun) == 2)
            assert call(reactor, channel, b"now") == b"done"
            taken = handler.taken
        until(lambda: handler.jobs.queued == 0)
        assert call(reactor, channel, b"now") == b"done"
        assert handler.taken == taken + 1 and len(handler.work.begun) == 2
    finally:
        handler.work.may_end.set()
        handler.jobs.close()


PROGRAM = """
import threading
from pyreplog.net.fair_executor import FairExecutor

class Connection:
    def hold(self, reason): pass
    def release(self, reason): pass

begun = threading.Event()
FairExecutor("jobs", threads=1, threads_max=1).submit(Connection(), lambda: (begun.set(), threading.Event().wait()))
assert begun.wait(60)
"""


def test_a_job_that_never_ends_does_not_keep_its_program() -> None:
    """Of a server that was not closed: a request that blocks would need kill -9."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=PATIENCE_S)
