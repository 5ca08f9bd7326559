"""Backup, restore, offload and exports with the power cut at every step: a copy is whole or not there, and whole when it
was reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import NotALogError
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.offload import copying
from pyreplog.offload import manifest as manifests
from pyreplog.offload.copying import offload
from pyreplog.offload.storage import Storage
from pyreplog.reports import atomic_directories
from pyreplog.reports.atomic_files import replacing
from tests import samples

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step, kill_at_every_step

DONE = "done"


class Backup(Operation):
    def prepare(self, home: Path) -> None:
        samples.make_log(home / "log")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        backup(home / "log", home / "far" / "away" / "backup", files=files)
        report(DONE)

    def verify(self, left: Path, reports: list[str]) -> None:
        try:
            restore(left / "far" / "away" / "backup", left / "restored")
        except NotALogError:
            assert DONE not in reports
        else:
            samples.assert_intact(left / "restored")


class Restore(Operation):
    def prepare(self, home: Path) -> None:
        samples.make_log(home / "log")
        backup(home / "log", home / "backup")
        (home / "far" / "target.restoring").mkdir(parents=True)  # of an earlier attempt
        (home / "far" / "target.restoring" / "left").touch()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        for target in (home / "far" / "target", home / "farther" / "away" / "target"):
            restore(home / "backup", target, files=files)
            report(str(target.relative_to(home)))

    def verify(self, left: Path, reports: list[str]) -> None:
        for name in ("far/target", "farther/away/target"):
            if (left / name).exists():
                samples.assert_intact(left / name)
                with pyreplog.open(left / name) as log:
                    assert log.end == samples.ENTRIES
            else:
                assert name not in reports
                restore(left / "backup", left / name)


class Restored(Operation):
    """A log made from a backup is written to at once."""

    def prepare(self, home: Path) -> None:
        samples.make_log(home / "log")
        backup(home / "log", home / "backup")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        if not (home / "restored").exists():
            restore(home / "backup", home / "restored", files=files)
        with pyreplog.open(home / "restored", files=files) as log:
            log.append(b"one more")
            log.sync()
            report(DONE)

    def verify(self, left: Path, reports: list[str]) -> None:
        if reports:
            with pyreplog.open(left / "restored", "r") as log:
                assert log.end > samples.ENTRIES


class Offload(Operation):
    """Of a log that grows: manifests of several generations, of which the oldest are removed."""

    LATER = 2

    def prepare(self, home: Path) -> None:
        with pyreplog.open(home / "log 0", segment_bytes=samples.SEGMENT_BYTES) as log:
            log.append_batch([b"%d" % n + b"." * 2000 for n in range(70)])
        for later in range(1, self.LATER + 1):
            shutil.copytree(home / f"log {later - 1}", home / f"log {later}")
            with pyreplog.open(home / f"log {later}") as log:
                log.append_batch([b"%d" % n + b"." * 2000 for n in range(log.end, log.end + 60)])

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        vars(copying)["PUBLISH_BYTES"] = 100_000  # two segments
        for later in range(self.LATER + 1):
            done = offload(home / f"log {later}", f"file://{home}/far/away", files=files)
            report(f"{done.manifest.generation} {done.manifest.segments[-1].end_entry}")

    def verify(self, left: Path, reports: list[str]) -> None:
        storage = Storage(f"file://{left}/far/away")
        generation, end = map(int, (reports or ["0 0"])[-1].split())
        try:
            content = manifests.load(storage)
        except NotALogError:
            assert not reports
        else:
            assert content.generation >= generation
            assert content.segments[-1].end_entry >= end
            for item in content.segments:
                assert crc32c(storage.read(item.name, 0, item.length)) == item.crc32c
                assert crc32c(storage.read(item.index_name, 0, item.index_bytes)) == item.index_crc32c
        again = offload(left / f"log {self.LATER}", storage.url)
        assert again.manifest.segments[-1].end_entry > 150
        assert not [*(left / "far" / "away").rglob("*.part")]


class Export(Operation):
    """A page, and a directory of files, in place of older ones."""

    def prepare(self, home: Path) -> None:
        (home / "page").write_bytes(b"old")
        (home / "out").mkdir()
        (home / "out" / "part").write_bytes(b"old")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with replacing(home / "page", files=files) as draft:
            files.write_new(draft, b"new" * 3000)
        report("page")
        with atomic_directories.draft_of(home / "out", files=files) as folder:
            files.write_new_synced(folder / "part", b"new" * 3000)
            atomic_directories.put(folder, home / "out", files=files)
            report("out")

    def verify(self, left: Path, reports: list[str]) -> None:
        assert (left / "page").read_bytes() in (b"new" * 3000, *([b"old"] if "page" not in reports else []))
        if (left / "out").exists():
            assert (left / "out" / "part").read_bytes() in (b"new" * 3000, *([b"old"] if "out" not in reports else []))
        else:  # in between what was there has another name
            assert "out" not in reports
            assert [path.read_bytes() for path in left.glob(".out.*.old/part")] == [b"old"]
            atomic_directories.tidy(left / "out")
            assert (left / "out" / "part").read_bytes() == b"old"
        atomic_directories.tidy(left / "out")
        assert not [*left.glob(".out.*")]


class ExportGivenUp(Operation):
    """The export after one that was killed fails: what was there is there under its name, or all of the new."""

    def __init__(self) -> None:
        self._runs = 0

    def prepare(self, home: Path) -> None:
        (home / "out").mkdir()
        (home / "out" / "part").write_bytes(b"old")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        self._runs += 1
        with atomic_directories.draft_of(home / "out", files=files) as folder:
            files.write_new_synced(folder / "part", b"new" * 3000)
            if self._runs == 1:
                atomic_directories.put(folder, home / "out", files=files)
                return
        assert (home / "out" / "part").read_bytes() in (b"old", b"new" * 3000)
        assert not [*home.glob(".out.*")]
        report("given up")

    def verify(self, left: Path, reports: list[str]) -> None:
        atomic_directories.tidy(left / "out")
        assert (left / "out" / "part").read_bytes() in (b"old", b"new" * 3000)
        assert not [*left.glob(".out.*")]


@pytest.mark.parametrize("operation", [Restored(), Offload()], ids=lambda item: type(item).__name__)
def test_killed_before_the_power_cut(operation: Operation, ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(operation, ram_path, seed, stride=7) > 30


@pytest.mark.parametrize("operation", [Export(), ExportGivenUp()], ids=lambda item: type(item).__name__)
def test_an_export_killed_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(operation, ram_path, seed) > 6


@pytest.mark.parametrize("operation", [Backup(), Restore(), Offload(), Export()], ids=lambda item: type(item).__name__)
def test_power_cut_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(operation, ram_path, seed) > 15
