"""One seeded run: a log lives through several power cuts, each in a process of its own, and is judged after each."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyreplog
from pyreplog.log import housekeeper
from pyreplog.log.commitlog import CommitLog

from .disk import CUT, Disk, PowerCutFiles
from .history import History, Recorder, replay
from .workload import run_until_poisoned

LIMIT_S = 60.0
"""A process that runs longer hangs: its threads are printed and the run fails."""

SEGMENT_BYTES = (64 << 10, 64 << 10, 128 << 10, 256 << 10)


def in_process(work: Callable[[], object], report: Path) -> int:
    """Run `work` in a forked process and wait; its exit status. A failure is raised here as AssertionError."""
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, CUT):
            raise AssertionError(f"exit status {status}\n{report.read_text() if report.exists() else ''}")
        return status
    with report.open("w") as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=file)
        try:
            work()
        except BaseException:
            traceback.print_exc(file=file)
            file.flush()
            os._exit(1)
        os._exit(0)


@dataclass(frozen=True)
class Life:
    """One process: opens what the last cut left, judges it, works on, and loses power at tick `cut_at` or at the end."""

    seed: str
    home: Path
    target: Path
    settings: dict[str, Any]
    cut_at: int
    failing_sync: int
    steps: int
    closes: bool

    def live(self, history: History) -> None:
        rng = Random(self.seed)
        housekeeper.LAZY_SYNC_S = rng.choice((0.0, 0.001, 2.0))
        sys.setswitchinterval(rng.choice((5e-3, 1e-5)))
        disk = Disk(self.home, self.target, rng, cut_at=self.cut_at)
        disk.failing_sync = self.failing_sync
        record = Recorder(history, self.target.with_suffix(".events"))
        if rng.random() < 0.3 and (self.home / "log").exists() and history.numbered:
            with pyreplog.open(self.home / "log", "r") as reader:
                history.check(reader)
        steps, files = self.steps, PowerCutFiles(disk)
        while True:
            log = self._open(disk, files)
            record("now_holds", history.check(log))
            if "retention_bytes" in self.settings:
                record("trim", 1 << 62)
            fine = run_until_poisoned(log, rng, record, steps)
            if fine and not self.closes:
                disk.power_cut()
            _close(log)
            if fine:
                disk.power_cut()
            steps //= 2

    def _open(self, disk: Disk, files: PowerCutFiles) -> CommitLog:
        """Open; a sync that fails once is met by opening again."""
        try:
            return pyreplog.open(self.home / "log", files=files, **self.settings)
        except OSError:
            if disk.syncs < disk.failing_sync or not disk.failing_sync:
                raise
            return pyreplog.open(self.home / "log", files=files, **self.settings)


def _close(log: CommitLog) -> None:
    try:
        log.close()
    except OSError as error:
        raise AssertionError("close") from error


def draw_life(rng: Random, seed: str, home: Path, target: Path, segment_bytes: int) -> Life:
    settings: dict[str, Any] = {
        "durability": rng.choice(("appended", "interval", "synced")),
        "segment_bytes": segment_bytes,
        "spare_segments": rng.choice((1, 2, 3)),
        "sync_interval_ms": rng.choice((1, 5, 1000)),
    }
    if rng.random() < 0.5:
        settings["retention_bytes"] = rng.randint(0, 6) * segment_bytes
    early = rng.random() < 0.3
    return Life(
        seed=seed, home=home, target=target, settings=settings,
        cut_at=rng.randint(1, 80) if early else int(10 ** rng.uniform(1.5, 3.3)),
        failing_sync=rng.randint(1, 40) if rng.random() < 0.1 else 0,
        steps=rng.choice((3, 10, 40, 120)),
        closes=rng.random() < 0.3,
    )  # fmt: skip


def run(seed: int, folder: Path) -> None:
    """All lives of one seed, in `folder`, which is removed when they went well. AssertionError otherwise."""
    rng = Random(f"power-cut {seed}")
    segment_bytes = rng.choice(SEGMENT_BYTES)
    history = History()
    home = folder / "0"
    home.mkdir(parents=True)
    lives = rng.choice((2, 3, 4, 6))
    for number in range(lives):
        target = folder / str(number + 1)
        life = draw_life(rng, f"{seed} {number}", home, target, segment_bytes)
        try:
            in_process(lambda: life.live(history), folder / "report")
        except AssertionError as error:
            raise AssertionError(f"life {number} of {lives}, {life}\n{error}") from None
        replay(history, target.with_suffix(".events"))
        shutil.rmtree(home)
        home = target
    in_process(lambda: _outlive(home / "log", history), folder / "report")
    shutil.rmtree(folder)


def _outlive(path: Path, history: History) -> None:
    """After the last cut: on the real disk, twice."""
    for _ in range(2):
        with pyreplog.open(path) as log:
            history.now_holds(history.check(log))
            items = [(1, None, b"after %d" % i) for i in range(3)]
            history.append(items)
            log.append_batch([value for _, _, value in items])
            history.reported_synced(len(history.items))
