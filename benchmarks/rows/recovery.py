"""Opening a log whose writer was killed beside a scan of what it had not synced."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pyreplog
from benchmarks.areas import mapped
from benchmarks.entries import BATCH, SIZES, make_values, stride, verify
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section
from pyreplog.log import names

_SEGMENTS = 4
_LIMIT = 2.0


class Crashed:
    """A log left behind by kill -9, its tail never synced."""

    def __init__(self, plan: Plan, folder: Path, size: int) -> None:
        self.path, self._size = folder / "log", size
        self.count = max(_SEGMENTS * plan.segment_bytes // stride(size) // BATCH, 1) * BATCH
        with job("crash", str(self.path), size, self.count, plan.segment_bytes) as writer:
            extent = writer.answer()
            writer.wait(killed=True)
        self.start, self.end = extent["start"], extent["end"]

    def scan(self) -> float:
        """Seconds of mapping the tail and verifying each record in C."""
        begin = time.perf_counter()
        with mapped(self.path, self.start, self.end) as tail:
            found = tail.scan()
        if found != self.count:
            raise ValueError(f"{found} of {self.count} entries are left")
        return time.perf_counter() - begin

    def rewrite(self) -> float:
        """Seconds of writing the tail's bytes where they are, and syncing."""
        begin = time.perf_counter()
        for base in names.segment_bases(self.path):
            path = names.segment_path(self.path, base)
            with path.open("r+b", buffering=0) as file:
                length = min(self.end - base, path.stat().st_size)
                for at in range(0, max(length, 0), 1 << 20):
                    os.pwrite(file.fileno(), os.pread(file.fileno(), min(1 << 20, length - at), at), at)
                os.fdatasync(file.fileno())
        return time.perf_counter() - begin

    def reopen(self) -> tuple[float, str]:
        """Seconds that `open` takes, and what was verified then."""
        begin = time.perf_counter()
        log = pyreplog.open(self.path)
        took = time.perf_counter() - begin
        with log:
            return took, verify(log, make_values(self._size), self.count)


def recovery(plan: Plan) -> Section:
    """`open` after kill -9; every turn kills a new writer, and the sides take turns in going first."""
    section = Section("recovery", "Opening after kill -9, durability appended, tail unsynced")
    for size in (100, 1024):
        opened: list[float] = []
        scanned: list[float] = []
        rewritten: list[float] = []
        checked = ""
        begin = time.monotonic()
        while len(opened) < plan.rounds or time.monotonic() - begin < plan.budget / 2:
            with plan.folder() as folder:
                crashed = Crashed(plan, folder, size)
                scanned.append(crashed.scan())
                if len(opened) % 2:
                    rewritten.append(crashed.scan() + crashed.rewrite())
                took, checked = crashed.reopen()
                opened.append(took)
                if len(opened) % 2:
                    rewritten.append(crashed.scan() + crashed.rewrite())
        section.comparisons += _comparisons(size, median(opened), median(scanned), median(rewritten), checked)
    section.notes.append(
        "open() also writes the tail again and syncs it, because page cache is not disk; the second line does so, too."
    )
    return section


def _comparisons(size: int, opened: float, scanned: float, rewritten: float, checked: str) -> list[Comparison]:
    return [
        Comparison(
            f"open after kill -9, {SIZES[size]}",
            Figure("open()", opened, "s", "reading"),
            Figure("mapping + CRC in C of the unsynced tail", scanned, "s", "reading"),
            Goal("at most", _LIMIT),
            checked,
        ),
        Comparison(
            f"open after kill -9, {SIZES[size]}, tail made durable",
            Figure("open()", opened, "s", "synced"),
            Figure("the same, pwrite and fdatasync of the tail", rewritten, "s", "synced"),
            Goal("at most", _LIMIT),
            checked,
        ),
    ]
