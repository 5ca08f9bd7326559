"""One thread of a runtime waits for the growth of all logs: tasks of event loops, watchers of tails, syncs."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import ClosedError
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.runtime import LogRuntime
from pyreplog.log.tail_listeners import TailListener, TailListeners
from pyreplog.stream.syncer import Syncer
from pyreplog.stream.tail_watcher import TailWatcher
from tests.waiting import until

WAIT_S = 60.0


@pytest.fixture
def runtime() -> Iterator[LogRuntime]:
    with LogRuntime(idle_ms=20) as runtime:
        yield runtime


def open_log(path: Path, runtime: LogRuntime) -> CommitLog:
    config = pyreplog.LogConfig(segment_bytes=64 << 10)
    return CommitLog(path, config, create=True, clock=None, files=None, runtime=runtime)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("pyreplog-")}


def test_tasks_follow_many_logs_with_one_thread(tmp_path: Path, runtime: LogRuntime):
    async def first_two(log: CommitLog) -> list[bytes]:
        values = list[bytes]()
        async for record in log.follow(0):
            values.append(record.value)
            if len(values) == 2:
                break
        return values

    async def follow_all(logs: list[CommitLog]) -> list[list[bytes]]:
        tasks = [asyncio.create_task(first_two(log)) for log in logs]
        for value in (b"a", b"b"):
            await asyncio.sleep(0.05)  # the logs are idle, and their tasks wait
            for log in logs:
                await asyncio.to_thread(log.append, value)
        names.update(threads())
        return await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)

    names = set[str]()
    with contextlib.ExitStack() as opened:
        logs = [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(30)]
        assert asyncio.run(follow_all(logs)) == [[b"a", b"b"]] * 30
    assert "pyreplog-listen" in names and not {"pyreplog-watch", "pyreplog-growth"} & names


def test_a_log_that_no_task_waits_for_asks_for_no_wake_up(
    tmp_path: Path, runtime: LogRuntime, monkeypatch: pytest.MonkeyPatch
):
    asking, ask = list[TailListener](), TailListener.ask

    def noted(listener: TailListener) -> None:
        asking.append(listener)
        ask(listener)

    async def first(log: CommitLog) -> bytes:
        async for record in log.follow(0, timeout=WAIT_S):
            return record.value
        raise AssertionError("nothing came")

    async def follow(log: CommitLog) -> bytes:
        task = asyncio.create_task(first(log))
        await asyncio.to_thread(until, lambda: asking)
        await asyncio.to_thread(log.append, b"1")
        return await task

    monkeypatch.setattr(TailListener, "ask", noted)
    with open_log(tmp_path / "log", runtime) as log:
        assert asyncio.run(follow(log)) == b"1"
        watcher, called = TailWatcher(log, runtime), threading.Semaphore(0)
        for turn in range(3):
            if turn == 1:
                asking.clear()
            watcher.when_beyond(log.tail.end, called.release)
            log.append(b"next")
            assert called.acquire(timeout=WAIT_S)
        watcher.stop()
        assert len(set(asking)) == 1, "that of the watcher"


def test_closing_a_log_ends_the_waits_for_it_alone(tmp_path: Path, runtime: LogRuntime):
    async def next_value(log: CommitLog) -> bytes:
        async for record in log.follow(0):
            return record.value
        raise AssertionError("it ended")

    async def run(closed: CommitLog, open_: CommitLog) -> None:
        tasks = [asyncio.create_task(next_value(log)) for log in (closed, open_)]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(closed.close)
        with pytest.raises(ClosedError):
            await tasks[0]
        await asyncio.to_thread(open_.append, b"value")
        assert await asyncio.wait_for(tasks[1], WAIT_S) == b"value"

    with open_log(tmp_path / "closed", runtime) as closed, open_log(tmp_path / "open", runtime) as open_:
        asyncio.run(run(closed, open_))


def test_a_reader_that_wakes_the_page_takes_no_wake_up_from_others(tmp_path: Path, runtime: LogRuntime):
    """A reader of another process does so when it is closed; it cannot tell the listeners of this one."""
    with open_log(tmp_path / "log", runtime) as log:
        log.append(b"zero")
        called = threading.Event()
        watcher = TailWatcher(log, runtime)
        watcher.when_beyond(log.tail.end, called.set)
        script = "import sys, pyreplog\nwith pyreplog.open(sys.argv[1], 'r') as reader: reader.wake()"
        subprocess.run([sys.executable, "-c", script, tmp_path / "log"], check=True)  # no fork: it has no other handles
        log.append(b"one")
        assert called.wait(WAIT_S)
        watcher.stop()


def test_callbacks_come_once_from_the_shared_thread_and_none_after_stop(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log:
        watcher, other, calls = TailWatcher(log, runtime), TailWatcher(log, runtime), list[str]()

        def call() -> None:
            calls.append(threading.current_thread().name)

        watcher.when_beyond(-1, call)  # it has grown so far already
        until(lambda: len(calls) == 1)
        watcher.when_beyond(log.tail.end, call)
        other.when_beyond(log.tail.end, call)
        watcher.stop()
        log.append(b"value")
        until(lambda: len(calls) == 2)
        log.append(b"value")
        other.stop()
        watcher.when_beyond(-1, call)
        assert calls == ["pyreplog-listen"] * 2


def test_a_syncer_uses_the_threads_of_a_runtime(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log:
        before, synced, failed = threads(), threading.Semaphore(0), list[Exception]()
        syncer = Syncer(log, synced.release, failed.append, runtime)
        for count in range(1, 4):
            log.append(b"value")
            syncer.grew()
            assert synced.acquire(timeout=WAIT_S)
            until(lambda count=count: log.synced_end == count)  # type: ignore[misc]
        assert "pyreplog-replica-sync" not in threads() - before
    syncer.grew()
    until(lambda: len(failed) == 1)
    assert isinstance(failed[0], ClosedError)


def test_a_callback_that_was_removed_is_not_called_though_its_turn_has_come(tmp_path: Path, runtime: LogRuntime):
    listeners, calls = TailListeners(), list[str]()
    with open_log(tmp_path / "log", runtime) as log:
        first = listeners.add(log.tail, lambda: calls.append("first"))
        second = listeners.add(log.tail, lambda: calls.append("second"))
        first.run()
        first.remove()
        first.run()  # the thread had taken it before it was removed
        assert calls == ["first"]
        second.ask()
        log.append(b"value")
        until(lambda: "second" in calls)
        for listener in (second, first):
            listener.remove()
        second.run()
        assert calls == ["first", "second"]
        listeners.stop()


def test_a_callback_that_fails_is_logged_and_others_are_called(
    tmp_path: Path, runtime: LogRuntime, caplog: pytest.LogCaptureFixture
):
    def fail() -> None:
        raise RuntimeError("of a test")

    listeners, called = TailListeners(), threading.Event()
    with open_log(tmp_path / "log", runtime) as log:
        failing, other = listeners.add(log.tail, fail), listeners.add(log.tail, called.set)
        failing.call_soon()
        other.call_soon()
        assert called.wait(WAIT_S)
        assert "of a test" in caplog.text
        listeners.stop()
