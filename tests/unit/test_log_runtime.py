"""Many logs share the threads of a runtime: what each one's threads would do is done, and idle logs cost no time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import ClosedError, DiskFullError, InvalidArgumentError, WindowFullError
from pyreplog.log import commit_log, names
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles
from pyreplog.log.runtime import (
    COMMITTING_THREADS,
    PREPARING_THREADS,
    SYNCING_THREADS,
    WHEN_WOKEN,
    LogRuntime,
    WorkerPool,
)  # fmt: skip
from tests.waiting import until

SEGMENT_BYTES = 64 << 10
KILOBYTE = bytes(1000)
WAIT_S = 60.0


def open_log(path: Path, runtime: LogRuntime, **settings: Any) -> CommitLog:
    config = pyreplog.LogConfig(**{"segment_bytes": SEGMENT_BYTES, **settings})
    return CommitLog(path, config, create=True, clock=None, files=None, runtime=runtime)


@pytest.fixture
def runtime() -> Iterator[LogRuntime]:
    with LogRuntime() as runtime:
        yield runtime


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool("test", 2)
    yield pool
    pool.stop()


def threads_of_pool() -> list[str]:
    """Others may be those of earlier tests."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pyreplog-test")]


# ---- the pool ------------------------------------------------------------------------------------------------


def test_a_task_that_is_woken_while_it_runs_runs_once_more_and_on_one_thread_at_a_time(pool: WorkerPool):
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    running, most = 0, 0

    def act() -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.release()
        assert go.acquire(timeout=WAIT_S)
        running -= 1
        return WHEN_WOKEN

    task = pool.add(act)
    task.wake()
    assert begun.acquire(timeout=WAIT_S)
    for _ in range(3):
        task.wake()
    go.release()
    assert begun.acquire(timeout=WAIT_S)
    go.release()
    task.cancel()
    assert most == 1 and not begun.acquire(blocking=False)


def test_blocking_tasks_do_not_delay_others_beyond_the_thread_limit(pool: WorkerPool):
    go, done = threading.Event(), [threading.Event() for _ in range(20)]
    pool.add(lambda: WHEN_WOKEN * go.wait(WAIT_S)).wake()

    def finish(event: threading.Event) -> float:
        event.set()
        return WHEN_WOKEN

    for event in done:
        pool.add(lambda event=event: finish(event)).wake()  # type: ignore[misc]
    assert all(event.wait(WAIT_S) for event in done)
    assert len(threads_of_pool()) == 2
    go.set()


def test_a_task_is_not_run_before_it_is_due_and_then_without_being_woken(pool: WorkerPool):
    times: list[float] = []

    def act() -> float:
        times.append(time.monotonic())
        return 0.05 if len(times) < 3 else WHEN_WOKEN

    task = pool.add(act)
    assert not threads_of_pool()
    task.wake()
    until(lambda: len(times) == 3)
    assert times[1] - times[0] >= 0.05 and times[2] - times[1] >= 0.05


def test_a_task_that_is_woken_twice_keeps_its_turn():
    pool, begun, go, turns = WorkerPool("test", 1), threading.Event(), threading.Event(), list[str]()

    def block() -> float:
        begun.set()
        assert go.wait(WAIT_S)
        return WHEN_WOKEN

    def note(name: str) -> float:
        turns.append(name)
        return WHEN_WOKEN

    first, second = pool.add(lambda: note("first")), pool.add(lambda: note("second"))
    pool.add(block).wake()
    assert begun.wait(WAIT_S)
    for task in (first, second, first):
        task.wake()
    go.set()
    until(lambda: len(turns) == 2 and pool.is_idle)
    pool.stop()
    assert turns == ["first", "second"]


def test_a_stopped_pool_schedules_nothing(pool: WorkerPool):
    pool.stop()
    task = pool.add(lambda: WHEN_WOKEN)
    task.wake()
    assert task.due == WHEN_WOKEN and pool.is_idle


