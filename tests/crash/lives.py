"""One seeded run: a log lives through several power cuts, each in a process of its own, and is judged after each."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyreplog
from pyreplog.config import LogConfig
from pyreplog.errors import PoisonedError
from pyreplog.log import commit_log, housekeeper
from pyreplog.log.commit_log import CommitLog

from .disk import ORDERS, Disk, PowerCutFiles
from .history import History, Item, Recorder
from .life import Life, events_of, pass_through
from .process import in_process
from .workload import run_until_poisoned

SEGMENT_BYTES = (64 << 10, 64 << 10, 128 << 10, 256 << 10)


@dataclass(frozen=True, kw_only=True)
class LogLife(Life[History]):
    """Of a CommitLog.

    killed: the process ends at the cut, and the machine goes on. full: numbers of the allocations for which there is no
    room. reads: a reader looks first. threads: the log's housekeeper runs in its thread; such a run may take another
    turn when it is repeated. record_batches: the log is opened for records that take several entry numbers.
    """

    settings: dict[str, Any]
    killed: bool = False
    full: range = range(0)
    reads: bool = False
    threads: bool = False
    record_batches: bool = False

    def _live(self, home: Path, target: Path, history: History) -> tuple[Disk, CommitLog]:
        rng = Random(self.seed)
        commit_log.LAZY_SYNC_S = rng.choice((0.0, 0.001, 2.0)) if self.threads else rng.choice((-1.0, 1e9))
        if self.threads:
            sys.setswitchinterval(rng.choice((5e-3, 1e-5)))
        else:
            housekeeper.THREADS = False
        disk = Disk(home, target, rng, cut_at=self.cut_at)
        disk.failing_sync, disk.full = self.failing_sync, self.full
        disk.share, disk.killed, disk.order = self.share, self.killed, self.order
        if self.moments is not None:
            self.moments.watch(disk, events_of(target))
        record = Recorder(history, events_of(target))
        if self.reads and history.items:
            with pyreplog.open(home / "log", "r") as reader:
                history.check(reader)
        if "retention_bytes" in self.settings:
            record("trim", 1 << 62)
        steps, files = self.steps, PowerCutFiles(disk)
        while (log := self._work(home / "log", files, rng, record, steps)) is None:
            steps //= (
                2  # the disk failed: what is there must have survived, and must be on disk once it is opened again
            )
        return disk, log

    def _work(self, path: Path, files: PowerCutFiles, rng: Random, record: Recorder, steps: int) -> CommitLog | None:
        """Open, verify, work; None when the disk failed."""
        try:
            log = CommitLog(
                path,
                LogConfig(**self.settings),
                create=True,
                clock=None,
                files=files,
                record_batches=self.record_batches,
            )
        except (PoisonedError, OSError):
            if self._disk_is_fine:
                raise
            return None
        with log.freeze_files():  # retention waits for the verdict
            record("now_holds", record.history.check(log))
        fine = self.act(log, rng, record, steps)
        if self.closes or not fine:
            fine = self._close(log, record) and fine
        return log if fine else None

    def act(self, log: CommitLog, rng: Random, record: Recorder, steps: int) -> bool:
        """What is done with the open log; False when the disk failed."""
        return run_until_poisoned(log, rng, record, steps, threads=self.threads)

    def _close(self, log: CommitLog, record: Recorder) -> bool:
        poisoned = not log.is_usable
        try:
            log.close()
        except PoisonedError:
            if self._disk_is_fine:
                raise
            return False
        if not poisoned:
            record("reported_synced", len(record.history.items))
        return True

    @property
    def _disk_is_fine(self) -> bool:
        return not self.failing_sync and not self.full


def draw_life(rng: Random, seed: str, segment_bytes: int) -> LogLife:
    settings: dict[str, Any] = {
        "durability": rng.choice(("appended", "interval", "synced")),
        "segment_bytes": segment_bytes,
        "spare_segments": rng.choice((1, 2, 3)),
        "sync_interval_ms": rng.choice((1, 5, 1000)),
    }
    if rng.random() < 0.5:
        settings["retention_bytes"] = rng.randint(0, 6) * segment_bytes
    return LogLife(
        seed=seed,
        settings=settings,
        cut_at=rng.randint(1, 80) if rng.random() < 0.3 else int(10 ** rng.uniform(1.5, 3.3)),
        failing_sync=rng.randint(1, 40) if rng.random() < 0.1 else 0,
        steps=rng.choice((3, 10, 40, 120)),
        full=range(full, full + rng.randint(1, 4)) if (full := rng.randint(-9, 6)) >= 0 else range(0),
        closes=rng.random() < 0.3,
        reads=rng.random() < 0.3,
        threads=rng.random() < 0.4,
        order=Random(f"{seed} order").choice(ORDERS),
        record_batches=Random(f"{seed} batches").random() < 0.3,
    )


def run(seed: int, folder: Path) -> None:
    """All lives of one seed, in `folder`, which is removed when they went well. AssertionError otherwise."""
    rng = Random(f"power cut {seed}")
    segment_bytes = rng.choice(SEGMENT_BYTES)
    history, home = History(), folder / "0"
    home.mkdir(parents=True)
    lives = rng.choice((2, 3, 4, 6))
    for number in range(lives):
        target = folder / str(number + 1)
        life = draw_life(rng, f"{seed} {number}", segment_bytes)
        try:
            pass_through(life, home, target, history)
        except AssertionError as error:
            raise AssertionError(f"life {number} of {lives}, {life}\n{error}") from None
        shutil.rmtree(home)
        home = target
    in_process(lambda: outlive(home / "log", history), folder / "report")
    shutil.rmtree(folder)


def outlive(path: Path, history: History) -> None:
    """After the last cut: on the real disk, twice."""
    for turn in range(2):
        with pyreplog.open(path) as log:
            history.now_holds(history.check(log))
            items: list[Item] = [(1, None, b"%d after all %d" % (turn, i)) for i in range(3)]
            history.append(items)
            log.append_batch([value for _, _, value in items])
            history.reported_synced(len(history.items))
