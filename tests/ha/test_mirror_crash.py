"""A replica loses power at each of its steps: its log is then a prefix of its master's log with all records that it had
reported as synced, and it goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog.errors import NotALogError, NotAReplicaError
from pyreplog.log import commit_log, housekeeper
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.replica import is_replica
from pyreplog.stream.mirror_log import MirrorLog
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.moments import Moment, Moments
from tests.crash.process import in_process
from tests.ha.streams import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    assert_same_files,
    config,
    copy,
    cuts,
    frames_of,
    make_mirror,
    open_master,
    stream,
    uncommitted,
    values,
)


@dataclass(frozen=True)
class Recorded:
    """The recorded stream of a master, for processes that have no master."""

    uuid: bytes
    frames: list[tuple[int, bytes]]
    marks: list[tuple[int, int]]

    @classmethod
    def of(cls, master: CommitLog) -> Recorded:
        frames = [(offset, bytes(body)) for offset, body in frames_of(stream(master, 0, transfer_bytes=20_000))]
        return cls(master.uuid, frames, [(master.position_of(entry), entry) for entry in range(master.end + 1)])

    def after(self, position: int) -> Iterator[tuple[int, bytes]]:
        for offset, body in self.frames:
            if offset >= position:
                yield offset, body
            elif offset + len(body) > position:
                yield position, body[position - offset :]


Script = Callable[[MirrorLog, Recorded, Callable[[], None]], None]


def take_piecemeal(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    for number, (offset, body) in enumerate(master.after(mirror.resume()[0])):
        if offset % SEGMENT_BYTES == 0:
            mirror.begin(body)
            continue
        for piece in cuts(body, Random(number), (33, 9000, 70_000)):
            mirror.append_replicated(mirror.received_end, [piece])
        if number % 2:
            mirror.sync()
            report()


def take_all(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    for offset, body in master.after(mirror.resume()[0]):
        if offset % SEGMENT_BYTES == 0:
            mirror.begin(body)
        else:
            mirror.append_replicated(offset, [body])
        if offset % 3 == 0:
            mirror.run_background_tasks()
            report()


def cut_within(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    mirror.cut(*master.marks[PER_SEGMENT + 11])


def cut_unsynced(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    for offset, body in list(master.after(mirror.resume()[0]))[:2]:
        mirror.append_replicated(offset, [body])
    mirror.cut(*master.marks[mirror.received_mark[1] - 3])
    report()


def cut_between(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    mirror.cut(*master.marks[PER_SEGMENT])


def cut_all(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    mirror.cut(*master.marks[0])


def promote(mirror: MirrorLog, master: Recorded, report: Callable[[], None]) -> None:
    offset, body = next(master.after(mirror.resume()[0]))
    mirror.append_replicated(offset, [body[:700]])
    mirror.promote()


# the script, the entries of the replica before it, and how many it has at least afterwards
SCRIPTS: dict[str, tuple[Script, int, int]] = {
    "make and take": (take_piecemeal, -1, 0),
    "take": (take_piecemeal, PER_SEGMENT + 20, PER_SEGMENT + 20),
    "take and sync in the background": (take_all, 10, 10),
    "cut within a segment": (cut_within, 2 * PER_SEGMENT + 20, PER_SEGMENT + 11),
    "cut what was not synced": (cut_unsynced, 5, 5),
    "cut between segments": (cut_between, 2 * PER_SEGMENT + 20, PER_SEGMENT),
    "cut all": (cut_all, 2 * PER_SEGMENT, 0),
    "promote": (promote, 2 * PER_SEGMENT + 20, 2 * PER_SEGMENT + 20),
}


RUNS = 3
"""How often each script runs, with other random numbers. Power cuts at the chosen steps are shared among the runs."""


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("operation", SCRIPTS)
def test_a_replica_that_loses_power_keeps_a_prefix_of_the_masters_log(
    operation: str, durability: str, ram_path: Path, seed: int
) -> None:
    script, before, floor = SCRIPTS[operation]
    with open_master(ram_path / "master", durability=durability) as master:
        master.append_batch(values(max(before, 0)))
        home = ram_path / "start"
        home.mkdir()
        if before >= 0:
            with make_mirror(home / "log", master, durability=durability) as mirror:
                copy(master, mirror)
        master.append_batch(values(PER_SEGMENT + 5, max(before, 0)))
        recorded = Recorded.of(master)
        stride = 2 if durability == "appended" else 3  # other steps in each test run
        cuts = 0
        for number in range(RUNS):
            moments = Moments(ram_path / "left", f"{seed}", 1 + seed % stride + number * stride, RUNS * stride)
            left = _live(f"{seed} {number}", moments, script, durability, home, ram_path, recorded)
            for moment in left:
                _judge(moment, ram_path / "reports", master, durability, floor)
                is_end = moment.tick is None
                assert not is_end or is_replica(moment.left / "log") == (script is not promote)
                shutil.rmtree(moment.left)
            (ram_path / "left").rmdir()
            cuts += len(left) - 1
        assert cuts > 10 // stride


def _live(
    seed: str, moments: Moments, script: Script, durability: str, home: Path, folder: Path, master: Recorded
) -> list[Moment]:
    """Run a script in a process of its own; return the disk at each power cut and at the end."""
    shutil.copytree(home, folder / "run")
    (folder / "reports").write_text("")

    def live() -> None:
        housekeeper.THREADS = False
        commit_log.LAZY_SYNC_S = -1.0
        disk = Disk(folder / "run", folder / "end", Random(seed))
        moments.watch(disk, folder / "reports")
        files = PowerCutFiles(disk)
        path, settings = folder / "run" / "log", config(durability=durability)
        if path.exists():
            mirror = MirrorLog(path, settings, files=files)
        else:
            mirror = MirrorLog.create(
                path, settings, uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(0, 0), files=files
            )

        def report() -> None:
            with (folder / "reports").open("a") as file:
                file.write(f"{mirror.synced_mark[1]}\n")

        script(mirror, master, report)
        disk.share = 0.0
        disk.power_cut(0)

    in_process(live, folder / "report")
    shutil.rmtree(folder / "run")
    return moments.and_end(folder / "end", folder / "reports")


def _judge(moment: Moment, reports: Path, master: CommitLog, durability: str, floor: int) -> None:
    reported = max([floor, *(int(line) for line in reports.read_bytes()[: moment.known].split())])
    path = moment.left / "log"
    try:
        mirror = MirrorLog(path, config(durability=durability))
    except NotAReplicaError:  # it was promoted, or was not created yet
        if not (path / "checkpoint").exists():
            assert reported <= 0
            return
        with pyreplog.open(path) as log:
            assert uncommitted(log) == values(len(log)), f"{moment}"
            assert len(log) >= reported
        return
    except NotALogError:
        assert reported <= 0
        return
    with mirror:
        records = uncommitted(mirror)
        assert records == values(len(records)), f"{moment}"
        assert len(records) >= reported, f"{moment}: {len(records)} entries, {reported} were reported as synced"
        copy(master, mirror)
        assert_same_files(master, mirror)
        assert uncommitted(mirror) == values(master.end)
