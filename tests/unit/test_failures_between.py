"""What fails, or is cleared away, in the middle of something else: a header write, an earlier group's sync, a collection."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pyreplog
import pyreplog.log.commit
import pyreplog.log.commit_log
from pyreplog.log import housekeeper
from pyreplog.log.files import RealFiles
from tests import samples
from tests.tracing import opcodes_traced


class HeaderFails(RealFiles):
    """The next write of a segment header fails, once."""

    armed = False

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.armed and offset == 0 and len(data) == 4096:
            self.armed = False
            raise OSError(5, "header")
        super().write(fd, data, offset)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_roll_whose_header_cannot_be_written_leaves_the_log_as_it_was(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(housekeeper, "THREADS", False)
    files = HeaderFails()
    log = pyreplog.open(tmp_path / "log", files=files, segment_bytes=1 << 16, durability=durability)
    log.run_background_tasks()
    assert log.stats().ready_segments == 2
    written, failed = 0, 0
    files.armed = True
    for number in range(200):
        try:
            assert log.append(b"%03d" % number + bytes(1000)) == written
            written += 1
        except pyreplog.DiskError:
            failed += 1
    assert failed == 1
    assert len(log[:]) == written == log.end
    log.close()
    with pyreplog.open(tmp_path / "log") as again:
        assert again.end == written


class SyncFails(RealFiles):
    """A group's sync waits until the test lets it fail; the ones before and after it succeed."""

    def __init__(self) -> None:
        self.armed = False
        self.entered, self.go = threading.Event(), threading.Event()

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.armed and offset >= 4096:
            self.armed = False
            self.entered.set()
            self.go.wait(60)
            raise OSError(5, "sync")
        super().write_sync(fd, data, offset)


def test_nothing_is_committed_past_a_group_whose_sync_failed(tmp_path: Path):
    files = SyncFails()
    log = pyreplog.open(tmp_path / "log", files=files, durability="synced", segment_bytes=16 << 20)
    log.append(b"first")
    outcomes: list[object] = []

    def append(value: bytes) -> None:
        try:
            outcomes.append(log.append(value))
        except pyreplog.PoisonedError as error:
            outcomes.append(type(error))

    files.armed = True
    leader = threading.Thread(target=append, args=(b"leader",))
    leader.start()
    assert files.entered.wait(60)
    # More than a stage: it flushes from inside the append path, and has to wait for the leader's write.
    flusher = threading.Thread(target=append, args=(bytes(9 << 20),))
    log.append_pending(b"next")
    flusher.start()
    while not log._commits._gate.writing:
        continue
    files.go.set()
    leader.join()
    flusher.join()
    assert outcomes == [pyreplog.PoisonedError] * 2
    assert (log.end, log.synced_end) == (1, 1)
    log.close()


def test_retention_by_age_spares_a_log_cut_to_an_empty_segment(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, retention_ms=3_600_000) as log:
        log.append_batch([bytes(1000)] * 80)
        log.truncate(samples.first_entries(log.path)[1])
        log.run_background_tasks()
        assert log.start == 0


def test_a_batch_in_a_cycle_gives_its_pin_back(tmp_path: Path):
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([b"x"] * 10)
        held: list[object] = [next(log.read())]
        held.append(held)
        del held
        gc.collect()
        assert log._state[0].pinned == 0


def test_close_in_a_callback_of_an_ack(tmp_path: Path):
    log = pyreplog.open(tmp_path / "log", durability="synced")
    done = threading.Event()

    def close(_: object) -> None:
        log.close()
        done.set()

    log.submit(b"x").add_done_callback(close)
    assert done.wait(60)
    with pyreplog.open(tmp_path / "log") as again:
        assert again[0] == b"x"


class Interrupted(RealFiles):
    """Ctrl-C comes in right behind the next group's sync, once; or in front of its write."""

    armed = early = False

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        comes = self.armed and offset >= 4096
        if not comes or not self.early:
            super().write_sync(fd, data, offset)
        if comes:
            self.armed = False
            raise KeyboardInterrupt


def test_an_interrupted_commit_is_finished_and_the_log_goes_on(tmp_path: Path):
    files = Interrupted()
    with pyreplog.open(tmp_path / "log", files=files, durability="synced") as log:
        log.append(b"before")
        files.armed = True
        with pytest.raises(KeyboardInterrupt):
            log.append(b"interrupted")
        assert log.append(b"after") == 2
        assert log[:] == [b"before", b"interrupted", b"after"]


