"""All bytes of a log read by Spark: by our source, by Spark's own reader of the same rows as Parquet, and by others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.entries import SIZES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.spark.rows import as_arrow, as_parquet, write_log
from benchmarks.rows.spark.warm import Spark, warm_spark
from benchmarks.sampling import interleave

_GOALS = {1024: 1.0, 100: 0.65}
_ROUNDS = 3
"""Turns of each side, at least: some take seconds."""

_PARSED = 8
"""Segments of the log that is read object by object, too: what a job costs by itself is to be little of it, and two
tasks are to have a core each. Its files are a quarter as large, for Spark's `binaryFile` holds each several times."""

_MEMORY = "a Python source of the same rows in memory"

_Side = tuple[str, str, Path]
"""Function of `works`; what it is; its files."""

_LOG = "pyreplog"


def reading(plan: Plan) -> Section:
    """`bit_xor(xxhash64(key, value))`."""
    section = Section("spark-read", "All bytes of a log in Spark: keys and values, hashed")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for size, goal in _GOALS.items():
            log, parquet, arrow = (folder / f"{size}{end}" for end in ("", ".parquet", ".arrow"))
            count = write_log(log, size, plan)
            as_parquet(log, parquet)
            as_arrow(log, arrow, ("key", "value"))
            ours, memory = ("touch_log", _LOG, log), ("touch_arrow", _MEMORY, arrow)
            sides = [
                (ours, ("touch_parquet", "Spark on uncompressed Parquet", parquet), goal),
                (ours, memory, 0.95),
            ]
            section.comparisons += _compare(plan.shared(2 * len(_GOALS)), spark, size, count, sides)
    section.notes.append(
        "The source of rows in memory maps Arrow files whose record batches are those that our source hands over: it "
        "parses, checks and copies nothing. What Spark takes to make rows of them no source in Python can be without."
    )
    return section


def parsing(plan: Plan) -> Section:
    """The same beside what one writes without a source."""
    section = Section("spark-parsing", "All bytes of a log in Spark, beside reading it without a source")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for size in _GOALS:
            log = folder / f"{size}"
            arrow = folder / f"{size}.arrow"
            count = write_log(log, size, plan, _PARSED, segment_bytes=max(plan.segment_bytes // 4, 1 << 20))
            as_arrow(log, arrow, ("key", "value"))
            ours, rdd = ("touch_log", _LOG, log), ("touch_rdd", "RDD of tuples + createDataFrame", log)
            sides = [
                (ours, ("touch_binary_file", "binaryFile + parsing, natively, to tuples", log), 3.0),
                (ours, rdd, 6.0),
                (("touch_arrow", _MEMORY, arrow), rdd, None),
            ]
            section.comparisons += _compare(plan.shared(2 * len(_GOALS)), spark, size, count, sides)
    section.notes.append("The source of rows in memory, as in `spark-read`: no source in Python can be much faster.")
    return section


def _compare(
    plan: Plan, spark: Spark, size: int, count: int, sides: list[tuple[_Side, _Side, float | None]]
) -> list[Comparison]:
    """Of each pair of sides the first beside the second, and how many times as fast it is to be."""
    works = {work: path for pair in sides for work, _, path in pair[:2]}
    hashes = {spark.warm(plan, work, str(path)) for work, path in works.items()}
    if len(hashes) != 1:
        raise ValueError(f"{list(works.values())}: other hashes are {hashes}")
    turns = {work: lambda work=work, path=path: spark.do(work, str(path))[0] for work, path in works.items()}
    found = interleave(replace(plan, rounds=min(plan.rounds, _ROUNDS)), turns)
    return [
        Comparison(
            f"all bytes, {SIZES[size]}",
            Figure(title, count / found[work], "/s", "reading", size),
            Figure(others, count / found[other], "/s", "reading", size),
            None if goal is None else Goal("at least", goal),
            f"{count:,} rows, the same hash and count",
        )
        for (work, title, _), (other, others, _), goal in sides
    ]
