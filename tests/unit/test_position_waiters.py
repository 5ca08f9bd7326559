"""Submitted: acks in line for a sync, told by whoever drains."""

from __future__ import annotations

import gc
import sys
import threading
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import pytest

import pyreplog
from pyreplog._native.log.position_waiters import PositionWaiters
from pyreplog.errors import PoisonedError
from pyreplog.future import AppendFuture, expected_result
from pyreplog.log.files import RealFiles
from tests.waiting import until

PATIENCE_S = 30


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Makes threads lose the GIL as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def watched(submitted: PositionWaiters, *positions: int) -> list[AppendFuture[int]]:
    futures = [AppendFuture(position) for position in positions]
    for position, future in zip(positions, futures, strict=True):
        submitted.watch(position, future)
    return futures


def done(futures: list[AppendFuture[int]]) -> list[int]:
    return [future.result() for future in futures if future.done()]


def test_waiters_complete_only_when_the_queue_is_drained() -> None:
    submitted = PositionWaiters()
    futures = watched(submitted, 10, 20, 30)
    submitted.advance(20)
    assert done(futures) == []
    submitted.drain()
    assert done(futures) == [10, 20]
    submitted.advance(30)
    submitted.drain()
    assert done(futures) == [10, 20, 30]


def test_waiter_for_a_synced_position_completes_at_once() -> None:
    submitted = PositionWaiters()
    assert done(watched(submitted, 0)) == [0]
    submitted.advance(20)
    assert done(watched(submitted, 20, 21)) == [20]


def test_a_failure_is_of_those_that_are_not_synced() -> None:
    submitted = PositionWaiters()
    error = PoisonedError("sync failed")
    futures = watched(submitted, 10, 20)
    submitted.advance(10)
    submitted.fail(error)
    futures += watched(submitted, 10, 30)
    submitted.advance(40)  # after a failed sync no later one proves anything
    submitted.drain()
    futures += watched(submitted, 35)
    assert [future.exception() for future in futures] == [None, error, None, error, error]


def test_ctrl_c_in_a_callback_keeps_no_ack_from_its_failure() -> None:
    submitted, error = PositionWaiters(), PoisonedError("sync failed")
    synced, waiting = watched(submitted, 10, 20)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    synced.add_done_callback(interrupted)
    submitted.advance(10)
    with pytest.raises(KeyboardInterrupt):
        submitted.fail(error)
    assert (synced.exception(0), waiting.exception(0)) == (None, error)


def test_positions_come_a_second_time() -> None:
    submitted = PositionWaiters()
    submitted.advance(30)
    submitted.restart(10)
    futures = watched(submitted, 10, 20)
    assert done(futures) == [10]
    submitted.advance(20)
    submitted.drain()
    assert done(futures) == [10, 20]


def test_a_callback_may_submit_and_drain() -> None:
    submitted = PositionWaiters()
    told: list[int] = []

    def follow(future: AppendFuture[int]) -> None:
        told.append(future.result())
        if future.result() < 10:
            (following,) = watched(submitted, future.result() + 1)
            following.add_done_callback(follow)
            submitted.advance(future.result() + 1)
            submitted.drain()

    watched(submitted, 1)[0].add_done_callback(follow)
    submitted.advance(1)
    submitted.drain()
    assert told == list(range(1, 11))


def test_waiters_complete_as_in_a_simple_model(seed: int) -> None:
    """Positions in any order, beside a list that is searched."""
    rng = Random(seed)
    for _ in range(200):
        submitted, synced = PositionWaiters(), 0
        futures: list[AppendFuture[int]] = []
        for _ in range(rng.randint(1, 40)):
            if rng.random() < 0.6:
                futures += watched(submitted, rng.randint(0, 50))
            else:
                synced = max(synced, position := rng.randint(0, 50))
                submitted.advance(position)
                submitted.drain()
                assert sorted(done(futures)) == sorted(p for p in map(kept, futures) if p <= synced)
        submitted.advance(50)
        submitted.drain()
        assert all(future.done() for future in futures)


def kept(future: AppendFuture[int]) -> int:
    return expected_result(future)