def test_a_group_that_was_taken_and_not_written_is_written_by_the_next_leader(tmp_path: Path):
    files = Interrupted()
    with pyreplog.open(tmp_path / "log", files=files, durability="synced") as log:
        log.append(b"before")
        files.armed = files.early = True
        with pytest.raises(KeyboardInterrupt):
            log.append(b"taken")
        assert log.end == 1
        assert log.append(b"after") == 2
        assert log[:] == [b"before", b"taken", b"after"]
    with pyreplog.open(tmp_path / "log") as again:
        assert again[:] == [b"before", b"taken", b"after"]


class Pressed(Exception):
    """Ctrl-C, as an error that ends one test only."""


def test_ctrl_c_ends_the_wait_for_a_commit_that_another_thread_leads(tmp_path: Path):
    files, me, came = SyncFails(), threading.main_thread(), threading.Event()
    log = pyreplog.open(tmp_path / "log", files=files, durability="synced")
    files.armed = True
    log.submit(b"led by the committing thread")
    assert files.entered.wait(60)

    def press() -> None:
        waits = log.wait_synced.__func__.__code__
        while sys._current_frames()[me.ident].f_code is not waits or not asleep(me):
            continue
        signal.pthread_kill(me.ident, signal.SIGINT)
        came.wait(10)
        files.go.set()

    def pressed(number: int, frame: FrameType | None) -> None:
        raise Pressed

    before = signal.signal(signal.SIGINT, pressed)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(Pressed):
            log.append(b"waits")
        assert not files.go.is_set()
    finally:
        came.set()
        presser.join()
        signal.signal(signal.SIGINT, before)
    with suppress(pyreplog.PoisonedError):  # unless the committing thread was quicker
        log.close()


def asleep(thread: threading.Thread) -> bool:
    """Whether the kernel has put a thread to sleep."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


COMMITTING = {pyreplog.log.commit.__file__, pyreplog.log.commit_log.__file__}


class NoSync(RealFiles):
    """A disk without waiting: there are some dozen commits to interrupt."""

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().write(fd, data, offset)


def interrupted_at(step: int, action: Callable[[], object]) -> bool:
    """Run `action` with a Ctrl-C before the bytecode number `step` of the commit path; whether it has so many."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in COMMITTING and frame.f_code is not NoSync.write_sync.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    try:
        with opcodes_traced(trace):
            action()
    except KeyboardInterrupt:
        assert left == -1
    return left < 0


def interrupted_everywhere(path: Path, play: Callable[[pyreplog.CommitLog, int], bool]) -> int:
    """Call `play` with the number of each bytecode in turn, until it finds none of that number; how many there are."""
    with pyreplog.open(path, files=NoSync(), durability="synced") as log:
        step = 0
        while play(log, step):
            step += 1
    assert step > 5, "nothing was traced"
    return step


def test_ctrl_c_at_any_bytecode_of_a_commit_loses_nothing(tmp_path: Path):
    values: list[bytes] = []

    def play(log: pyreplog.CommitLog, step: int) -> bool:
        values.extend([b"%d" % step, b"after"])
        came = interrupted_at(step, lambda: log.append(values[-2]))
        assert log.append(b"after") == len(values) - 1
        assert log.synced_end == len(values)
        return came

    interrupted_everywhere(tmp_path / "log", play)
    with pyreplog.open(tmp_path / "log") as again:
        assert again[:] == values


def test_ctrl_c_at_any_bytecode_of_a_flush_loses_nothing(tmp_path: Path):
    values: list[bytes] = []

    def play(log: pyreplog.CommitLog, step: int) -> bool:
        values.append(b"%d" % step)
        log.append_pending(values[-1])

        try:
            came = interrupted_at(step, log.commit_stage)
        finally:
            log._leave_if_inside()
        values.append(b"after")
        assert log.append(b"after") == len(values) - 1
        return came

    interrupted_everywhere(tmp_path / "log", play)
    with pyreplog.open(tmp_path / "log") as again:
        assert again[:] == values


def test_ctrl_c_at_any_bytecode_of_a_commit_leaves_no_thread_waiting(tmp_path: Path):
    """An AppendFuture waits for the same group; the committing thread, asked only then, does what the interrupted one left."""

    def play(log: pyreplog.CommitLog, step: int) -> bool:
        request = log._commits.request
        log._commits.request = lambda: None
        future = log.submit(b"pending")
        came = interrupted_at(step, lambda: log.append(b"interrupted"))
        log._commits.request = request
        request()
        assert future.result(60) == log.synced_end - 2
        log.sync()
        return came

    interrupted_everywhere(tmp_path / "log", play)