def test_cancelling_waits_for_the_run_under_way_but_not_inside_of_it(pool: WorkerPool):
    begun, go, over = threading.Event(), threading.Event(), list[str]()

    def act() -> float:
        begun.set()
        assert go.wait(WAIT_S)
        over.append("run")
        task.cancel()  # as a log does that is closed in a callback
        return 0.0

    task = pool.add(act)
    task.wake()
    assert begun.wait(WAIT_S)
    canceller = threading.Thread(target=lambda: (task.cancel(), over.append("cancelled")))
    canceller.start()
    go.set()
    canceller.join(WAIT_S)
    assert over == ["run", "cancelled"]
    task.wake()
    assert task.due == WHEN_WOKEN


def test_a_task_that_fails_ends_and_the_others_go_on(pool: WorkerPool, caplog: pytest.LogCaptureFixture):
    runs, done = [], threading.Event()

    def fail() -> float:
        runs.append(1)
        raise ZeroDivisionError

    def finish() -> float:
        done.set()
        return WHEN_WOKEN

    task = pool.add(fail)
    task.wake()
    until(lambda: "given up" in caplog.text)
    task.wake()
    pool.add(finish).wake()
    assert done.wait(WAIT_S)
    task.cancel()
    assert len(runs) == 1


# ---- logs ----------------------------------------------------------------------------------------------------


def test_a_hundred_logs_have_the_threads_of_one_runtime(tmp_path: Path, runtime: LogRuntime):
    before = threading.active_count()
    logs = [open_log(tmp_path / str(i), runtime, durability="synced") for i in range(100)]
    futures = [log.submit(b"%d" % i) for i, log in enumerate(logs)]
    assert [future.result(WAIT_S) for future in futures] == [0] * 100
    assert all(log.synced_end == 1 for log in logs)
    assert threading.active_count() - before <= PREPARING_THREADS + SYNCING_THREADS + COMMITTING_THREADS
    for log in logs:
        log.close()
    for i in range(0, 100, 25):
        with pyreplog.open(tmp_path / str(i)) as log:
            assert log[:] == [b"%d" % i]


def test_idle_logs_are_not_looked_at(tmp_path: Path):
    with LogRuntime(idle_ms=50) as runtime, contextlib.ExitStack() as opened:
        logs = [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(20)]
        for log in logs:
            log.append(b"value")
        until(lambda: runtime.preparing.is_idle and runtime.syncing.is_idle and runtime.committing.is_idle)


def test_sealed_segments_are_synced_when_they_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_log, "LAZY_SYNC_S", 0.05)
    with LogRuntime(idle_ms=3_600_000) as runtime, open_log(tmp_path / "log", runtime) as log:
        while log.stats().segments < 3:
            log.append(KILOBYTE)
        until(lambda: len(list((tmp_path / "log").glob("*.idx"))) == 2)
        assert log.synced_end > 0


def test_a_log_that_syncs_at_intervals_does(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime, durability="interval", sync_interval_ms=5) as log:
        for count in range(1, 4):
            log.append(KILOBYTE)
            until(lambda count=count: log.synced_end == count)  # type: ignore[misc]


def test_retention_removes_old_segments_of_an_idle_log(
    tmp_path: Path, runtime: LogRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit_log, "_RETENTION_S", 0.01)
    with open_log(tmp_path / "log", runtime, retention_ms=200, spare_segments=1) as log:
        log.append_batch([KILOBYTE] * 200)
        until(lambda: log.start > 100)


def test_a_log_may_be_closed_in_a_callback_of_its_own_commit(tmp_path: Path, runtime: LogRuntime):
    log, closed = open_log(tmp_path / "log", runtime, durability="synced"), threading.Event()
    errors: list[BaseException] = []

    def close(_: object) -> None:
        try:
            with pytest.raises(InvalidArgumentError):
                log.flush()
            log.close()
        except BaseException as error:
            errors.append(error)
        closed.set()

    log.submit(b"value").add_done_callback(close)
    assert closed.wait(WAIT_S) and not errors
    with pyreplog.open(tmp_path / "log") as log:
        assert log[:] == [b"value"]


