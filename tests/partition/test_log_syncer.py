"""Syncs by a few threads: in parallel, one at a time for each log, and none is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.durable_partitions import measure
from pyreplog.partition.log_syncer import LogSyncer
from tests.waiting import PATIENCE_S, until


class Log:
    """Its syncs wait until they may end."""

    def __init__(self) -> None:
        self.may_end = threading.Semaphore(0)
        self.begun = self.ended = self.running = 0
        self.overlapped = self.fails = False

    def sync(self) -> None:
        self.begun += 1
        self.running += 1
        self.overlapped = self.overlapped or self.running > 1
        assert self.may_end.acquire(timeout=PATIENCE_S)
        self.running -= 1
        self.ended += 1
        if self.fails:
            raise OSError("the disk hums")


@pytest.fixture
def syncer() -> Iterator[LogSyncer]:
    with LogSyncer(threads_max=3) as syncer:
        yield syncer


def test_several_logs_are_synced_at_a_time(syncer: LogSyncer) -> None:
    logs = [Log() for _ in range(5)]
    for log in logs:
        syncer.request(log)
    until(lambda: [log.begun for log in logs] == [1, 1, 1, 0, 0])
    logs[1].may_end.release()
    until(lambda: [log.begun for log in logs] == [1, 1, 1, 1, 0])
    for log in logs:
        log.may_end.release()
    until(lambda: [log.ended for log in logs] == [1] * 5)


def test_requests_during_a_sync_share_the_next_sync(syncer: LogSyncer) -> None:
    log = Log()
    syncer.request(log)
    until(lambda: log.begun == 1)
    for _ in range(4):
        syncer.request(log)
    log.may_end.release()
    until(lambda: (log.begun, log.ended) == (2, 1))
    log.may_end.release()
    until(lambda: log.ended == 2)
    syncer.request(log)
    until(lambda: log.begun == 3)
    log.may_end.release()
    until(lambda: log.ended == 3)
    assert not log.overlapped


def test_a_log_that_waits_is_synced_once(syncer: LogSyncer) -> None:
    busy, log = [Log() for _ in range(3)], Log()
    for other in busy:
        syncer.request(other)
    for _ in range(3):
        syncer.request(log)
    for each in (*busy, log):
        each.may_end.release()
    until(lambda: log.ended == 1)
    last = Log()
    last.may_end.release()
    syncer.request(last)
    until(lambda: last.ended == 1)
    assert log.begun == 1


def test_a_sync_that_fails_stops_no_other(syncer: LogSyncer, caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.fails = True
    log.may_end.release(2)
    syncer.request(log)
    until(lambda: "the disk hums" in caplog.text)
    syncer.request(log)
    until(lambda: log.ended == 2)


def test_the_close_waits_for_syncs() -> None:
    syncer, log, later = LogSyncer(threads_max=1), Log(), Log()
    syncer.request(log)
    syncer.request(later)
    until(lambda: log.begun == 1)
    threading.Timer(0.05, log.may_end.release).start()
    syncer.close()
    assert (log.ended, later.begun) == (1, 0)
    syncer.request(later)
    assert later.begun == 0


def test_the_benchmark_of_the_log_syncer_runs(tmp_path: Path) -> None:
    appended, rounds, seconds = measure(tmp_path, 3, 2, 0.05)
    assert appended == 3 * rounds > 0 and seconds > 0