@pytest.mark.usefixtures("eager_switching")
def test_concurrent_submit_advance_and_drain_complete_each_waiter_once() -> None:
    submitted, told = PositionWaiters(), Counter[int]()
    everybody = threading.Barrier(4)

    def submit(start: int) -> Callable[[], None]:
        def run() -> None:
            everybody.wait()
            for position in range(start, 2000, 2):
                watched(submitted, position)[0].add_done_callback(lambda future: told.update([future.result()]))

        return run

    def move() -> None:
        everybody.wait()
        for position in range(2000):
            submitted.advance(position)
            submitted.drain()

    threads = [threading.Thread(target=run) for run in (submit(1), submit(2), move, move)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    submitted.advance(2000)
    submitted.drain()
    assert told == Counter(range(1, 2000))


def test_a_finalizer_submits_in_the_middle_of_an_advance() -> None:
    """The collector runs wherever an object that it tracks is made."""
    submitted, futures, finalized = PositionWaiters(), list[AppendFuture[int]](), list[int]()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            finalized.append(len(futures))
            futures.extend(watched(submitted, len(futures) + 1))
            submitted.advance(len(futures))
            submitted.drain()

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(500):
            Cycle()
            futures.extend(watched(submitted, len(futures) + 1))
            submitted.advance(len(futures))
            submitted.drain()
    finally:
        gc.set_threshold(*thresholds)
    assert finalized
    assert all(future.done() for future in futures)


# ---- the thread that commits what was submitted ------------------------------------------------------------------


class Unsynced(RealFiles):
    """A disk that takes no time: what is to be seen are the threads."""

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self.write(fd, data, offset)


@pytest.mark.usefixtures("eager_switching")
def test_the_committing_thread_sleeps_through_no_submit(tmp_path: Path) -> None:
    """Each waits for its ack before the next one: the thread goes to sleep about as often as it is asked."""
    with pyreplog.open(tmp_path / "log", durability="synced", files=Unsynced()) as log:
        entries: list[int] = []

        def submit() -> None:
            entries.extend(log.submit(b"x").result(PATIENCE_S) for _ in range(400))

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(entries) == list(range(1200))


@pytest.mark.usefixtures("eager_switching")
def test_submitted_entry_committed_by_another_thread_completes(tmp_path: Path) -> None:
    """`sync` commits what was submitted, and a stage that is full is committed by who fills it."""
    with pyreplog.open(tmp_path / "log", durability="synced", files=Unsynced()) as log:
        turns = threading.Semaphore(0)
        over = False

        def disturb() -> None:
            """Once for each submission: nobody but the committing thread is there to tell of it afterwards."""
            while turns.acquire() and not over:
                log.append_pending(b"y")
                log.commit_stage()

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            for _ in range(1000):
                turns.release()
                log.submit(b"x").result(PATIENCE_S)
        finally:
            over = True
            turns.release()
            disturber.join()


def test_entry_committed_in_the_append_path_is_completed_by_the_committing_thread(tmp_path: Path) -> None:
    """That one went to sleep while another thread had the stage and was not done with it."""
    with pyreplog.open(tmp_path / "log", durability="synced") as log:
        submitted = log._submitted
        log.submit(b"early").result(PATIENCE_S)
        until(lambda: submitted.asleep)
        submitted.asleep = False  # it is awake
        future = log.submit(b"late")
        submitted.asleep = True  # it has found nothing staged
        log.commit_stage()
        assert future.result(PATIENCE_S) == 1


def test_a_callback_that_is_cancelled_does_not_end_the_committing_thread(tmp_path: Path) -> None:
    def cancelled(_: object) -> None:
        raise CancelledError

    with pyreplog.open(tmp_path / "log", durability="synced") as log:
        for entry in range(3):
            future = log.submit(b"x")
            future.add_done_callback(cancelled)
            assert future.result(PATIENCE_S) == entry


class AboutToSleep:
    """The acks of a log; calls `then`, once, when the committing thread is about to say that it sleeps."""

    def __init__(self, submitted: PositionWaiters) -> None:
        self.__dict__.update(submitted=submitted, then=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.submitted, name)

    def __setattr__(self, name: str, value: Any) -> None:
        then = self.then
        if name == "asleep" and value and then is not None:
            self.__dict__["then"] = None
            then()
        setattr(self.submitted, name, value)


@pytest.mark.parametrize("committed", [False, True])
def test_entry_submitted_just_before_the_committing_thread_sleeps_completes(committed: bool, tmp_path: Path) -> None:
    """committed: by another thread, meanwhile."""
    with pyreplog.open(tmp_path / "log", durability="synced") as log:
        about: Any = AboutToSleep(log._submitted)
        log._commits._submitted = about
        late: Queue[AppendFuture[int]] = Queue()

        def then() -> None:
            late.put(log.submit(b"late"))
            if committed:
                log.commit_stage()

        for turn in range(5):  # the request for the first ack of all lets it stay awake once
            log.submit(b"early").add_done_callback(lambda _: about.__dict__.update(then=then))
            assert late.get(timeout=PATIENCE_S).result(PATIENCE_S) == 2 * turn + 1


def test_an_empty_batch_of_a_new_log_is_done(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", durability="synced") as log:
        assert log.submit_batch([]).result(PATIENCE_S) == range(0)
