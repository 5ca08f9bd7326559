"""BookKeeper and pyreplog in one run: same quorums, window, entries and durability, entry by entry."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.entries import SIZES, make_values
from benchmarks.ledgers import Turns, bookies, long_stride, verify_ledger
from benchmarks.limits.build import ROOT
from benchmarks.peers.bookkeeper.cluster import BookKeeper, Loaded, build
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Goal, Section
from benchmarks.sampling import collector_off
from pyreplog import AppendFuture

_QUORUMS = 3, 3, 2
_SIZES = (100, 1024)
_WINDOW = 1000
_DURABILITIES: tuple[Durability, ...] = ("appended", "synced")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.bookkeeper", description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="of each load, after half as many of warm-up")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "bench-data")
    options = parser.parse_args()
    plan = Plan(directory=options.directory)
    print(report.header(machine.describe(plan.directory)), flush=True)
    build()
    for durability in _DURABILITIES:
        print("\n" + report.markdown(compare(plan, durability, options.seconds)), flush=True)


def compare(plan: Plan, durability: Durability, seconds: int) -> Section:
    """Both sides, one behind the other: the machine is too small for both at a time."""
    section = Section("bookkeeper", f"BookKeeper, E=3 Qw=3 Qa=2, {_WINDOW} entries on their way, {durability}")
    warm_up = max(seconds // 2, 1)
    for size in _SIZES:
        with plan.folder() as folder, ExitStack() as stack:
            keeper = BookKeeper(folder, durability)
            stack.callback(keeper.close)
            theirs = keeper.load(_QUORUMS, size, _WINDOW, warm_up, seconds)
        ours = _ours(plan, durability, size, warm_up, seconds)
        section.comparisons += _rows(durability, size, ours, theirs)
    return section


def _rows(durability: Durability, size: int, ours: Loaded, theirs: Loaded) -> list[Comparison]:
    verified = f"{ours.read_back:,} entries; BookKeeper: the last {theirs.read_back:,}"

    def row(work: str, goal: Goal, mine: float, other: float, **unit: Any) -> Comparison:
        figure: Callable[[str, float], Figure] = partial(Figure, durability=durability, **unit)
        return Comparison(
            f"{SIZES[size]}, {work}", figure("submit", mine), figure("BookKeeper", other), goal, verified
        )  # fmt: skip

    return [
        row("entries", Goal("at least", 3.0), ours.rate, theirs.rate, unit="/s", size=size),
        row("p99", Goal("at most", 1.0), ours.p99_ns * 1e-9, theirs.p99_ns * 1e-9, unit="s"),
        row("median", Goal("at most", 1.0), ours.p50_ns * 1e-9, theirs.p50_ns * 1e-9, unit="s"),
    ]


def _ours(plan: Plan, durability: Durability, size: int, warm_up: int, seconds: int) -> Loaded:
    """The same load on a ledger: single entries, as many on their way."""
    value = make_values(size)[0]
    with bookies(plan, durability) as side, collector_off():
        turns = Turns(side, size, _QUORUMS, durability)
        turns.warm_up(plan.segment_bytes // long_stride(size) // 256 * 256, 256)
        turns.verified()
        with side.cluster.create_ledger(*_QUORUMS, durability=durability) as ledger:
            before, _ = _load(ledger.submit, value, warm_up)
            begin = time.perf_counter()
            count, taken = _load(ledger.submit, value, seconds)
            rate = count / (time.perf_counter() - begin)
        read_back = verify_ledger(side.cluster, ledger.id, [value], before + count)
    taken.sort()
    return Loaded(rate, taken[len(taken) // 2], taken[len(taken) * 99 // 100], read_back)


def _load(submit: Any, value: bytes, seconds: int) -> tuple[int, list[int]]:
    """(entries, nanoseconds of each)"""
    clock, taken, pending = time.perf_counter_ns, list[int](), deque[AppendFuture[int]]()

    def note(begin: int, _: AppendFuture[int]) -> None:
        taken.append(clock() - begin)

    count, end = 0, clock() + seconds * 1_000_000_000
    while (begin := clock()) < end:
        if len(pending) == _WINDOW:
            pending.popleft().result()
        future = submit(value)
        future.add_done_callback(partial(note, begin))
        pending.append(future)
        count += 1
    for future in pending:
        future.result()
    return count, taken


if __name__ == "__main__":
    main()
