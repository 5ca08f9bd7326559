"""A log that syncs: event loops never wait in `submit`, they await `room()`; threads wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog import AppendFuture, CommitLog
from pyreplog.errors import ClosedError, OutcomeUnknownError, PoisonedError, WindowFullError
from pyreplog.log.commitlog import WINDOW_BYTES
from pyreplog.log.files import RealFiles

VALUE = bytes(1 << 20)
PATIENCE_S = 60.0


class HeldFiles(RealFiles):
    """Syncs wait until they are let go, or fail."""

    def __init__(self) -> None:
        self.may_sync, self.fails = threading.Event(), False
        self.may_sync.set()

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert self.may_sync.wait(PATIENCE_S)
        if self.fails:
            raise OSError(5, "the disk is gone")
        super().write_sync(fd, data, offset)


@pytest.fixture
def files() -> Iterator[HeldFiles]:
    files = HeldFiles()
    yield files
    files.may_sync.set()


@pytest.fixture
def log(tmp_path: Path, files: HeldFiles) -> Iterator[CommitLog]:
    with pyreplog.open(tmp_path / "log", durability="synced", segment_bytes=64 << 20, files=files) as log:
        yield log


async def fill(log: CommitLog) -> list[AppendFuture[int]]:
    """Submit until the window is full twice."""
    futures: list[AppendFuture[int]] = []
    with pytest.raises(WindowFullError, match="room"):
        while len(futures) < 100:
            futures.append(log.submit(VALUE))
    return futures


def test_an_event_loop_never_waits_for_the_disk(log: CommitLog, files: HeldFiles) -> None:
    async def append() -> None:
        assert log.room().done()
        files.may_sync.clear()
        futures = await fill(log)
        assert 2 * WINDOW_BYTES <= (len(futures) + 1) * len(VALUE) <= 5 * WINDOW_BYTES
        with pytest.raises(WindowFullError):
            log.submit_batch([VALUE])
        assert log.submit(b"small").done() is False, "what fits is taken"
        room, flushed = log.room(), log.flush_async()
        assert not room.done() and not flushed.done()
        files.may_sync.set()
        await room
        last = log.submit_batch([VALUE, VALUE])
        await flushed
        numbers = [await future for future in futures]
        assert numbers == list(range(len(futures))), "what was refused was not appended"
        assert await last == range(len(futures) + 1, len(futures) + 3)

    asyncio.run(append())


def test_a_thread_waits(log: CommitLog, files: HeldFiles) -> None:
    files.may_sync.clear()
    futures: list[AppendFuture[int]] = []

    def submit() -> None:
        futures.extend(log.submit(VALUE) for _ in range(40))

    thread = threading.Thread(target=submit)
    thread.start()
    files.may_sync.set()
    thread.join(PATIENCE_S)
    log.flush(PATIENCE_S)
    assert [future.result(0) for future in futures] == list(range(40))


def test_room_and_flush_end_with_the_log(log: CommitLog, files: HeldFiles) -> None:
    """A sync that fails is told by the futures of the entries."""

    async def append() -> None:
        files.may_sync.clear()
        futures = await fill(log)
        room, flushed = log.room(), log.flush_async()
        files.fails = True
        files.may_sync.set()
        await asyncio.gather(room, flushed)
        for future in futures:
            assert isinstance(future.exception(PATIENCE_S), PoisonedError)

    asyncio.run(append())
    log.close()
    for call in (log.room, log.flush, log.flush_async):
        with pytest.raises(ClosedError):
            call()


def test_a_flush_without_an_outcome_says_so(log: CommitLog, files: HeldFiles) -> None:
    files.may_sync.clear()
    future = log.submit(b"a")
    with pytest.raises(OutcomeUnknownError):
        log.flush(timeout=0.01)
    assert not future.done()
    files.may_sync.set()
    log.flush(timeout=PATIENCE_S)
    assert future.done() and future.result(0) == 0
