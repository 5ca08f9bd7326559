"""The log's threads: they go on after a failure, say what it is, and do not wait for each other."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.log.disk import Steps
from pyreplog.errors import CorruptionError, DiskError, DiskFullError, PoisonedError
from pyreplog.log import housekeeper, names, retention, truncation
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles
from pyreplog.log.housekeeper import BackgroundTask, Housekeeper
from pyreplog.log.runtime import WHEN_WOKEN, LogRuntime
from tests.crash.disk import run_each
from tests.waiting import until

SEGMENT_BYTES = 64 << 10
KILOBYTE = bytes(1000)
WAIT_S = 60.0


class Full(RealFiles):
    """No room for a new file while `full`; `refused` and `made` are set when one was asked for."""

    def __init__(self) -> None:
        self.full = False
        self.refused, self.made = threading.Event(), threading.Event()

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        if self.full:
            self.refused.set()
            raise DiskFullError(errno.ENOSPC, f"{path}: no room")
        self.made.set()
        return super().create(path, size, zeroed=zeroed)


class Stuck(RealFiles):
    """Populating a recycled segment waits until the test lets it go on."""

    def __init__(self) -> None:
        self.stuck, self.go = threading.Event(), threading.Event()

    def run(self, steps: Steps) -> None:
        if any(name == "populate" for name, _ in steps):
            self.stuck.set()
            assert self.go.wait(WAIT_S)
        super().run(steps)


def test_an_interval_sync_does_not_wait_for_a_segment_to_be_prepared(tmp_path: Path):
    files = Stuck()
    with pyreplog.open(
        tmp_path / "log", files=files, durability="interval", sync_interval_ms=1,
        segment_bytes=SEGMENT_BYTES, retention_bytes=0,
    ) as log:  # fmt: skip
        try:
            while not files.stuck.is_set():  # until a full one is removed, and about to be prepared again
                until(
                    lambda: files.stuck.is_set() or log.stats().ready_segments
                )  # an append that finds none has to wait for it
                log.append(KILOBYTE)
            entry = log.append(b"meanwhile")
            until(lambda: log.synced_end > entry)
        finally:
            files.go.set()


def test_housekeeper_reports_a_full_disk_and_retries_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(housekeeper, "RETRY_FIRST_S", 0.001)
    files = Full()
    with pyreplog.open(tmp_path / "log", files=files, segment_bytes=SEGMENT_BYTES, spare_segments=1) as log:
        files.full = True
        with pytest.raises(DiskFullError):
            while True:
                log.append(KILOBYTE)
        assert files.refused.wait(WAIT_S)
        while "preparing a segment" not in (told := log.stats().trouble):
            continue
        assert "no room" in told
        files.made.clear()
        files.full = False
        assert files.made.wait(WAIT_S)  # without an append
        while log.stats().trouble:
            continue
        log.append(KILOBYTE)


def test_retention_failure_does_not_stop_segment_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def damaged(*_: object) -> int:
        raise CorruptionError("a segment", 0, "a record", "none")

    monkeypatch.setattr(housekeeper, "THREADS", False)
    log = pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES, retention_ms=1, spare_segments=2)
    with log, monkeypatch.context() as patch:
        patch.setattr(retention, "may_remove", damaged)
        while log.stats().ready_segments or log.stats().segments < 2:
            log.append(KILOBYTE)
        log.run_background_tasks()
        assert log.stats().ready_segments == 2
        assert log.stats().trouble == "retention: a segment at position 0: expected a record, found none"
        patch.undo()
        log.run_background_tasks()
        assert log.stats().trouble == ""


def test_a_disk_that_fails_while_a_file_is_prepared_again_costs_no_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Failing(RealFiles):
        left = 0  # header writes before one fails

        def run(self, steps: Steps) -> None:
            run_each(self, steps)

        def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            if offset == 0 and self.left:
                self.left -= 1
                if not self.left:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().write(fd, data, offset)

    monkeypatch.setattr(housekeeper, "THREADS", False)
    files, path = Failing(), tmp_path / "log"

    def recycled() -> int:
        return len(list(path.glob("*.seg")))

    with pyreplog.open(path, files=files, segment_bytes=SEGMENT_BYTES, spare_segments=4) as log:
        log.append_batch([KILOBYTE] * 400)
        log.trim(log.end)
        while log.stats().ready_segments:
            log.append(KILOBYTE)
        kept = recycled()
        assert kept >= 4
        files.left = 3
        log.run_background_tasks()
        assert "cannot be prepared" in log.stats().trouble
        assert (log.stats().ready_segments, recycled()) == (0, kept - 4)
        files.left = 0
        assert len(list(path.glob("*.log"))) == log.stats().segments
        log.run_background_tasks()
        assert log.stats().trouble == "" and log.stats().ready_segments
        log.append_batch([b"on" * 500] * 100)
        values = log[log.start :]
    with pyreplog.open(path) as log:
        assert log[log.start :] == values


def test_nothing_is_prepared_over_the_segments_that_a_failed_truncation_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, preparing = tmp_path / "log", list[threading.Thread]()
    monkeypatch.setattr(housekeeper, "THREADS", False)

    def prepare(log: CommitLog) -> None:
        with pytest.raises(DiskError):
            log.run_background_tasks()

    def fail(*_: object) -> None:
        preparing.append(threading.Thread(target=prepare, args=(log,)))
        preparing[0].start()  # goes on as soon as the truncation has failed
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = pyreplog.open(path, segment_bytes=SEGMENT_BYTES)
    values = [b"%d," % i + KILOBYTE for i in range(400)]
    log.append_batch(values)
    monkeypatch.setattr(truncation, "announce", fail)
    with pytest.raises(PoisonedError):
        log.truncate(20)
    preparing[0].join()
    log.close()
    with pyreplog.open(path) as log:
        assert log[:] == values


def test_a_background_task_that_fails_is_put_off_for_longer_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    errors: list[DiskError] = []

    def act(_: CommitLog) -> float:
        if errors:
            raise errors[-1]
        return 7.0

    caplog.set_level(logging.INFO, "pyreplog.log.housekeeper")
    task = BackgroundTask("work", act)
    with pyreplog.open(tmp_path / "log") as log:
        assert (task.attempt(log), task.put_off()) == (7.0, 0.0)
        errors.append(DiskError(errno.EIO, "one"))
        assert [task.attempt(log) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        assert task.put_off() > 0 and task.trouble == "work: [Errno 5] one"
        errors.append(DiskError(errno.EIO, "two"))
        task.attempt(log)
        assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]  # once for each
        errors.clear()
        assert (task.attempt(log), task.trouble, task.put_off()) == (7.0, "", 0.0)
        errors.append(DiskError(errno.EIO, "one"))
        assert task.attempt(log) == 0.5
    with pytest.raises(DiskError):  # closed: there is nothing to try again
        task.attempt(log)


def test_freeze_files_stops_background_work_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An error in there is the caller's: files are made again behind it."""
    monkeypatch.setattr(housekeeper, "THREADS", False)
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, spare_segments=2) as log:
        log.append_batch([KILOBYTE] * 200)
        while log.stats().ready_segments:
            log.append(KILOBYTE)
        busy = [threading.Thread(target=call) for call in (log.run_background_tasks, lambda: log.trim(100))]
        with pytest.raises(RuntimeError), log.freeze_files():
            before = sorted(file.name for file in path.iterdir())
            for thread in busy:
                thread.start()
            log.append(b"goes on")
            for thread in busy:
                thread.join(0.1)
            assert sorted(file.name for file in path.iterdir()) == before
            assert all(thread.is_alive() for thread in busy)
            raise RuntimeError("of who copies")
        for thread in busy:
            thread.join(WAIT_S)
        log.run_background_tasks()
        assert log.start > 0 and log.stats().ready_segments == 2 and log.stats().trouble == ""


