"""Threads and tasks on one log: order, group commit, pins, recycling, locks."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.checkpoint import SLOT_BYTES
from pyreplog.log.files import RealFiles
from tests.waiting import until


class CountingFiles(RealFiles):
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def run_threads(count: int, work) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_appends_of_many_threads_keep_each_threads_order(tmp_path: Path, durability: str):
    each, threads = (400, 8) if durability == "appended" else (60, 16)
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, durability=durability) as log:

        def work(number: int) -> None:
            rng = random.Random(number)
            for i in range(each):
                size = rng.choice([0, 10, 1000, 70_00])
                entry = log.append(b"%d %d " % (number, i) + b"x" * size)
                assert log[entry].startswith(b"%d %d " % (number, i))

        run_threads(threads, work)
        seen: dict[int, int] = {}
        for value in log[:]:
            thread, i = map(int, value.split()[:2])
            assert seen.get(thread, -1) + 1 == i
            seen[thread] = i
        assert seen == dict.fromkeys(range(threads), each - 1)


def test_batches_are_contiguous_while_others_append(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 20) as log:

        def work(number: int) -> None:
            for i in range(30):
                values = [b"%d %d" % (number, i) + b"x" * 3000] * 40  # large enough to release the GIL
                offsets = log.append_batch(values)
                assert log[offsets.start : offsets.stop] == values

        run_threads(6, work)
        assert log.end == 6 * 30 * 40


def test_one_sync_serves_all_waiting_appends(tmp_path: Path):
    files = CountingFiles()
    with pyreplog.open(tmp_path / "log", durability="synced", files=files) as log:
        before = files.syncs
        barrier = threading.Barrier(32)

        def work(_: int) -> None:
            barrier.wait()
            for _ in range(20):
                log.append(b"x" * 100)

        run_threads(32, work)
        assert log.synced_end == 640
        assert files.syncs - before < 640 / 2


class OneAtATime(RealFiles):
    """Refuses a write of a group, or of a blank, that begins while another is under way."""

    def __init__(self) -> None:
        self.writing = threading.Lock()

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if offset <= SLOT_BYTES:  # the checkpoint's, or the first of a segment
            return super().write_sync(fd, data, offset)
        assert self.writing.acquire(blocking=False), "two write at once"
        try:
            super().write_sync(fd, data, offset)
        finally:
            self.writing.release()


def test_appends_that_roll_a_segment_wait_for_the_writing_leader(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", durability="synced", segment_bytes=1 << 16, files=OneAtATime()) as log:

        def work(_: int) -> None:
            for _ in range(60):
                log.append(bytes(7000))

        run_threads(16, work)
        assert log.synced_end == 960


class HeldFiles(RealFiles):
    """Groups are written as soon as `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert offset <= SLOT_BYTES or self.go.wait(60)
        super().write_sync(fd, data, offset)


def test_woken_thread_that_does_not_run_blocks_no_other_appender(tmp_path: Path):
    """All who were woken go one behind the other, and each of these ends as soon as it has its entry."""
    files = HeldFiles()
    with pyreplog.open(tmp_path / "log", durability="synced", files=files) as log:
        files.go.set()
        log.append(b"first")
        for end in range(9, 89, 8):
            files.go.clear()
            threads = [threading.Thread(target=log.append, args=(b"x",), daemon=True) for _ in range(8)]
            for thread in threads:
                thread.start()
            until(lambda end=end: log._state[2] >= end)
            files.go.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert log.synced_end == end


class OvertakenFiles(RealFiles):
    """While a file is synced, `append` is called in another thread: appends are quicker than the disk."""

    def __init__(self) -> None:
        self.append: Callable[[], object] = lambda: None
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.syncs < 50:  # or it would never end
            run_threads(1, lambda _: self.append())
        super().sync(fd)


def test_a_sync_ends_although_appends_are_quicker_than_the_disk(tmp_path: Path):
    """It covers what was appended before it, not each segment that is sealed while it is under way."""
    files = OvertakenFiles()
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, files=files) as log:
        log.append_batch([bytes(5000)] * 30)  # three segments
        end = log.end
        files.append = lambda: log.append_batch([bytes(5000)] * 13)
        assert log.sync() == end <= log.synced_end
        assert files.syncs < 10
        files.append = lambda: None


def test_asyncio_tasks_share_syncs(tmp_path: Path):
    files = CountingFiles()

    async def main(log: pyreplog.CommitLog) -> list[int]:
        async def task() -> list[int]:
            return [await log.submit(b"x") for _ in range(10)]

        return sorted(n for numbers in await asyncio.gather(*[task() for _ in range(100)]) for n in numbers)

    with pyreplog.open(tmp_path / "log", durability="synced", files=files) as log:
        before = files.syncs
        assert asyncio.run(main(log)) == list(range(1000))
        assert files.syncs - before < 500


def test_views_and_batches_outlive_trim_recycling_and_close(tmp_path: Path):
    log = pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, spare_segments=1)
    values = [b"%06d" % n + b"x" * 500 for n in range(1000)]
    log.append_batch(values[:200])
    batch = next(log.read(0))
    record = log.get(150)
    view = log.get(5).value_view
    log.append_batch(values[200:])
    log.trim(900)
    for _ in range(20):  # reuse freed files
        log.append_batch(values[:100])
        log.trim(log.end - 100)
    log.close()
    assert batch.values() == values[: len(batch)]
    assert (record.value, bytes(view)) == (values[150], values[5])


def test_unpinned_segments_are_recycled_and_pinned_ones_are_not(tmp_path: Path):
    def files() -> dict[int, str]:
        paths = [*(tmp_path / "log").glob("*.log"), *(tmp_path / "log").glob("*.seg")]
        return {path.stat().st_ino: path.name for path in paths}

    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, spare_segments=4) as log:
        log.append_batch([bytes(1000)] * 150)
        inode = (tmp_path / "log" / f"{0:020d}.log").stat().st_ino
        pinned = log.get(100)
        pinned_inode = (tmp_path / "log" / f"{1 << 16:020d}.log").stat().st_ino
        assert pinned.position > 1 << 16
        log.trim(140)
        with log.freeze_files():  # a file that is being renamed would be seen under neither name
            names = files()
        assert inode in names
        assert pinned_inode not in names


def test_a_reader_in_another_process_keeps_its_segment(tmp_path: Path):
    code = """
import sys, pyreplog
log = pyreplog.open(sys.argv[1], mode="r")
batch = next(log.read(0))
print(len(batch), flush=True)
sys.stdin.readline()
print(set(batch.values()) == {bytes(1000)}, flush=True)
"""
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, spare_segments=2) as log:
        log.append_batch([bytes(1000)] * 150)
        command = [sys.executable, "-c", code, str(tmp_path / "log")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdin is not None
            assert int(process.stdout.readline()) > 50
            log.trim(140)
            for _ in range(30):
                log.append_batch([b"\xff" * 1000] * 60)
                log.trim(log.end - 60)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "True\n"


def test_second_writer_learns_the_pid_of_the_first(tmp_path: Path):
    with pyreplog.open(tmp_path / "log"):
        with pytest.raises(pyreplog.LockedError) as caught:
            pyreplog.open(tmp_path / "log")
        assert caught.value.pid == os.getpid()
        assert caught.value.retriable
    with pyreplog.open(tmp_path / "log") as log:
        assert log.append(b"x") == 0


def test_retention_by_size_keeps_the_floor(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, retention_bytes=1 << 18) as log:
        log.append(b"first")
        log.retention_floor = log.position_of(0)
        log.append_batch([bytes(1000)] * 2000)
        log.run_background_tasks()
        assert log.start == 0
        log.retention_floor = 1 << 62
        log.run_background_tasks()
        assert log.end_position - log.start_position <= (1 << 18) + (1 << 16)
        assert log.end == 2001


def test_a_background_task_trims_a_log_by_age(tmp_path: Path):
    clock = pyreplog.ManualClock(10**15)
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, retention_ms=60_000, clock=clock) as log:
        log.append_batch([bytes(1000)] * 100)
        clock.advance(59_000_000)
        log.append_batch([bytes(1000)] * 100)
        log.run_background_tasks()
        assert log.start == 0
        assert log.entry_at_time(10**15 + 1) == 100
        assert log.entry_at_time(0) == 0
        assert log.entry_at_time(10**18) == 200
        clock.advance(2_000_000)
        log.run_background_tasks()
        assert 0 < log.start <= 100
        clock.advance(10**12)
        log.run_background_tasks()
        assert log.end - log.start < 70  # the active segment stays


def test_time_never_goes_back(tmp_path: Path):
    class Backwards:
        def __init__(self) -> None:
            self.now = 10**15

        def now_us(self) -> int:
            self.now -= 1000
            return self.now

        def monotonic_us(self) -> int:
            return 0

    with pyreplog.open(tmp_path / "log", clock=Backwards()) as log:
        for _ in range(10):
            log.append(b"x")
        times = [record.timestamp for batch in log.read() for record in batch]
        assert times == sorted(times)
        last = times[-1]
    with pyreplog.open(tmp_path / "log", clock=pyreplog.ManualClock(5)) as log:
        log.append(b"y")
        assert log.get(10).timestamp >= last


@pytest.mark.usefixtures("uncollected")  # what is collected may let go of the GIL
def test_a_read_that_frees_the_last_segment_found_keeps_the_gil(tmp_path: Path) -> None:
    """From a look at the index to the pin of the segment nobody else may run: the housekeeper would recycle the segment.

    What is freed on the way is the segment that the read before found, with its mapped index.
    """
    ran, go = threading.Event(), threading.Lock()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        with pyreplog.open(tmp_path / "log", segment_bytes=64 << 10, spare_segments=1) as log:
            for _ in range(50):
                while log.stats().segments < 4:
                    log.append_batch([b"x" * 1000] * 20)
                log.sync()  # writes the index of the sealed ones, which a read then maps
                first, last = log.start, log.end - 1
                log.get(first)
                retired = log._drop_segments(1)
                ran.clear()
                go.acquire()
                thread = threading.Thread(target=lambda: (go.acquire(), ran.set(), go.release()))
                thread.start()
                go.release()  # the thread has all it needs now, but for the GIL
                del retired  # the last reference is `found`
                log.get(last)
                assert not ran.is_set()
                thread.join()
    finally:
        sys.setswitchinterval(interval)
