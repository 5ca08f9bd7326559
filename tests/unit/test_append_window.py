"""A log that syncs: event loops never wait in `submit`, they await `room()`; threads wait."""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import pyreplog
from pyreplog import AppendFuture, CommitLog
from pyreplog.errors import (
    ClosedError,
    DiskFullError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PoisonedError,
    WindowFullError,
)
from pyreplog.log.commit_log import WINDOW_BYTES
from pyreplog.log.files import RealFiles
from tests import samples

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


def test_a_thread_waits_in_submit_while_the_window_is_full(log: CommitLog, files: HeldFiles) -> None:
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


def test_flush_timeout_raises_outcome_unknown_error(log: CommitLog, files: HeldFiles) -> None:
    files.may_sync.clear()
    future = log.submit(b"a")
    with pytest.raises(OutcomeUnknownError):
        log.flush(timeout=0.01)
    assert not future.done()
    files.may_sync.set()
    log.flush(timeout=PATIENCE_S)
    assert future.done() and future.result(0) == 0


# ---- the begin of a segment ------------------------------------------------------------------------------------

SEGMENT = 1 << 20
SMALL = bytes(50_000)


@pytest.fixture
def short(tmp_path: Path, files: HeldFiles) -> Iterator[CommitLog]:
    with pyreplog.open(tmp_path / "short", durability="synced", segment_bytes=SEGMENT, files=files) as log:
        yield log


async def fill_segment(log: CommitLog, value: bytes = SMALL) -> list[AppendFuture[int]]:
    """Submit until the log has to begin a segment."""
    futures: list[AppendFuture[int]] = []
    with pytest.raises(WindowFullError, match="room"):
        while len(futures) * len(value) <= SEGMENT:
            futures.append(log.submit(value))
    return futures


def test_an_event_loop_does_not_wait_at_the_begin_of_a_segment(short: CommitLog, files: HeldFiles) -> None:
    async def append() -> None:
        files.may_sync.clear()
        futures = await fill_segment(short)
        assert len(futures) == (SEGMENT - 4096) // (len(SMALL) + 16)
        with pytest.raises(WindowFullError):
            short.submit_batch([SMALL, SMALL])
        room = short.room()
        assert not room.done()
        files.may_sync.set()
        await room
        last = short.submit_batch([SMALL, SMALL])
        assert await last == range(len(futures), len(futures) + 2)
        assert [await future for future in futures] == list(range(len(futures)))

    asyncio.run(append())


