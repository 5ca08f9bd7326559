"""A crash between every pair of steps: the power is cut at tick 1, 2, 3, … of each operation that changes files."""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog.errors import DiskError, PoisonedError
from pyreplog.log.commitlog import CommitLog

from .history import History, Recorder
from .lives import Life, pass_through
from .workload import DATA, Workload

SEGMENT_BYTES = 64 << 10
PER_SEGMENT = 40  # appends of `fill` that one segment takes

Script = Callable[[CommitLog, Recorder, Workload], None]


def put(log: CommitLog, record: Recorder, count: int) -> None:
    """One batch."""
    items = [(DATA, None, b"%d,".ljust(1400, b".") % (record.history.made + i)) for i in range(count)]
    record("append", items)
    try:
        log.append_batch([value for _, _, value in items])
    except DiskError:
        record("refused_append", count)
        raise


def fill(log: CommitLog, record: Recorder, count: int) -> None:
    """One batch, synced."""
    put(log, record, count)
    log.sync()
    record("reported_synced", len(record.history.items))


def put_two(log: CommitLog, record: Recorder, work: Workload) -> None:
    put(log, record, 2)


def nothing(log: CommitLog, record: Recorder, work: Workload) -> None:
    """Opening is all."""


def two_appends(log: CommitLog, record: Recorder, work: Workload) -> None:
    fill(log, record, 2)


def two_segments(log: CommitLog, record: Recorder, work: Workload) -> None:
    fill(log, record, 2 * PER_SEGMENT)


def roll(log: CommitLog, record: Recorder, work: Workload) -> None:
    fill(log, record, PER_SEGMENT + 20)
    work.keep_house()
    fill(log, record, 2)


def truncate_to(entry: int) -> Script:
    def script(log: CommitLog, record: Recorder, work: Workload) -> None:
        if entry < log.end:
            record("truncate", record.history.numbered[entry])
            log.truncate(entry)
            record("truncated")
        fill(log, record, 2)

    return script


def truncate_unsynced(log: CommitLog, record: Recorder, work: Workload) -> None:
    """What stays becomes durable by it."""
    put(log, record, PER_SEGMENT + 20)
    truncate_to(PER_SEGMENT + 10)(log, record, work)


def trim_and_recycle(log: CommitLog, record: Recorder, work: Workload) -> None:
    record("trim", log.end)
    record("trimmed", log.trim(log.end))
    fill(log, record, PER_SEGMENT)  # into what was prepared before
    work.keep_house()
    fill(log, record, 2 * PER_SEGMENT)  # into what was recycled


def torn(log: CommitLog, record: Recorder, work: Workload) -> None:
    """Leaves records behind that no sync covers."""
    fill(log, record, PER_SEGMENT)
    for _ in range(4):
        work.append_batch()
        work.append()


@dataclass(frozen=True, kw_only=True)
class Scripted(Life):
    """A life that follows a script."""

    script: Script = nothing

    def act(self, log: CommitLog, rng: Random, record: Recorder, steps: int) -> bool:
        try:
            self.script(log, record, Workload(log, rng, record, threads=False))
        except (PoisonedError, DiskError):
            if not self.failing_sync:
                raise
            return False
        return True


OPERATIONS: dict[str, tuple[Script | None, float, Script, bool]] = {
    # what comes before (None: no log), what of it is on disk, the operation, whether it ends with close()
    "create": (None, 1.0, nothing, False),
    "append and close": (two_segments, 1.0, put_two, True),
    "roll": (two_segments, 1.0, roll, False),
    "truncate within the last segment": (two_segments, 1.0, truncate_to(2 * PER_SEGMENT - 3), False),
    "truncate to the first segment": (two_segments, 1.0, truncate_to(PER_SEGMENT - 10), False),
    "truncate what was not synced": (None, 1.0, truncate_unsynced, False),
    "trim and recycle": (two_segments, 1.0, trim_and_recycle, False),
    "recover a torn tail": (torn, 0.5, nothing, True),
}


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_crash_at_every_step(operation: str, durability: str, ram_path: Path, seed: int) -> None:
    before, share, script, closes = OPERATIONS[operation]
    settings = {"durability": durability, "segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    history, home = History(), ram_path / "start"
    home.mkdir()
    if before is not None:
        ready = ram_path / "ready"
        pass_through(Scripted(seed=f"{seed}", settings=settings, share=share, script=before), home, ready, history)
        home = ready
    for tick in itertools.count(1):
        life = Scripted(seed=f"{seed} {tick}", settings=settings, cut_at=tick, script=script, closes=closes)
        try:
            if not _survives(life, home, ram_path / "run", copy.deepcopy(history), again=tick % 6 == seed % 6):
                break
        except AssertionError as error:
            raise AssertionError(f"cut at tick {tick}: {error}") from None
    assert tick > 5


@pytest.mark.parametrize(
    "operation", ["truncate within the last segment", "truncate to the first segment", "trim and recycle"]
)
def test_a_reader_is_right_whenever_its_writer_is_killed(operation: str, ram_path: Path, seed: int) -> None:
    before, _, script, _ = OPERATIONS[operation]
    settings = {"segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    history = History()
    (ram_path / "start").mkdir()
    ready = Scripted(seed=f"{seed}", settings=settings, share=1.0, script=before or nothing)
    pass_through(ready, ram_path / "start", ram_path / "ready", history)
    for tick in itertools.count(1):
        folder, known = ram_path / "run", copy.deepcopy(history)
        folder.mkdir()
        shutil.copytree(ram_path / "ready", folder / "0")
        life = Scripted(seed=f"{seed} {tick}", settings=settings, cut_at=tick, killed=True, script=script)
        killed = pass_through(life, folder / "0", folder / "1", known)
        with pyreplog.open(folder / "1" / "log", "r") as reader:
            known.check(reader)
        shutil.rmtree(folder)
        if not killed:
            break


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_sync_fails_once(operation: str, durability: str, ram_path: Path, seed: int) -> None:
    """The pages of a sync that failed count as clean. The log is opened again on the same machine, goes on, reports its
    syncs, and then loses power: nothing reported may rest on those pages."""
    before, _, script, closes = OPERATIONS[operation]
    settings = {"durability": durability, "segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    for number in range(1, 12):
        history, folder = History(), ram_path / str(number)
        (folder / "0").mkdir(parents=True)
        ready = Scripted(seed=f"{seed}", settings=settings, share=1.0, script=before or nothing)
        troubled = Scripted(
            seed=f"{seed}", settings=settings, failing_sync=number, share=0.0, script=script, closes=closes
        )
        after = Scripted(seed=f"{seed}", settings=settings)
        for i, life in enumerate((ready, troubled, after)):
            pass_through(life, folder / str(i), folder / str(i + 1), history)


def _survives(life: Scripted, home: Path, folder: Path, history: History, *, again: bool) -> bool:
    """Whether the life was long enough for its cut; AssertionError when what the cut left is not right, or what a second
    one leaves that follows the first opening (`again`)."""
    folder.mkdir()
    shutil.copytree(home, folder / "0")
    done = pass_through(life, folder / "0", folder / "1", history)
    for number in (1, 2)[: 1 + again]:
        after = Scripted(seed=life.seed, settings=life.settings, script=two_appends)
        pass_through(after, folder / str(number), folder / str(number + 1), history)
    shutil.rmtree(folder)
    return done
