"""`pyreplog bench`: a quick measurement on this machine and disk; each figure is compared with that of a bare file.

It takes a few seconds: one run, and the best of some rounds. The project's benchmarks are more thorough.
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
HELP = "measure appends, syncs and scans in a directory, compared with those of a bare file"

_BATCH = 256
_VALUE = os.urandom(100)
_ROUNDS = 5
_BATCHES = 1000
_SYNCS = 50
_BLOCK = 1 << 20


@dataclass(frozen=True)
class BenchFigure:
    """A measurement. ours, bare: rates of the log and of the bare file, in `unit`."""

    name: str
    unit: str
    ours: float
    bare: float

    @property
    def ratio(self) -> float:
        """Rate of the log divided by that of the bare file."""
        return self.ours / self.bare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="where to measure; a directory in it is created and removed again"
    )


def run(arguments: argparse.Namespace) -> int:
    directory = Path(arguments.directory)
    if not directory.is_dir():
        raise NotALogError(f"{directory}: expected a directory")
    with tempfile.TemporaryDirectory(prefix="pyreplog-bench-", dir=directory) as scratch:
        figures = [appended(Path(scratch)), synced(Path(scratch)), scanned(Path(scratch))]
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
    """Measure batches appended without a sync, and the same values written to a file in calls of the same size."""
    values, joined = [_VALUE] * _BATCH, _VALUE * _BATCH
    with pyreplog.open(where / "log") as log, (where / "file").open("wb", buffering=0) as file:
        ours = _best(lambda: log.append_batch(values), _BATCHES)
        bare = _best(lambda: file.write(joined), _BATCHES)
    return BenchFigure(
        f"append, batches of {_BATCH} x {len(_VALUE)} B, not synced", "records/s", ours * _BATCH, bare * _BATCH
    )


def synced(where: Path) -> BenchFigure:
    """Measure single entries, each synced, and pwrite and fdatasync into a file that was written before."""
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
    """Measure reading the log of `appended`, verified and split into columns, and reading as many bytes from a file."""
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
    """Return the calls per second in the best of some rounds of so many calls."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return times / best
