"""Reports without Spark beside a Spark that is warm: sums per minute of one log, and of the same rows as Parquet."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.entries import SIZES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.spark.rows import as_arrow, as_parquet, write_log
from benchmarks.rows.spark.warm import Spark, warm_spark
from benchmarks.sampling import interleave
from pyreplog import reports

_SIZES = (100, 1024)

_Sums = list[tuple[int, int, int]]
"""Of each minute: its number, entries, bytes."""


def minutes(plan: Plan) -> Section:
    """`reports.run("rate_by_minute")`, and the same sums by Spark from two columns of our source."""
    section = Section("reports", "Entries and bytes per minute, without Spark and with it")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for size in _SIZES:
            log, parquet, arrow = (folder / f"{size}{end}" for end in ("", ".parquet", ".arrow"))
            count = write_log(log, size, plan)
            as_parquet(log, parquet)
            as_arrow(log, arrow, ("timestamp", "size"))
            section.comparisons += _compare(plan.shared(len(_SIZES)), log, parquet, arrow, spark, size, count)
    section.notes.append(
        "The source of rows in memory maps Arrow files of the two columns, in the batches that our source hands over. "
        "What Spark takes to make rows of them no source in Python can be without."
    )
    return section


def _compare(
    plan: Plan, log: Path, parquet: Path, arrow: Path, spark: Spark, size: int, count: int
) -> list[Comparison]:
    ours = _local(log)[1]
    for work, path in (("sum_parquet", parquet), ("sum_log", log), ("sum_arrow", arrow)):
        others = [tuple(row) for row in spark.warm(plan, work, str(path))]
        if ours != others or sum(entries for _, entries, _ in ours) != count:
            raise ValueError(f"{log}: {work} gives other sums")
    found = interleave(
        plan,
        {
            "local": lambda: _local(log)[0], "source": lambda: spark.do("sum_log", str(log))[0],
            "parquet": lambda: spark.do("sum_parquet", str(parquet))[0],
            "arrow": lambda: spark.do("sum_arrow", str(arrow))[0],
        },
    )  # fmt: skip
    warm, memory = "Spark on uncompressed Parquet, warm", "a Python source of the two columns in memory"
    sides = (
        ("local", "reports.run, local engine", "parquet", warm, 3.0),
        ("source", "Spark on the log, two columns", "parquet", warm, 0.65),
        ("source", "Spark on the log, two columns", "arrow", memory, 0.95),
    )
    return [
        Comparison(
            f"sums per minute, {SIZES[size]}",
            Figure(title, count / found[side], "/s", "reading", size),
            Figure(theirs, count / found[other], "/s", "reading", size),
            Goal("at least", goal),
            f"{len(ours):,} minutes of {count:,} entries, equal",
        )
        for side, title, other, theirs, goal in sides
    ]


def _local(log: Path) -> tuple[float, _Sums]:
    begin = time.perf_counter()
    found = reports.run("rate_by_minute", log)
    took = time.perf_counter() - begin
    columns = (found[name].to_pylist() for name in ("minute", "entries", "bytes"))
    return took, [(int(minute.timestamp()) // 60, *sums) for minute, *sums in zip(*columns, strict=True)]
