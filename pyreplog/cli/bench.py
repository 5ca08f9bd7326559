"""`pyreplog bench`: a quick measurement on this machine and disk, each figure beside that of a bare file.

A short look, not the project's benchmarks: a few seconds, one run, the best of some rounds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyreplog
from pyreplog.cli.shared.output import print_json
from pyreplog.errors import NotALogError

NAME = "bench"
HELP = "measure appends, syncs and scans in a directory, beside a bare file doing the same"

_BATCH = 256
_VALUE = os.urandom(100)
_ROUNDS = 5
_BATCHES = 1000
_SYNCS = 50
_BLOCK = 1 << 20


@dataclass(frozen=True)
class BenchFigure:
    """name, unit: of what is measured. ours, bare: rate of the log and of the bare file, in that unit."""

    name: str
    unit: str
    ours: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="where to measure; a directory in it is made and removed again"
    )


def run(arguments: argparse.Namespace) -> int:
    where = Path(arguments.directory)
    if not where.is_dir():
        raise NotALogError(f"{where} is no directory")
    with tempfile.TemporaryDirectory(prefix="pyreplog-bench-", dir=where) as made:
        figures = [appended(Path(made)), synced(Path(made)), scanned(Path(made))]
    if arguments.json:
        print_json([
            {"name": each.name, "unit": each.unit, "log": each.ours, "bare": each.bare, "ratio": each.ratio}
            for each in figures
        ])  # fmt: skip
        return 0
    print(f"{'':<44} {'log':>12} {'bare file':>12} {'':<11} {'ratio':>6}")
    for each in figures:
        print(f"{each.name:<44} {each.ours:>12,.0f} {each.bare:>12,.0f} {each.unit:<11} {each.ratio:>6.2f}")
    return 0


def appended(where: Path) -> BenchFigure:
    """Batches appended without a sync, and the same values written to a file in calls of as many."""
    values, joined = [_VALUE] * _BATCH, _VALUE * _BATCH
    with pyreplog.open(where / "log") as log, (where / "file").open("wb", buffering=0) as file:
        ours = _best(lambda: log.append_batch(values), _BATCHES)
        bare = _best(lambda: file.write(joined), _BATCHES)
    return BenchFigure(
        f"append, batches of {_BATCH} x {len(_VALUE)} B, not synced", "records/s", ours * _BATCH, bare * _BATCH
    )


def synced(where: Path) -> BenchFigure:
    """One entry at a time, each synced, and pwrite and fdatasync into a file that was written before."""
    with pyreplog.open(where / "synced", durability="synced") as log:
        ours = _best(lambda: log.append(_VALUE), _SYNCS)
    size = 4096
    with (where / "synced-file").open("w+b", buffering=0) as file:
        file.write(bytes(size * 16))
        os.fsync(file.fileno())
        at = iter(range(1 << 60))

        def write() -> None:
            os.pwrite(file.fileno(), _VALUE, next(at) * len(_VALUE) % (size * 15))
            os.fdatasync(file.fileno())

        bare = _best(write, _SYNCS)
    return BenchFigure(f"append of {len(_VALUE)} B, synced, one caller", "records/s", ours, bare)


def scanned(where: Path) -> BenchFigure:
    """The log of `appended`, verified and split into columns, and its bytes read from a file."""
    with pyreplog.open(where / "log", "r") as log:
        length = log.end_position - log.start_position
        ours = _best(lambda: sum(len(batch) for batch in log.read()), 1) * length / 1e6
    path = where / "log.bytes"
    path.write_bytes(bytes(length))
    buffer = bytearray(_BLOCK)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                continue

    return BenchFigure("scan, verified", "MB/s", ours, _best(read, 1) * length / 1e6)


def _best(work: Callable[[], object], times: int) -> float:
    """Calls per second in the best of some rounds of so many calls."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return times / best
