"""A crash between every pair of steps: the power is cut at tick 1, 2, 3, … of each operation that changes files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import DiskError, PoisonedError
from pyreplog.log.commit_log import CommitLog
from tests.thorough import one_in

from .disk import ORDERS
from .history import BATCH, History, Item, Recorder, replay
from .life import events_of, pass_moments, pass_through
from .lives import LogLife
from .moments import Moment, Moments, verify_each
from .process import in_process, piece
from .workload import DATA, Workload

SEGMENT_BYTES = 64 << 10
PER_SEGMENT = 40  # appends of `fill` that one segment takes
RUNS = 6
"""Of one script, all different in what the seed draws; the power is cut at every tick of one of them. One in three is
tried, all of them where tests are thorough."""

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


def torn_segments(log: CommitLog, record: Recorder, work: Workload) -> None:
    """As `torn`, over several segments."""
    fill(log, record, PER_SEGMENT)
    for _ in range(5):
        put(log, record, PER_SEGMENT)


def put_record_batches(log: CommitLog, record: Recorder, count: int) -> None:
    """Record batches of three entries each, in one call."""
    items: list[Item] = [
        (BATCH, None, b"3#%d,".ljust(1400, b".") % (record.history.made + i)) for i in range(count)
    ]  # fmt: skip
    record("append", items)
    log.append_record_batches([value for _, _, value in items], [3] * count)


def record_batches(log: CommitLog, record: Recorder, work: Workload) -> None:
    """Over several segments, synced."""
    put_record_batches(log, record, 2 * PER_SEGMENT)
    log.sync()
    record("reported_synced", len(record.history.items))


def more_record_batches(log: CommitLog, record: Recorder, work: Workload) -> None:
    put_record_batches(log, record, 2)
    fill(log, record, 2)


def truncate_within_a_record_batch(log: CommitLog, record: Recorder, work: Workload) -> None:
    truncate_to(3 * PER_SEGMENT - 2)(log, record, work)


def torn_record_batches(log: CommitLog, record: Recorder, work: Workload) -> None:
    """Leaves records behind that no sync covers."""
    record_batches(log, record, work)
    for _ in range(4):
        work.append_record_batches()
        work.append()


@dataclass(frozen=True, kw_only=True)
class Scripted(LogLife):
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
    "recover torn segments": (torn_segments, 0.5, nothing, True),
}
OF_RECORD_BATCHES: dict[str, tuple[Script | None, float, Script, bool]] = {
    "begin to hold record batches": (two_segments, 1.0, more_record_batches, True),
    "begin to hold record batches in an empty log": (nothing, 1.0, more_record_batches, False),
    "append record batches": (record_batches, 1.0, more_record_batches, True),
    "roll between record batches": (record_batches, 1.0, record_batches, False),
    "truncate within a record batch": (record_batches, 1.0, truncate_within_a_record_batch, False),
    "truncate to before the log held them": (two_segments, 1.0, truncate_to(PER_SEGMENT - 10), False),
    "recover torn record batches": (torn_record_batches, 0.5, nothing, True),
}
"""In a log that is opened for record batches; what comes before is not, where it appends none."""
BATCHED = (record_batches, torn_record_batches)


def _made(
    script: Script | None, share: float, settings: dict[str, Any], folder: Path, seed: int
) -> tuple[Path, History]:
    """A directory for scripts to begin in, in which `script` was run."""
    history, home = History(), folder / "start"
    home.mkdir()
    if script is None:
        return home, history
    ready = folder / "ready"
    first = Scripted(
        seed=f"{seed}", settings=settings, share=share, script=script, record_batches=script in BATCHED
    )  # fmt: skip
    pass_through(first, home, ready, history)
    return ready, history


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("operation", [*OPERATIONS, *OF_RECORD_BATCHES])
def test_a_log_survives_a_crash_at_every_step(operation: str, durability: str, ram_path: Path, seed: int) -> None:
    before, share, script, closes = {**OPERATIONS, **OF_RECORD_BATCHES}[operation]
    settings = {"durability": durability, "segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    home, history = _made(before, share, settings, ram_path, seed)
    cuts, share = 0, one_in(6)
    for number in range(seed % share, RUNS, share):
        folder = ram_path / "run"
        life = Scripted(
            seed=f"{seed} {number}", settings=settings, script=script, closes=closes, order=ORDERS[number % len(ORDERS)],
            moments=Moments(folder / "left", f"{seed}", first=1 + number, stride=RUNS),
            record_batches=operation in OF_RECORD_BATCHES,
        )  # fmt: skip
        cuts += _survives(life, home, folder, history, again=number == seed % share)
    assert cuts > 1


@pytest.mark.parametrize(
    "operation", ["truncate within the last segment", "truncate to the first segment", "trim and recycle"]
)
def test_a_reader_is_right_whenever_its_writer_is_killed(operation: str, ram_path: Path, seed: int) -> None:
    before, _, script, _ = OPERATIONS[operation]
    settings = {"segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    home, history = _made(before, 1.0, settings, ram_path, seed)
    events = events_of(ram_path / "1")

    def verify(moment: Moment) -> None:
        known = history.copy()
        replay(known, events, moment.known)
        with pyreplog.open(moment.left / "log", "r") as reader:
            known.check(reader)
        shutil.rmtree(moment.left)

    share = one_in(6)
    for number in range(seed % share, RUNS, share):
        shutil.copytree(home, ram_path / "0")
        life = Scripted(
            seed=f"{seed} {number}", settings=settings, killed=True, script=script,
            moments=Moments(ram_path / "left", f"{seed}", first=1 + number, stride=RUNS),
        )  # fmt: skip
        moments = pass_moments(life, ram_path / "0", ram_path / "1", history)
        assert len(moments) > 3
        verify_each(moments, verify, ram_path / "report")
        shutil.rmtree(ram_path / "0")
        shutil.rmtree(ram_path / "left")
        events.unlink()


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_log_survives_a_failure_of_every_sync(operation: str, durability: str, ram_path: Path, seed: int) -> None:
    """The pages of a sync that failed count as clean. The log is opened again on the same machine, goes on, reports its
    syncs, and then loses power: nothing reported may rest on those pages."""
    before, _, script, closes = OPERATIONS[operation]
    settings = {"durability": durability, "segment_bytes": SEGMENT_BYTES, "spare_segments": 1}
    home, history = _made(before or nothing, 1.0, settings, ram_path, seed)
    after = Scripted(seed=f"{seed}", settings=settings)

    def work() -> None:
        for number in range(1, 12):
            known, folder = history.copy(), ram_path / "run"
            shutil.copytree(home, folder / "0")
            troubled = Scripted(
                seed=f"{seed}", settings=settings, failing_sync=number, share=0.0, script=script, closes=closes
            )
            with piece(f"sync {number}"):
                syncs = troubled.live_beside(folder / "0", folder / "1", known)
                after.live_beside(folder / "1", folder / "2", known)
            shutil.rmtree(folder)
            if syncs < number:
                break

    in_process(work, ram_path / "report")


def _survives(life: Scripted, home: Path, folder: Path, history: History, *, again: bool) -> int:
    """How many cuts it was given; AssertionError when what one of them left is not right, or what a second one leaves
    that follows the first opening (`again`)."""
    shutil.copytree(home, folder / "0")
    moments = pass_moments(life, folder / "0", folder / "1", history)
    after = Scripted(seed=life.seed, settings=life.settings, script=two_appends)

    def verify(moment: Moment) -> None:
        known, lives = history.copy(), folder / "lives"
        replay(known, events_of(folder / "1"), moment.known)
        lives.mkdir()
        homes = [moment.left, lives / "1", lives / "2"]
        for number in (0, 1)[: 1 + again]:
            after.live_beside(homes[number], homes[number + 1], known)
        shutil.rmtree(lives)
        shutil.rmtree(moment.left)

    verify_each(moments, verify, folder / "report")
    shutil.rmtree(folder)
    return len(moments) - 1
