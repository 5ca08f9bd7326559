"""What planning looks at: a range of times, many segments, many ledgers. Without Spark, which only calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyreplog
from benchmarks.entries import make_values, stride
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.spark.tiny_ledgers import make_ledgers
from benchmarks.sampling import interleave, timed
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.clock import ManualClock
from pyreplog.log.files import RealFiles
from pyreplog.tables import schema
from pyreplog.tables.cluster.entry_slices import EntrySlice
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import Part
from pyreplog.tables.planning import plan as plan_tasks
from pyreplog.tables.reading import read
from pyreplog.tables.slices import Slice

_SEGMENTS = 10_000
_SMALL = 64 << 10
_LEDGERS = 100_000
_TASK_BYTES = 1 << 20
_SIZE, _STEP = 1024, 4

_Tasks = Sequence[tuple[Part, ...]]


def planning(plan: Plan) -> Section:
    """`planning.plan`."""
    section = Section("spark-planning", "Planning: what of a log is looked at, and how it is cut into tasks")
    with plan.folder() as folder:
        section.comparisons.append(_range(plan, folder / "log"))
    with plan.folder() as folder:
        section.comparisons += _segments(plan, folder)
    with plan.folder() as folder:
        section.comparisons.append(_ledgers(plan, folder / "cluster"))
    section.notes.append(
        "What is not looked at is written over before it is read, or planned, once more: the same comes of it. Times "
        "are those of one thread, with the files in memory."
    )
    return section


# ---- a range of times ------------------------------------------------------------------------------------------


def _range(plan: Plan, log: Path) -> Comparison:
    """One per cent of the time, in the middle."""
    took_us = _fill_in_time(log, plan)
    low, high = took_us // 2, took_us // 2 + took_us // 100
    options = ReadOptions(paths=(str(log),), columns=("offset", "value"), starting_time=low, ending_time=high)
    tasks = plan_tasks(options)
    before = _rows(tasks, options)
    total = sum(file.stat().st_size for file in log.glob("*.log"))
    _spoil(log, [part for task in tasks for part in task if isinstance(part, Slice)])
    if not before or _rows(tasks, options) != before:
        raise ValueError(f"{log}: other rows without the bytes that are not planned")
    return Comparison(
        "1% of the time, 1 KiB",
        Figure("bytes of its slices", sum(part.size for task in tasks for part in task), "B", "reading"),
        Figure("bytes of the log", total, "B", "reading"),
        Goal("at most", 0.02),
        f"{len(before):,} rows, with all other bytes and without",
    )


def _fill_in_time(path: Path, plan: Plan) -> int:
    """A log that has taken so many microseconds to be filled, evenly, from time 0 on."""
    clock, values = ManualClock(0), make_values(_SIZE)[:_STEP]
    batches = 4 * plan.segment_bytes // stride(_SIZE) // _STEP
    with pyreplog.open(path, segment_bytes=plan.segment_bytes, clock=clock) as log:
        for _ in range(batches):
            log.append_batch(values)
            clock.advance(1000)
    return batches * 1000


def _rows(tasks: _Tasks, options: ReadOptions) -> list[dict[str, Any]]:
    columns = schema.default_columns(options)
    return [row for task in tasks for batch in read(tuple(task), columns, options) for row in batch.to_pylist()]


def _spoil(log: Path, kept: list[Slice]) -> None:
    """Write over all records but those of slices."""
    for path in log.glob("*.log"):
        at, size = HEADER_BYTES, path.stat().st_size
        with path.open("r+b") as file:
            for start, until in [*((part.start, part.until) for part in kept if part.path == str(path)), (size, size)]:
                file.seek(at)
                file.write(b"\xee" * (start - at))
                at = until


# ---- many segments ---------------------------------------------------------------------------------------------


def _segments(plan: Plan, folder: Path) -> list[Comparison]:
    many = _SEGMENTS if plan.budget >= 5 else 40
    few = many // 4
    sides = {"many": (many, _SMALL), "few": (few, _SMALL), "large": (few, 4 * _SMALL)}
    options = {}
    for name, (count, size) in sides.items():
        _fill(folder / name, count, size)
        options[name] = ReadOptions(paths=(str(folder / name),), max_partition_bytes=count * size // 8)
    found = interleave(
        plan.shared(3),
        {
            name: lambda options=one, count=sides[name][0]: timed(lambda: plan_tasks(options), count)
            for name, one in options.items()
        },
    )  # fmt: skip
    for name, one in options.items():
        before = plan_tasks(one)
        if len({part.path for task in before for part in task if isinstance(part, Slice)}) != sides[name][0]:
            raise ValueError(f"{folder / name}: not every segment is planned")
        _spoil(folder / name, [])
        if plan_tasks(one) != before:
            raise ValueError(f"{folder / name}: another plan without records")
    read_back = "the same tasks without any record"
    return [
        Comparison(
            f"planning {many:,} segments, each",
            Figure(f"of {many:,}", found["many"], "s", "reading"),
            Figure(f"of {few:,}", found["few"], "s", "reading"),
            Goal("at most", 1.5),
            f"{many:,} segments, {read_back}",
        ),
        Comparison(
            f"planning {few:,} segments, each",
            Figure("of 256 KiB", found["large"], "s", "reading"),
            Figure("of 64 KiB", found["few"], "s", "reading"),
            Goal("at most", 1.5),
            f"{few:,} segments, {read_back}",
        ),
    ]


class _Unsynced(RealFiles):
    """The real disk, for which nobody waits: ten thousand files would take minutes."""

    def sync(self, fd: int) -> None:
        """Not now."""

    def sync_directory(self, path: Path) -> None:
        """Not now."""

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write it, and no more."""
        self.write(fd, data, offset)


def _fill(path: Path, count: int, size: int) -> None:
    """A log of so many segments, with two records in each."""
    values = [bytes(size // 2 - HEADER_BYTES)] * 2
    with pyreplog.open(path, segment_bytes=size, files=_Unsynced()) as log:
        for _ in range(count):
            log.append_batch(values)


# ---- many ledgers ----------------------------------------------------------------------------------------------


def _ledgers(plan: Plan, path: Path) -> Comparison:
    count = plan.scaled(_LEDGERS)
    make_ledgers(path, count)
    most = _TASK_BYTES if plan.budget >= 1 else 4096
    options = ReadOptions(paths=(str(path),), columns=("ledgerId", "entryId"), max_partition_bytes=most)
    begin = time.perf_counter()
    tasks = plan_tasks(options)
    took = time.perf_counter() - begin
    total = sum(part.size for task in tasks for part in task)
    planned = [part.ledger for task in tasks for part in task if isinstance(part, EntrySlice)]
    some = tasks[len(tasks) // 2]
    rows = [(row["ledgerId"], row["entryId"]) for row in _rows([some], options)]
    if planned != list(range(count)) or rows != [(part.ledger, 0) for part in some if isinstance(part, EntrySlice)]:
        raise ValueError(f"{path}: {len(planned)} of {count} ledgers are planned, {len(rows)} entries of a task read")
    return Comparison(
        f"{count:,} ledgers of one entry",
        Figure("bytes of a task", total / len(tasks), "B", "reading"),
        Figure("maxPartitionBytes", options.max_partition_bytes, "B", "reading"),
        Goal("at least", 0.5),
        f"each ledger in one of {len(tasks)} tasks, planned in {took:.1f} s; the {len(rows):,} rows of one of them",
    )