def test_no_more_removed_segments_are_kept_than_are_soon_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Retention gives space back: of many segments that go at once, twice the spare ones stay, ready ones included."""
    monkeypatch.setattr(housekeeper, "THREADS", False)
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, spare_segments=2) as log:
        for _ in range(12):
            log.append_batch([KILOBYTE] * 60)
            log.run_background_tasks()
        assert log.stats().ready_segments == 2
        in_use = len(names.segment_bases(path)) - 2
        assert in_use > 8
        log.trim(log.end)
        in_use_now = 1
        kept = len(names.segment_bases(path)) + len(names.spare_paths(path)) - in_use_now
        assert 2 <= kept <= 4


class StubLog:
    """As a housekeeper sees a log."""

    def __init__(self) -> None:
        self.path, self.is_usable = Path("log"), True


@pytest.mark.parametrize("shares", [True, False])
def test_both_tasks_run_when_a_log_is_opened_and_none_behind_its_close(shares: bool):
    """On threads of a runtime and on its own: the end waits for the run that is under way."""
    log, begun, go, ran, ended = StubLog(), threading.Event(), threading.Event(), list[str](), threading.Event()

    def prepare(_: StubLog) -> float:
        ran.append("prepare")
        begun.set()
        assert go.wait(WAIT_S)
        return 0.0

    def sync(_: StubLog) -> float:
        ran.append("sync")
        return WAIT_S

    def poison(_: StubLog, stage: str, error: OSError) -> PoisonedError:
        raise AssertionError("nothing fails")

    def stop() -> None:
        keeper.stop()
        ended.set()

    with LogRuntime() as runtime:
        keeper = Housekeeper(
            log, preparing=[BackgroundTask("prepare", prepare)], syncing=[BackgroundTask("sync", sync)], poison=poison,
            runtime=runtime if shares else None,
        )  # fmt: skip
        assert keeper.is_shared is shares and not keeper.is_stopping
        keeper.start()
        assert begun.wait(WAIT_S)
        until(lambda: "sync" in ran)
        closing = threading.Thread(target=stop)
        closing.start()
        until(lambda: keeper.is_stopping)
        assert not ended.wait(0.05)
        go.set()
        assert ended.wait(WAIT_S)
        closing.join()
        count = len(ran)
        keeper.wake_preparing()
        keeper.wake_syncing()
        if shares:
            runtime.preparing.add(lambda: begun.clear() or WHEN_WOKEN).wake()  # type: ignore[func-returns-value]
            until(lambda: not begun.is_set())
        assert len(ran) == count


def test_a_log_that_cannot_be_used_is_left_alone():
    """A failed sync proves that later ones prove nothing."""
    log, ran, poisoned = StubLog(), list[str](), list[str]()

    def sync(_: StubLog) -> float:
        ran.append("sync")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def poison(of: StubLog, stage: str, error: OSError) -> PoisonedError:
        poisoned.append(f"{stage}: {error.errno}")
        of.is_usable = False
        return PoisonedError("of a test")

    idle = BackgroundTask[StubLog]("prepare", lambda _: WAIT_S)
    keeper = Housekeeper(log, preparing=[idle], syncing=[BackgroundTask("sync", sync)], poison=poison)
    keeper.start()
    until(lambda: bool(poisoned))
    keeper.wake_syncing()
    keeper.stop()
    assert (ran, poisoned) == (["sync"], [f"housekeeping: {errno.EIO}"])


def test_a_step_goes_on_while_there_is_more_to_prepare():
    log, done = StubLog(), list[str]()
    pauses = iter((0.0, 0.0, 7.0))

    def retain(_: StubLog) -> float:
        done.append("retain")
        return 1.0

    def prepare(_: StubLog) -> float:
        done.append("prepare")
        return next(pauses)

    def sync(_: StubLog) -> float:
        done.append("sync")
        return 1.0

    def poison(_: StubLog, stage: str, error: OSError) -> PoisonedError:
        raise AssertionError("nothing fails")

    tasks = [BackgroundTask("retain", retain), BackgroundTask("prepare", prepare)]
    Housekeeper(log, preparing=tasks, syncing=[BackgroundTask("sync", sync)], poison=poison).step(log)
    assert done == ["retain", "prepare"] * 3 + ["sync"]