def test_a_sync_waits_for_nothing_when_room_was_made_and_not_used(tmp_path: Path) -> None:
    """A segment was begun, and nothing appended to it."""
    log = pyreplog.open(tmp_path / "log", durability="synced", segment_bytes=SEGMENT)

    async def append() -> int:
        futures = await fill_segment(log)
        await log.room()
        return len([await future for future in futures])

    count = asyncio.run(append())
    assert len(samples.segments(log.path)) >= 2, "and perhaps one more is prepared"
    synced: list[int] = []
    thread = threading.Thread(target=lambda: synced.append(log.sync()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert synced == [count]
    log.close()


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("spares", [1, 3])
def test_short_entries_behind_room_are_never_refused(tmp_path: Path, durability: str, spares: int) -> None:
    settings = {"durability": durability, "segment_bytes": 1 << 16, "spare_segments": spares}
    values = [b"%05d" % number * (1 + number % 700) for number in range(1000)]

    async def append(log: CommitLog) -> list[int]:
        futures = []
        for value in values:
            await log.room()
            futures.append(log.submit(value))
        return [await future for future in futures]

    with pyreplog.open(tmp_path / "log", **settings) as log:
        assert asyncio.run(append(log)) == list(range(len(values)))
        assert log[:] == values


def test_a_long_entry_is_refused_once(short: CommitLog) -> None:
    long = bytes(SEGMENT * 2 // 3)

    async def append() -> None:
        for number in range(5):
            await short.room()
            if number:
                with pytest.raises(WindowFullError):
                    short.submit(long)
                await short.room()
            assert await short.submit(long) == number

    asyncio.run(append())


def test_batch_longer_than_a_segment_raises_window_full_error_in_a_loop(short: CommitLog) -> None:
    batch = [SMALL] * 30

    async def append() -> None:
        with pytest.raises(WindowFullError, match="longer than a segment; submit it in parts"):
            short.submit_batch(batch)

    asyncio.run(append())
    assert short.end == 0
    assert short.submit_batch(batch).result(PATIENCE_S) == range(30), "a thread waits"


def test_an_event_loop_does_not_wait_for_a_thread_that_begins_a_segment(short: CommitLog, files: HeldFiles) -> None:
    files.may_sync.clear()
    threads = [threading.Thread(target=short.submit_batch, args=([SMALL] * 30,))]
    threads[0].start()

    async def append() -> None:
        refused = 0
        while not refused:
            try:
                short.submit(b"")
                await asyncio.sleep(0)
            except WindowFullError:
                refused += 1
        room = short.room()
        assert not room.done()
        files.may_sync.set()
        await room

    asyncio.run(append())
    threads[0].join(PATIENCE_S)
    short.flush(PATIENCE_S)


@pytest.mark.parametrize("step", ["_check_room", "_make_room", "_roll"])
def test_an_event_loop_does_not_wait_for_a_thread_that_is_about_to_begin_a_segment(short: CommitLog, step: str) -> None:
    """The thread is stopped where it begins a step of Python code, inside the append path."""
    reached, may_go = threading.Event(), threading.Event()

    def trace(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_name == step and not reached.is_set():
            reached.set()
            may_go.wait(PATIENCE_S)

    def submit() -> None:
        sys.settrace(trace)
        short.submit_batch([SMALL] * 30)

    async def append() -> None:
        with pytest.raises(WindowFullError):
            short.submit(b"")
        room = short.room()
        assert not room.done()
        may_go.set()
        await room

    thread = threading.Thread(target=submit)
    thread.start()
    late = threading.Timer(5.0, may_go.set)  # ends the wait of a loop that should not wait
    try:
        assert reached.wait(PATIENCE_S)
        late.start()
        asyncio.run(append())
    finally:
        late.cancel()
        may_go.set()
        thread.join()


class HeldCreation(RealFiles):
    """All files but the first are created when they are let go, or not at all."""

    def __init__(self) -> None:
        self.may_create, self.is_full, self.created = threading.Event(), False, 0

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self.created += 1
        assert self.created == 1 or self.may_create.wait(PATIENCE_S)
        if self.is_full:
            raise DiskFullError(errno.ENOSPC, f"{path}: no room")
        return super().create(path, size, zeroed=zeroed)


@pytest.mark.parametrize("is_full", [False, True], ids=["slow", "full"])
def test_an_event_loop_does_not_wait_for_a_segment_to_be_prepared(tmp_path: Path, is_full: bool) -> None:
    """If the disk has no room, the next submit says so."""
    files = HeldCreation()

    async def append(log: CommitLog) -> None:
        numbers = [await future for future in await fill_segment(log)]
        room = log.room()
        assert not room.done()
        files.is_full = is_full
        files.may_create.set()
        await room
        if is_full:
            with pytest.raises(DiskFullError):
                log.submit(SMALL)
            files.is_full = False
            await log.room()
        assert await log.submit(SMALL) == len(numbers)

    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT, files=files) as log:
        try:
            asyncio.run(append(log))
        finally:
            files.may_create.set()


def test_room_ends_with_a_log_that_is_closed(tmp_path: Path) -> None:
    files = HeldCreation()
    log = pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT, files=files)

    async def append() -> AppendFuture[None]:
        await fill_segment(log)
        return log.room()

    room = asyncio.run(append())
    closing = threading.Thread(target=log.close)
    closing.start()
    files.may_create.set()
    assert room.result(PATIENCE_S) is None
    closing.join(PATIENCE_S)


def test_sync_does_not_block_an_event_loop(log: CommitLog) -> None:
    async def sync() -> None:
        log.submit(b"a")
        with pytest.raises(InvalidArgumentError, match=r"sync\(\) would block .*sync_async"):
            log.sync()
        assert await log.sync_async() == 1

    asyncio.run(sync())
