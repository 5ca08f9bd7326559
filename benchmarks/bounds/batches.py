"""A task of Spark with Spark taken out of it: what reads keys and values as Arrow batches, and the CRCs alone, in C."""

from __future__ import annotations

from pathlib import Path

import pyreplog
from benchmarks.areas import mapped
from benchmarks.entries import SIZES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.spark.rows import write_log
from benchmarks.sampling import interleave, timed
from pyreplog.tables import schema
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan as plan_tasks
from pyreplog.tables.reading import read


def batches(plan: Plan) -> Section:
    """`read` of each task of a log, by one thread."""
    section = Section("bound-batches", "What bounds all bytes in Spark: the batches of its tasks, for nobody")
    with plan.folder() as folder:
        for size in (1024, 100):
            log = folder / f"{size}"
            section.comparisons.append(_compare(plan, log, size, write_log(log, size, plan)))
    section.notes.append(
        "One thread each, which maps the segments anew. A source of rows in memory does nothing of it, and the goal "
        "beside that is 0.95: all of ours is to fit into a nineteenth of what Spark and its workers take with that "
        "source, of two cores twice the time that `spark-read` has for it."
    )
    return section


def _compare(plan: Plan, log: Path, size: int, count: int) -> Comparison:
    found = interleave(
        plan,
        {
            "ours": lambda: timed(lambda: _ours(log, count), count),
            "bare": lambda: timed(lambda: _bare(log, count), count),
        },
    )
    return Comparison(
        f"all bytes, {SIZES[size]}",
        Figure("keys and values as Arrow batches", 1 / found["ours"], "/s", "reading", size),
        Figure("C: each record's CRC, nothing copied", 1 / found["bare"], "/s", "reading", size),
        None,
        f"{count:,} records, by each",
    )


def _ours(log: Path, count: int) -> None:
    options = ReadOptions(paths=(str(log),), columns=("key", "value"))
    columns = schema.default_columns(options)
    _check(sum(batch.num_rows for task in plan_tasks(options) for batch in read(task, columns, options)), count)


def _bare(log: Path, count: int) -> None:
    with pyreplog.open(log, mode="r") as reader:
        start, end = reader.start_position, reader.end_position
    with mapped(log, start, end) as segments:
        _check(segments.scan(), count)


def _check(found: int, count: int) -> None:
    if found != count:
        raise ValueError(f"{found} of {count} records were read")
