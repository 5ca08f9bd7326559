"""The files of an idle log are closed, and opened again by its next append: with the power cut, or the process killed, at
every step of both, what was acknowledged is there, and what was there while the log was idle is durable."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.runtime import LogRuntime

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step, kill_at_every_step

VALUES = [b"%d" % entry * 700 for entry in range(80)]  # the last ones begin a second segment


class IdleAndAppend(Operation):
    """A log gets entries, is idle, gets more, and so on."""

    def __init__(self, durability: str) -> None:
        self._durability = durability

    def prepare(self, home: Path) -> None:
        with LogRuntime() as runtime, self._open(home, runtime, None, create=True) as log:
            log.append(VALUES[0])

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with LogRuntime(idle_ms=1) as runtime, self._open(home, runtime, files, create=False) as log:
            for count in (2, 3, 75, 79, 80):
                log.append_batch(VALUES[log.end : count])
                if self._durability == "synced":
                    report(str(count))
                while not log.is_dormant:
                    time.sleep(0.001)
                    log.run_background_tasks()
                report(str(count))

    def verify(self, left: Path, reports: list[str]) -> None:
        with pyreplog.open(left / "log") as log:
            assert log.end >= max(map(int, reports), default=0)
            assert log[:] == VALUES[: log.end]
            assert log.append(b"next") == log.end - 1

    def _open(self, home: Path, runtime: LogRuntime, files: PowerCutFiles | None, *, create: bool) -> CommitLog:
        config = pyreplog.LogConfig(segment_bytes=64 << 10, durability=self._durability, spare_segments=1)
        return CommitLog(home / "log", config, create=create, clock=None, files=files, runtime=runtime)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_power_cut_at_every_step(ram_path: Path, seed: int, durability: str) -> None:
    assert cut_at_every_step(IdleAndAppend(durability), ram_path, seed) > 20


def test_killed_before_the_power_cut(ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(IdleAndAppend("appended"), ram_path, seed, stride=3) > 10
