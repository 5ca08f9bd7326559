"""The first segment of a log with a runtime is made by its first append: with the power cut, or the process killed, at every
step of it, what was acknowledged is there, and the log opens."""

from __future__ import annotations

from pathlib import Path

import pyreplog
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.runtime import LogRuntime

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step, kill_at_every_step

VALUES = [b"%d" % entry for entry in range(3)]


class FirstAppends(Operation):
    """A log that was never appended to is opened, and gets its first entries."""

    def prepare(self, home: Path) -> None:
        with (
            LogRuntime() as runtime,
            CommitLog(home / "log", _config(), create=True, clock=None, files=None, runtime=runtime) as log,
        ):
            assert log.stats().segments == 0

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with (
            LogRuntime() as runtime,
            CommitLog(home / "log", _config(), create=False, clock=None, files=files, runtime=runtime) as log,
        ):
            for entry in range(log.end, len(VALUES)):
                report(str(log.append(VALUES[entry])))

    def verify(self, left: Path, reports: list[str]) -> None:
        with pyreplog.open(left / "log") as log:
            assert log.end > max(map(int, reports), default=-1)
            assert log[:] == VALUES[: log.end]
            assert log.append(b"next") == log.end - 1


def _config() -> pyreplog.LogConfig:
    return pyreplog.LogConfig(segment_bytes=64 << 10, durability="synced")


def test_power_cut_at_every_step(ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(FirstAppends(), ram_path, seed) > 10


def test_killed_before_the_power_cut(ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(FirstAppends(), ram_path, seed, stride=3) > 5
