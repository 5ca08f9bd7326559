"""Reports without Spark beside a Spark that is warm: sums per minute of one log, and of the same rows as Parquet."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

import pyreplog
from benchmarks.entries import BATCH, SIZES, in_turn, make_values, stride
from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from pyreplog import reports
from pyreplog.clock import ManualClock
from pyreplog.tables import schema
from pyreplog.tables.arrays import schema_of
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan as plan_tasks
from pyreplog.tables.reading import read

_SIZES = (100, 1024)
_SEGMENTS = 16
_MINUTES = 120
_BEGIN_US = 1_700_000_000_000_000 // 60_000_000 * 60_000_000
_STARTS_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_WARM = 3
"""So many runs of Spark are not measured: it compiles meanwhile."""

Sums = list[tuple[int, int, int]]
"""Of each minute: its number, entries, bytes."""


def minutes(plan: Plan) -> Section:
    """`reports.run("rate_by_minute")`."""
    section = Section("reports", "Entries and bytes per minute, without Spark and with it")
    is_long = plan.budget >= 1
    with plan.folder() as folder, job("minutes_in_spark", str(folder / "spark"), is_long) as spark:
        for size in _SIZES:
            log, parquet = folder / f"{size}", folder / f"{size}.parquet"
            count = _write(log, size, plan)
            _as_parquet(log, parquet)
            section.comparisons.append(_compare(plan.shared(len(_SIZES)), log, _Spark(spark, parquet), size, count))
        spark.ask("stop")
        spark.wait()
    return section


def _compare(plan: Plan, log: Path, spark: _Spark, size: int, count: int) -> Comparison:
    ours, others = _local(log)[1], spark.sums()[1]
    if ours != others or sum(entries for _, entries, _ in ours) != count:
        raise ValueError(f"{log}: the sums of Spark are others")
    for _ in range(_WARM if plan.budget >= 1 / len(_SIZES) else 0):
        spark.sums()
    found = interleave(plan, {"ours": lambda: _local(log)[0], "spark": lambda: spark.sums()[0]})
    return Comparison(
        f"sums per minute, {SIZES[size]}",
        Figure("reports.run, local engine", count / found["ours"], "/s", "reading", size),
        Figure("Spark on uncompressed Parquet, warm", count / found["spark"], "/s", "reading", size),
        Goal("at least", 3.0),
        f"{len(ours):,} minutes of {count:,} entries, equal",
    )


def _local(log: Path) -> tuple[float, Sums]:
    begin = time.perf_counter()
    found = reports.run("rate_by_minute", log)
    took = time.perf_counter() - begin
    columns = (found[name].to_pylist() for name in ("minute", "entries", "bytes"))
    return took, [(int(minute.timestamp()) // 60, *sums) for minute, *sums in zip(*columns, strict=True)]


class _Spark:
    """Spark on the files of a folder."""

    def __init__(self, running: Job, parquet: Path) -> None:
        self._running, self._parquet = running, parquet

    def sums(self) -> tuple[float, Sums]:
        self._running.ask(str(self._parquet))
        took, sums = self._running.answer()
        return took, [tuple(row) for row in sums]


def _write(path: Path, size: int, plan: Plan) -> int:
    """A log whose entries are spread over so many minutes; how many entries."""
    clock, values = ManualClock(_BEGIN_US), in_turn(make_values(size), BATCH)
    batches = max(_SEGMENTS * plan.segment_bytes // stride(size) // BATCH, 1)
    with pyreplog.open(path, clock=clock, segment_bytes=plan.segment_bytes) as log:
        for _ in range(batches):
            log.append_batch(values)
            clock.advance(_MINUTES * 60_000_000 // batches)
    return batches * BATCH


def _as_parquet(log: Path, folder: Path) -> None:
    """The same rows, in files of the size of a task."""
    options = ReadOptions(
        paths=(str(log),), columns=("key", "value", "topic", "partition", "offset", "timestamp", "size")
    )
    columns = schema.default_columns(options)
    folder.mkdir()
    for number, task in enumerate(plan_tasks(ReadOptions(paths=options.paths, min_partitions=_SEGMENTS))):
        with pq.ParquetWriter(
            folder / f"{number}.parquet", schema_of(options.columns or ()), compression="none"
        ) as file:
            for batch in read(task, columns, options):
                file.write_batch(batch)


def serve(folder: str, is_long: bool) -> None:
    """A Spark that sums what is in the folder that each line of standard input names, until "stop"; says how long it
    took, and the sums. is_long: it compiles what it runs."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.local.dir": folder}
    settings |= {"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
    if not is_long:
        settings |= {"spark.driver.extraJavaOptions": _STARTS_FAST}
        settings |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.config("spark.sql.warehouse.dir", folder).config("spark.driver.memory", "2g").getOrCreate()
    for line in sys.stdin:
        if (parquet := line.strip()) == "stop":
            break
        begin = time.perf_counter()
        frame = spark.read.parquet(parquet).groupBy(f.expr("unix_micros(timestamp) div 60000000"))
        rows = frame.agg(f.count("*"), f.sum("size")).collect()
        took = time.perf_counter() - begin
        print(json.dumps([took, sorted(tuple(row) for row in rows)]), flush=True)
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it removes its files
