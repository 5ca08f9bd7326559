"""The power is cut at every step of the life of a partition's log, whichever role it has, and its process is killed there.

Each value says which epoch wrote it, and at which offset. So a log that is opened again tells whether its epochs are
those of its records, and whether it is the beginning of a log that there was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyreplog.errors import NotALogError, StreamError
from pyreplog.log import commit_log
from pyreplog.log.fsck.check import check
from pyreplog.partition.store.partition_log import LogSlice, PartitionLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History
from tests.crash.disk import PowerCutFiles
from tests.crash.operation import Operation, Report, Way, cut_at_every_step, kill_at_every_step
from tests.ha.streams import SEGMENT_BYTES, assert_same_files, config, kill

from .partition_logs import ALL, UUID, epoch, follow_from

WAYS = (Way(0.0, "first", 2), Way(None, "last", 3), Way(None, "any", 4))
PER_SEGMENT = 14
"""Values that one segment takes."""


def put(log: PartitionLog, count: int) -> None:
    """Values that know their epoch and their offset; every second one is a batch of three records."""
    assert log.leading_epoch is not None
    for _ in range(count):
        offset = log.end_mark.entry
        value = b"%d,%d,".ljust(4200, b".") % (log.leading_epoch.number, offset)
        if offset % 2:
            log.append_records([value], [3])
        else:
            log.append_messages([value])


def open_log(path: Path, durability: str, files: PowerCutFiles | None = None) -> PartitionLog:
    return PartitionLog.open_or_create(path, config(durability=durability), uuid=UUID, files=files)


@dataclass(frozen=True)
class Leader:
    """The log of a leader, for processes that do not have it open."""

    start: LogPosition
    end: LogPosition
    history: History
    slices: tuple[LogSlice, ...]

    @classmethod
    def of(cls, log: PartitionLog) -> Leader:
        slices, at = [], log.start_mark
        while at != log.end_mark:
            part = log.read_frames(at, 20_000)
            slices.append(LogSlice(part.position, part.end, [(at, bytes(body)) for at, body in part.frames]))
            at = part.end
        return cls(log.start_mark, log.end_mark, log.history, tuple(slices))

    def after(self, mark: LogPosition) -> list[LogSlice]:
        """From a mark on. It may lie within a slice, which then begins there."""
        slices = []
        for part in self.slices:
            if part.position >= mark:
                slices.append(part)
            elif part.end > mark:
                frames = [(max(at, mark.position), body[max(mark.position - at, 0) :]) for at, body in part.frames]
                slices.append(LogSlice(mark, part.end, [(at, body) for at, body in frames if body]))
        return slices


class World:
    """What the scripts play with. All are logs of one partition.

    common: what both replicas have, of epoch 1. leader: more of epoch 1, then epoch 3. trimmed: the same, begun later.
    """

    def __init__(self, folder: Path) -> None:
        with open_log(folder / "leader", "appended") as log:
            log.lead(epoch(1))
            put(log, PER_SEGMENT + 5)
            self.common = Leader.of(log)
            put(log, 3)
            log.lead(epoch(3))
            put(log, 2 * PER_SEGMENT)
            self.leader = Leader.of(log)
        shutil.copytree(folder / "leader", folder / "trimmed")
        with open_log(folder / "trimmed", "appended") as log:
            log.show_high_watermark(ALL)
            log.trim_to(LogPosition(2 * SEGMENT_BYTES, 0))
            assert log.start_mark.position == 2 * SEGMENT_BYTES
            self.trimmed = Leader.of(log)


class Replica:
    """The replica that a script plays with, and what it tells of it."""

    def __init__(self, log: PartitionLog, world: World, report: Report) -> None:
        self.log, self.world, self.report = log, world, report
        self._number = log.history.last.number

    def sync(self) -> None:
        self.log.sync()
        self.tell_synced()

    def tell_synced(self) -> None:
        self.report(f"synced {self.log.ends.synced.position}")

    def follow(self, leader: Leader) -> None:
        """As a follower's machine does it; with a sync now and then."""
        log = self.log
        point = log.history.common_point(log.end_mark, leader.history, leader.end)
        if point is None or point < max(log.start_mark, leader.start):
            if log.end_mark != leader.start or log.start_mark != leader.start:
                self.reset(leader)
        else:
            self.cut(point)
        for number, part in enumerate(leader.after(log.end_mark)):
            log.append_fetched(part)
            if number % 3 == 2:
                self.sync()
        self.sync()

    def cut(self, point: LogPosition) -> None:
        if point == self.log.end_mark:
            return
        lost = {start.term.number for start in self.log.history.starts if start.start >= point} - {1, 3}
        self.report(f"cutting {point.position}")
        assert self.log.truncate_to(point).end == point
        for number in lost:
            self.report(f"without {number}")
        self.tell_synced()

    def reset(self, leader: Leader) -> None:
        lost = {start.term.number for start in self.log.history.starts}
        self.report("cutting -1")
        self.log.reset(leader.start, leader.history)
        for number in lost - {1, 3}:
            self.report(f"without {number}")

    def lead(self, number: int) -> None:
        """In an epoch that no log has yet: a process that begins again leads in a later one."""
        self._number = max(number, self._number + 1, self.log.history.last.number + 1)
        self.log.lead(epoch(self._number, "b"))


