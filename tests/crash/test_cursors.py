"""Cursors of a log with the power cut at every step: a cursor never stands before what was reported, nor behind what was
asked for, and what it holds is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.commit_log import CommitLog

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step, kill_at_every_step

SEGMENT = 64 << 10
ENTRIES = 300
STEPS = (100, 101, 180, 250)


def reopened(home: Path, files: PowerCutFiles) -> CommitLog:
    config = pyreplog.LogConfig(segment_bytes=SEGMENT, durability="synced")
    return CommitLog(home / "log", config, create=False, clock=None, files=files)


class Advances(Operation):
    """A cursor is made, and advances; what lies before it is trimmed each time."""

    def prepare(self, home: Path) -> None:
        with pyreplog.open(home / "log", segment_bytes=SEGMENT, durability="synced") as log:
            log.append_batch([b"%d" % entry + bytes(1000) for entry in range(ENTRIES)])

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with reopened(home, files) as log, log.cursor("c", log.cursors().get("c", 80)) as cursor:
            report(str(cursor.entry))
            for entry in STEPS:
                if entry > cursor.entry:
                    cursor.advance(entry)
                    report(str(entry))
                log.trim(ENTRIES)

    def verify(self, left: Path, reports: list[str]) -> None:
        with pyreplog.open(left / "log") as log:
            reported = max(map(int, reports), default=-1)
            entry = log.cursors().get("c", -1)
            assert entry >= reported and entry in (-1, 80, *STEPS)
            if entry >= 0:
                with log.cursor("c") as cursor:
                    assert next(iter(cursor.follow(timeout=0))).value.rstrip(b"\0") == b"%d" % entry


class Deletes(Operation):
    """A cursor that was deleted stays so."""

    def prepare(self, home: Path) -> None:
        Advances().prepare(home)
        with pyreplog.open(home / "log") as log:
            for name in ("kept", "gone"):
                log.cursor(name, 70).close()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with reopened(home, files) as log:
            if "gone" in log.cursors():
                with log.cursor("gone") as cursor:
                    cursor.delete()
                report("gone")
            log.trim(ENTRIES)

    def verify(self, left: Path, reports: list[str]) -> None:
        with pyreplog.open(left / "log") as log:
            assert log.cursors() == {"kept": 70} if reports else {*log.cursors()} >= {"kept"}
            assert log.get(70).value.startswith(b"70")


OPERATIONS = [Advances(), Deletes()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_power_cut_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(operation, ram_path, seed) > 10


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_killed_before_the_power_cut(operation: Operation, ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(operation, ram_path, seed, stride=3) > 5
