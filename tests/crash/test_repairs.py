"""Repair, and the recovery of a torn tail, with the power cut at every step: it can be done again, and nothing that was
damaged or cut is lost by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log import names
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck.repair import repair
from tests import running, samples

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step

HEADER_BYTES = 4096
DONE = "done"


def bytes_below(path: Path) -> list[bytes]:
    """Contents of all files."""
    return [file.read_bytes() for file in path.rglob("*") if file.is_file()]


class SideFiles(Operation):
    """An index, both slots of the checkpoint, and a marker: moved aside."""

    def prepare(self, home: Path) -> None:
        log = home / "log"
        samples.make_log(log)
        samples.flip(samples.indexes(log)[0], 100)
        samples.flip(log / names.CHECKPOINT, 20)
        samples.flip(log / names.CHECKPOINT, 4096 + 20)
        (log / names.TRUNCATION).write_bytes(b"00000000 {}\n")
        shutil.copytree(log, home / "damaged")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        assert repair(home / "log", files=files).after.clean
        report(DONE)

    def verify(self, left: Path, reports: list[str]) -> None:
        log, damaged = left / "log", left / "damaged"
        if reports:
            assert fsck.check(log).clean
        files = bytes_below(log)
        for path in (samples.indexes(damaged)[0], damaged / names.CHECKPOINT, damaged / names.TRUNCATION):
            assert path.read_bytes() in files, f"{path.name} is lost"
        repair(log)
        pyreplog.open(log).close()
        samples.assert_intact(log)


class Headers(Operation):
    """One that cannot be read, and one with something behind what is used of it: made again."""

    def prepare(self, home: Path) -> None:
        log = home / "log"
        samples.make_log(log)
        samples.flip(samples.segments(log)[1], 33)
        samples.flip(samples.segments(log)[2], 100)
        shutil.copytree(log, home / "damaged")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        assert repair(home / "log", files=files).after.clean
        report(DONE)

    def verify(self, left: Path, reports: list[str]) -> None:
        log = left / "log"
        if reports:
            assert fsck.check(log).clean
        contents = [data[:HEADER_BYTES] for data in bytes_below(log)]
        for path in samples.segments(left / "damaged")[1:3]:
            assert path.read_bytes()[:HEADER_BYTES] in contents, f"the header of {path.name} is lost"
        repair(log)
        samples.assert_intact(log)


class Truncation(Operation):
    """The log ends before a bad record: what lies behind is kept."""

    ENTRY = 500

    def prepare(self, home: Path) -> None:
        log = home / "log"
        samples.make_log(log)
        position = samples.position_of(log, self.ENTRY)
        base = position // samples.SEGMENT_BYTES * samples.SEGMENT_BYTES
        assert names.segment_bases(log)[-1] > base, "nothing lies behind"
        samples.flip(names.segment_path(log, base), position - base + 40)
        shutil.copytree(log, home / "damaged")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        assert repair(home / "log", truncate_at_damage=True, files=files).after.clean
        report(DONE)

    def verify(self, left: Path, reports: list[str]) -> None:
        log = left / "log"
        if reports:
            assert fsck.check(log).clean
        files = bytes_below(log)
        starts = samples.first_entries(left / "damaged")
        for path, following in zip(samples.segments(left / "damaged"), (*starts[1:], samples.ENTRIES), strict=True):
            assert following <= self.ENTRY or path.read_bytes() in files, f"{path.name} is lost"
        repair(log, truncate_at_damage=True)
        pyreplog.open(log).close()
        with pyreplog.open(log, "r") as reader:
            end = reader.end
        samples.assert_intact(log, range(end))
        assert self.ENTRY - 60 <= end <= self.ENTRY, "entries that were appended together go together"


class TornTail(Operation):
    """Opening cuts what nobody was told to be durable: intact records behind one that is not are kept aside."""

    VALUES = tuple(b"nobody was told of number %d" % number for number in range(9))

    def prepare(self, home: Path) -> None:
        with pyreplog.open(home / "running", segment_bytes=samples.SEGMENT_BYTES) as log:
            log.append_batch([b"synced"] * 10)
            log.sync()
            for value in self.VALUES:
                log.append(value)
            running.copied(log, log.path, home / "log")
        (segment,) = [path for path in samples.segments(home / "log") if self.VALUES[0] in path.read_bytes()]
        samples.flip(segment, segment.read_bytes().index(self.VALUES[2]))
        (home / "log" / names.TAIL).unlink()  # which would tell of all that was appended

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with pyreplog.open(home / "log", files=files) as log:
            report(f"{log.end}")

    def verify(self, left: Path, reports: list[str]) -> None:
        content = b"".join(bytes_below(left / "log"))
        for value in self.VALUES[3:]:
            assert value in content, "what was cut is nowhere"
        with pyreplog.open(left / "log") as log:
            assert log.end == 12, "and it did not come back"
        assert not reports or reports == ["12"]


@pytest.mark.parametrize(
    "operation", [SideFiles(), Headers(), Truncation(), TornTail()], ids=lambda operation: type(operation).__name__
)
def test_power_cut_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(operation, ram_path, seed) > 15