Script = Callable[[Replica], None]


def follow(replica: Replica) -> None:
    replica.follow(replica.world.leader)


def lead(replica: Replica) -> None:
    """Epoch records alone, appends, segments that are begun, the background's syncs."""
    replica.lead(20)
    replica.sync()
    replica.lead(21)
    put(replica.log, 3)
    replica.sync()
    put(replica.log, PER_SEGMENT)
    replica.log.run_background_tasks()
    replica.tell_synced()
    put(replica.log, PER_SEGMENT)
    replica.sync()


def lead_at_the_end_of_a_segment(replica: Replica) -> None:
    """Until the record of an epoch does not fit any more."""
    replica.lead(20)
    front = replica.log.end_mark.position // SEGMENT_BYTES
    while replica.log.end_mark.position // SEGMENT_BYTES == front:
        put(replica.log, 1)
    while SEGMENT_BYTES - replica.log.end_mark.position % SEGMENT_BYTES > 5000:
        put(replica.log, 1)
    gap = SEGMENT_BYTES - replica.log.end_mark.position % SEGMENT_BYTES
    offset = replica.log.end_mark.entry
    number = replica.log.history.last.number
    replica.log.append_messages([(b"%d,%d," % (number, offset)).ljust(gap - 32 - 72, b".")])
    replica.sync()
    replica.lead(21)
    replica.sync()
    put(replica.log, 2)
    replica.sync()


def truncate(replica: Replica) -> None:
    """An unclean tail of an epoch that nobody else has, over two segments."""
    follow(replica)


def truncate_unsynced(replica: Replica) -> None:
    replica.lead(20)
    put(replica.log, PER_SEGMENT)
    replica.log.stop_leading()
    follow(replica)


def truncate_to_its_start(replica: Replica) -> None:
    if replica.log.end_mark != replica.log.start_mark:
        replica.cut(replica.log.start_mark)
    follow(replica)


def reset(replica: Replica) -> None:
    replica.follow(replica.world.trimmed)


def change_roles(replica: Replica) -> None:
    replica.lead(20)
    put(replica.log, 4)
    replica.sync()
    put(replica.log, 4)
    replica.log.stop_leading()
    follow(replica)
    replica.lead(21)
    put(replica.log, 2)
    replica.sync()
    replica.log.stop_leading()
    replica.tell_synced()


def refuse(replica: Replica) -> None:
    """Behind a damaged record lie intact ones, which another leader has not. Its record takes the place of the first."""
    log = replica.log
    if log.end_mark != replica.world.common.end:
        follow(replica)
        return
    part, *_ = replica.world.leader.after(log.end_mark)
    frames = [(at, bytearray(body)) for at, body in part.frames]
    frames[0][1][4000] ^= 1
    with pytest.raises(StreamError):
        log.append_fetched(LogSlice(part.position, part.end, frames))
    assert log.end_mark == part.position
    log.append_fetched(LogSlice(part.position, *_first_record(part)))
    replica.report(f"at most {log.end_mark.position}")
    replica.tell_synced()


