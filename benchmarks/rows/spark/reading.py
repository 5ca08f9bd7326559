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

_PARSED = {1024: 8, 100: 2}
"""Segments of the log that is read object by object, too, by the size of values: more of them where there are fewer
objects, for what a job costs by itself is to be little of it. In files of a quarter of their size, for Spark's
`binaryFile` holds each several times."""

_Side = tuple[str, str, Path, float]
"""Function of `works`; what it is; its files; how many times as fast as that we are to be."""


def reading(plan: Plan) -> Section:
    """`bit_xor(xxhash64(key, value))`."""
    section = Section("spark-read", "All bytes of a log in Spark: keys and values, hashed")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for size, goal in _GOALS.items():
            log, parquet, arrow = (folder / f"{size}{end}" for end in ("", ".parquet", ".arrow"))
            count = write_log(log, size, plan)
            as_parquet(log, parquet)
            as_arrow(log, arrow, ("key", "value"))
            sides = [
                ("touch_parquet", "Spark on uncompressed Parquet", parquet, goal),
                ("touch_arrow", "a Python source of the same rows in memory", arrow, 0.95),
            ]
            section.comparisons += _compare(plan.shared(2 * len(_GOALS)), spark, log, size, count, sides)
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
            count = write_log(log, size, plan, _PARSED[size], segment_bytes=max(plan.segment_bytes // 4, 1 << 20))
            sides = [
                ("touch_binary_file", "binaryFile + parsing, natively, to tuples", log, 3.0),
                ("touch_rdd", "RDD of tuples + createDataFrame", log, 6.0),
            ]
            section.comparisons += _compare(plan.shared(2 * len(_GOALS)), spark, log, size, count, sides)
    return section


def _compare(plan: Plan, spark: Spark, log: Path, size: int, count: int, sides: list[_Side]) -> list[Comparison]:
    works = {"touch_log": log} | {work: path for work, _, path, _ in sides}
    hashes = {spark.warm(plan, work, str(path)) for work, path in works.items()}
    if len(hashes) != 1:
        raise ValueError(f"{log}: other hashes are {hashes}")
    turns = {work: lambda work=work, path=path: spark.do(work, str(path))[0] for work, path in works.items()}
    found = interleave(replace(plan, rounds=min(plan.rounds, _ROUNDS)), turns)
    return [
        Comparison(
            f"all bytes, {SIZES[size]}",
            Figure("pyreplog", count / found["touch_log"], "/s", "reading", size),
            Figure(title, count / found[work], "/s", "reading", size),
            Goal("at least", goal),
            f"{count:,} rows, the same hash and count",
        )
        for work, title, _, goal in sides
    ]
