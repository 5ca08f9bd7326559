"""Logs on a file system in memory: group commit, readers that follow, housekeeping, watchers, growth."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.log import commit, commit_log, housekeeper, segments, tail_listeners, watcher
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles
from pyreplog.log.runtime import LogRuntime
from pyreplog.stream import tail_watcher
from pyreplog.stream.tail_watcher import TailWatcher
from tests.interleaving import primitives
from tests.interleaving.harnesses.building import harness, in_time, run_all
from tests.interleaving.scheduler import World

SEGMENT_BYTES = 64 << 10
_numbers = itertools.count()
RESTING = ("pyreplog-prepare", "pyreplog-sync")
"""Threads that look again from time to time, whatever happens."""


class Files(RealFiles):
    """A sync is a point, and costs nothing."""

    def sync(self, fd: int) -> None:
        primitives.point("sync")

    def sync_directory(self, path: Path) -> None: ...

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int, /) -> None:  # type: ignore[override]
        primitives.point("write")
        self.write(fd, data, offset)
        primitives.point("sync")


@functools.cache
def _folder() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="pyreplog-", dir=memory if os.access(memory, os.W_OK) else None))


def with_log(
    *, is_shared: bool = False, **settings: Any
) -> Callable[[Callable[[World, CommitLog], None]], Callable[[World], None]]:
    """A program that has a log of its own. is_shared: with the threads of a runtime."""

    def decorate(program: Callable[[World, CommitLog], None]) -> Callable[[World], None]:
        @functools.wraps(program)
        def run(world: World) -> None:
            path, runtime = _folder() / str(next(_numbers)), LogRuntime() if is_shared else None
            try:
                log = CommitLog(
                    path, pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES, spare_segments=1, **settings),
                    create=True, clock=None, files=Files(), runtime=runtime,
                )  # fmt: skip
                try:
                    program(world, log)
                finally:
                    log.close()
                    if runtime is not None:
                        runtime.close()
            finally:
                shutil.rmtree(path, ignore_errors=True)

        return run

    return decorate


@with_log(durability="synced")
def group_commit(world: World, log: CommitLog) -> None:
    """Whoever appends returns when that is synced; who submits is told; the groups go on."""
    entries: list[int] = []

    def append(count: int) -> None:
        for _ in range(count):
            entry = log.append(b"value")
            assert log.tail.synced_entry > entry
            entries.append(entry)

    def submit() -> None:
        futures = [log.submit(b"value") for _ in range(2)]
        entries.extend(future.result() for future in futures)

    run_all(world, a=lambda: append(2), b=lambda: append(1), c=submit)
    in_time(world, but=RESTING)
    assert sorted(entries) == [0, 1, 2, 3, 4]


@with_log(durability="synced")
def group_commit_of_many(world: World, log: CommitLog) -> None:
    """Four threads, so that groups follow each other while others park."""
    run_all(world, **{name: lambda: log.append(b"value") for name in "abcd"})
    in_time(world, but=RESTING)
    assert log.tail.synced_entry == 4


@with_log(durability="synced")
def submitted_only(world: World, log: CommitLog) -> None:
    """What is submitted is committed though nobody waits for it, and a close ends after it."""
    futures: list[Any] = []
    run_all(world, a=lambda: futures.append(log.submit(b"value")), b=lambda: futures.append(log.submit(b"value")))
    world.wait(lambda: all(future.done() for future in futures), 5.0, "committed")
    in_time(world, but=RESTING)
    assert sorted(future.result() for future in futures) == [0, 1]


@with_log(durability="synced")
def closed_while_committing(world: World, log: CommitLog) -> None:
    """A close commits what was staged, and nobody waits on."""
    outcomes: list[object] = []

    def append() -> None:
        try:
            outcomes.append(log.append(b"value"))
        except pyreplog.ReplogError as error:
            outcomes.append(error)

    def submit() -> None:
        try:
            outcomes.append(log.submit(b"value").result())
        except pyreplog.ReplogError as error:
            outcomes.append(error)

    run_all(world, a=append, b=submit, closer=lambda: log.close())
    in_time(world, but=RESTING)
    assert len(outcomes) == 2


@with_log(durability="appended")
def rolling(world: World, log: CommitLog) -> None:
    """Appends go on over the ends of segments while others are prepared and sealed."""
    value = b"." * 30_000

    def append() -> None:
        for _ in range(3):
            log.append(value)

    run_all(world, a=append, b=append)
    in_time(world, but=RESTING)
    assert log.tail.visible_entry == 6 and [log[entry] for entry in range(6)] == [value] * 6


@with_log(durability="appended")
def following(world: World, log: CommitLog) -> None:
    """Who follows a log sees each entry as it comes, and the close."""
    seen: list[bytes] = []

    def follow() -> None:
        for record in log.follow(0):
            seen.append(bytes(record.value))
            if len(seen) == 3:
                return

    run_all(world, reader=follow, writer=lambda: [log.append(b"%d" % number) for number in range(3)])
    in_time(world, but=RESTING)
    assert seen == [b"0", b"1", b"2"]


def _watch(world: World, log: CommitLog) -> None:
    """A watch is completed by its entry, whenever it was made."""

    def watch(entry: int) -> None:
        assert log._watcher.watch(entry).future.result() == entry

    run_all(world, a=lambda: watch(0), b=lambda: watch(1), writer=lambda: (log.append(b"a"), log.append(b"b")))
    in_time(world, but=RESTING)


@with_log(durability="appended")
def watched(world: World, log: CommitLog) -> None:
    """By a thread of the log."""
    _watch(world, log)


@with_log(is_shared=True, durability="appended")
def watched_with_a_runtime(world: World, log: CommitLog) -> None:
    """By the thread of all logs."""
    _watch(world, log)


@with_log(durability="appended")
def grown(world: World, log: CommitLog) -> None:
    """Told by a thread of the log."""
    _grow(world, log, TailWatcher(log))


@with_log(durability="appended")
def grown_with_a_runtime(world: World, log: CommitLog) -> None:
    """Told by the thread of all logs."""
    with LogRuntime() as runtime:
        _grow(world, log, TailWatcher(log, runtime))


def _grow(world: World, log: CommitLog, tail_watcher: TailWatcher) -> None:
    """Who asks is called when the log has grown, once for each question."""
    calls: list[str] = []
    ends = [log.tail.end]

    def called(name: str) -> Callable[[], None]:
        def call() -> None:
            calls.append(name)

        return call

    def ask(name: str) -> None:
        tail_watcher.when_beyond(ends[0], called(name))

    run_all(world, a=lambda: ask("a"), b=lambda: ask("b"), writer=lambda: log.append(b"value"))
    world.wait(lambda: len(calls) == 2, 0.1, "called")
    in_time(world, but=RESTING)
    assert sorted(calls) == ["a", "b"]
    run_all(
        world, stopper=lambda: tail_watcher.stop(), late=lambda: tail_watcher.when_beyond(log.tail.end, called("late"))
    )
    in_time(world, but=(*RESTING, "pyreplog-growth"))  # who stops it may wait for one of its looks


def idle(world: World) -> None:
    """Appends and reads go on, whoever closes the files of the log, and opens them, at the same time."""
    path, entries = _folder() / str(next(_numbers)), list[int]()
    config = pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES, spare_segments=1)
    try:
        with (
            LogRuntime(idle_ms=1) as runtime,
            CommitLog(path, config, create=True, clock=None, files=Files(), runtime=runtime) as log,
        ):

            def append(count: int) -> None:
                for _ in range(count):
                    entries.append(log.append(b"value"))
                    primitives.sleep(0.001)

            def read() -> None:
                primitives.sleep(0.001)
                end = log.end
                assert len(log[:end]) == end

            run_all(world, a=lambda: append(2), b=lambda: append(2), reader=read)
            for _ in range(10):
                primitives.sleep(0.001)
            assert log.is_dormant
            assert sorted(entries) == [0, 1, 2, 3] and log[:] == [b"value"] * 4 and log.synced_end == 4
            in_time(world, but=(*RESTING, *(f"{name} at sleep" for name in ("a", "b", "reader", "main"))))
    finally:
        shutil.rmtree(path, ignore_errors=True)


HARNESSES = [
    harness(group_commit, commit),
    harness(group_commit_of_many, commit),
    harness(submitted_only, commit),
    harness(closed_while_committing, commit),
    harness(rolling, housekeeper, segments),
    harness(following, watcher),
    harness(watched, watcher),
    harness(watched_with_a_runtime, watcher, tail_listeners),
    harness(grown, tail_watcher),
    harness(grown_with_a_runtime, tail_watcher, tail_listeners),
    harness(idle, commit_log),
]