def _first_record(part: LogSlice) -> tuple[LogPosition, list[tuple[int, bytes]]]:
    at, body = part.frames[0]
    size = -(-int.from_bytes(bytes(body[:4]), "little") // 8) * 8
    record = bytes(body[:size])
    return LogPosition(at + size, part.position.entry + (3 if part.position.entry % 2 else 1)), [(at, record)]


def trim(replica: Replica) -> None:
    replica.sync()
    replica.log.show_high_watermark(ALL)
    replica.log.trim_to(LogPosition(SEGMENT_BYTES, 0))
    replica.tell_synced()
    follow(replica)


def nothing(replica: Replica) -> None:
    """Opening is all: what it tells as synced is."""


SCRIPTS: dict[str, tuple[str, Script]] = {  # what is there before, and what is done
    "create": ("", follow),
    "create and lead": ("", lead),
    "open": ("killed", nothing),
    "follow": ("common", follow),
    "lead": ("common", lead),
    "lead at the end of a segment": ("common", lead_at_the_end_of_a_segment),
    "truncate": ("diverged", truncate),
    "truncate what was not synced": ("common", truncate_unsynced),
    "truncate to its start": ("diverged", truncate_to_its_start),
    "refuse a record": ("common", refuse),
    "reset": ("diverged", reset),
    "change roles": ("common", change_roles),
    "trim": ("diverged", trim),
}


class OfReplica(Operation):
    """A script, with a log."""

    def __init__(self, world: World, name: str, durability: str, folder: Path) -> None:
        self._world, self._durability, self._folder = world, durability, folder
        self._before, self._script = SCRIPTS[name]

    def prepare(self, home: Path) -> None:
        if not self._before:
            return
        log = open_log(home / "log", self._durability)
        for part in self._world.common.slices:
            log.append_fetched(part)
        if self._before != "common":
            log.lead(epoch(2, "b"))
            put(log, PER_SEGMENT + 4)
        if self._before == "killed":
            kill(log)
        else:
            log.close()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        commit_log.LAZY_SYNC_S = -1.0
        log = open_log(home / "log", self._durability, files)
        replica = Replica(log, self._world, report)
        try:
            replica.tell_synced()
            self._script(replica)
            log.close()
        except BaseException:
            kill(log)  # another one opens it in the same process
            raise

    def verify(self, left: Path, reports: list[str]) -> None:
        floor, most, lost = 0, 1 << 62, set[int]()
        for line in reports:
            event, number = line.rsplit(" ", 1)
            if event == "synced":
                floor = max(floor, int(number))
            elif event == "cutting":
                floor = min(floor, int(number))
            elif event == "at most":
                most = int(number)
            elif event == "without":
                lost.add(int(number))
        try:
            log = open_log(left / "log", self._durability)
        except NotALogError:
            assert not (left / "log" / "checkpoint").exists() and floor <= 0
            return
        with log:
            assert log.ends.synced == log.ends.end
            assert floor <= log.end_mark.position <= most, f"ends at {log.end_mark}: {reports}"
            _check_values(log)
            assert not lost & {start.term.number for start in log.history.starts}, f"{log.history}: {reports}"
            with open_log(self._folder / ("trimmed" if log.start else "leader"), "appended") as leader:
                before = log.end_mark
                follow_from(leader, log)
                assert_same_files(leader, log)
                starts = leader.history.starts
                assert log.history.starts[-len(starts) :] == starts, f"from {before}"
            log.lead(epoch(99, "b"))
            put(log, 2)
        assert not any(damage.costs_entries for damage in check(left / "log").damages)


def _check_values(log: PartitionLog) -> None:
    """Each offset is there once, and each value is of the epoch that has its offset."""
    entry, history = log.start, log.history
    for batch in log.read_positions(log.start_position, committed=False):
        for record in batch:
            number, offset, _ = record.value.split(b",", 2)
            assert (int(offset), record.entry - record.entry_count + 1) == (entry, entry)
            entry += record.entry_count
            begun = [start.term.number for start in history.starts if start.start.position <= record.position]
            assert begun and begun[-1] == int(number), f"offset {entry} is of epoch {number!r}, not of {history}"
    assert entry == log.end_mark.entry


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    folder = tmp_path_factory.mktemp("world")
    return World(folder), folder


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_power_is_cut_at_every_step(
    world: tuple[World, Path], name: str, durability: str, ram_path: Path, seed: int
) -> None:
    cuts = cut_at_every_step(OfReplica(world[0], name, durability, world[1]), ram_path, seed, WAYS)
    assert cuts >= len(WAYS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_process_is_killed_at_every_step(
    world: tuple[World, Path], name: str, ram_path: Path, seed: int
) -> None:  # fmt: skip
    kill_at_every_step(OfReplica(world[0], name, "appended", world[1]), ram_path, seed, 8)