def test_close_settles_what_was_submitted(tmp_path: Path, runtime: LogRuntime):
    logs = [open_log(tmp_path / str(i), runtime, durability="synced") for i in range(5)]
    futures = [log.submit(b"value") for log in logs for _ in range(20)]
    for log in logs:
        log.close()
    assert [future.result(0) for future in futures] == [*range(20)] * 5


# ---- the first segment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_log_has_no_segment_before_its_first_entry_and_none_ahead_before_one_is_full(
    tmp_path: Path, runtime: LogRuntime, durability: str
):
    path = tmp_path / "log"
    for _ in range(2):  # closed without an entry, it is opened again
        with open_log(path, runtime, durability=durability) as log:
            assert (log.start, log.end, log[:], log.stats().segments) == (0, 0, [], 0)
            assert {file.name for file in path.iterdir()} == {"checkpoint", "lock", "tail"}
            assert sum(file.stat().st_blocks * 512 for file in path.iterdir()) <= 64 << 10
    with open_log(path, runtime, durability=durability) as log, pyreplog.open(path, "r") as reader:
        assert len(reader) == 0
        assert log.append(b"first") == 0 and log[0] == b"first"
        assert (reader.end, reader[0]) == (1, b"first")  # `end` notices that the log has begun
        until(lambda: runtime.preparing.is_idle)
        assert names.segment_bases(path) == [0]
    with open_log(path, runtime, durability=durability) as log:
        log.room().result(WAIT_S)
        until(lambda: runtime.preparing.is_idle)
        assert names.segment_bases(path) == [0]
        log.append_batch([KILOBYTE] * 100)
        until(lambda: log.stats().ready_segments == log.config.spare_segments)
    with pyreplog.open(path) as log:
        assert log[:] == [b"first", *[KILOBYTE] * 100]


def test_a_follower_that_waits_sees_the_first_entry(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log:
        values: list[bytes] = []
        follower = threading.Thread(target=lambda: values.append(next(iter(log.follow(0))).value))
        follower.start()
        log.append(b"first")
        follower.join(WAIT_S)
        assert values == [b"first"]


def test_threads_that_append_first_at_the_same_time_share_one_segment(
    tmp_path: Path, runtime: LogRuntime, eager_switching: None
):
    with open_log(tmp_path / "log", runtime) as log:
        barrier, entries = threading.Barrier(8), list[int]()

        def append() -> None:
            barrier.wait(WAIT_S)
            entries.append(log.append(b"value"))

        threads = [threading.Thread(target=append) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(entries) == [*range(8)] and log[:] == [b"value"] * 8 and log.stats().segments == 1


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_an_event_loop_does_not_wait_for_the_first_segment(tmp_path: Path, runtime: LogRuntime, durability: str):
    async def append(log: CommitLog) -> int:
        with pytest.raises(WindowFullError):
            log.submit(b"value")
        await log.room()
        return await log.submit(b"value")

    with open_log(tmp_path / "log", runtime, durability=durability) as log:
        assert asyncio.run(append(log)) == 0 and log[:] == [b"value"]


def test_a_full_disk_refuses_the_first_entry_and_nothing_else_happened(tmp_path: Path, runtime: LogRuntime):
    class Full(RealFiles):
        full = True

        def create(self, path: Path, size: int, *, zeroed: bool) -> int:
            if self.full:
                raise DiskFullError(errno.ENOSPC, f"{path}: no room")
            return super().create(path, size, zeroed=zeroed)

    files, path = Full(), tmp_path / "log"
    config = pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES)
    with CommitLog(path, config, create=True, clock=None, files=files, runtime=runtime) as log:
        for _ in range(2):
            with pytest.raises(DiskFullError):
                log.append(b"value")
            assert log.end == 0 and not names.segment_bases(path)
        files.full = False
        assert log.append(b"value") == 0
    with pytest.raises(ClosedError):
        log.append(b"value")
