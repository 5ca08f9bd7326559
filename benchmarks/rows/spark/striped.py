"""Entries of a striped ledger in Spark, each from whichever bookie has an intact copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.entries import in_turn, make_values
from benchmarks.ledgers import long_stride, settings
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.spark.warm import Spark, warm_spark
from benchmarks.sampling import interleave
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.tables import schema
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import bookie_logs
from pyreplog.tables.planning import plan as plan_tasks
from pyreplog.tables.reading import read

_SIZE = 1024
_BOOKIES, _COPIES, _ACKS = 5, 3, 2
_BATCH = 256
_BEHIND = 70
"""Bytes behind the begin of a record at which its value has begun."""


def striped(plan: Plan) -> Section:
    """`replica=any`, with all copies, without a bookie's directory, and with a damaged copy."""
    section = Section("spark-striped", f"A ledger of E={_BOOKIES} Qw={_COPIES} in Spark, each entry once")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        count = _write(folder / "whole", plan)
        for name in ("missing", "damaged"):
            shutil.copytree(folder / "whole", folder / name)
        shutil.rmtree(folder / "missing" / "bookie-1")
        _damage(folder / "damaged", count // 2)
        paths = {name: str(folder / name) for name in ("whole", "missing", "damaged")}
        for path in paths.values():
            found, distinct, shuffles = spark.do("count_ledgers", path)[1]
            if (found, distinct, shuffles) != (count, count, 0):
                raise ValueError(f"{path}: {found} rows, {distinct} entries of {count}, {shuffles} shuffles")
        section.comparisons += _compare(plan, spark, paths, count)
    return section


def _compare(plan: Plan, spark: Spark, paths: dict[str, str], count: int) -> list[Comparison]:
    if len({spark.warm(plan, "touch_ledgers", path) for path in paths.values()}) != 1:
        raise ValueError(f"{paths}: other values")
    found = interleave(
        plan, {name: lambda path=path: spark.do("touch_ledgers", path)[0] for name, path in paths.items()}
    )  # fmt: skip
    sides = {"missing": "one bookie's directory missing", "damaged": "one copy damaged"}
    return [
        Comparison(
            "all bytes, 1 KiB",
            Figure(title, count / found[name], "/s", "reading", _SIZE),
            Figure("all copies there", count / found["whole"], "/s", "reading", _SIZE),
            None,
            f"{count:,} entries, each once, the same values; no shuffle in the plan",
        )
        for name, title in sides.items()
    ]


def _write(path: Path, plan: Plan) -> int:
    count = max(plan.segment_bytes // long_stride(_SIZE) // _BATCH, 1) * _BATCH
    values = in_turn(make_values(_SIZE), _BATCH)
    with (
        LedgerCluster.embedded(path, bookies=_BOOKIES, **settings(plan, "appended")) as cluster,
        cluster.create_ledger(_BOOKIES, _COPIES, _ACKS, durability="appended") as ledger,
    ):
        for _ in range(count // _BATCH):
            ledger.submit_batch(values)
        ledger.close()
    return count


def _damage(path: Path, entry: int) -> None:
    """The first copy of an entry that a bookie has."""
    columns = ("entryId", "segment", "position")
    for bookie, log in bookie_logs(path).items():
        options = ReadOptions(paths=(str(path),), columns=columns, replica=bookie)
        for task in plan_tasks(options):
            for batch in read(task, schema.default_columns(options), options):
                for number, segment, position in zip(*(batch[name].to_pylist() for name in columns), strict=True):
                    if number == entry:
                        _flip(log / segment, position - int(segment.partition(".")[0]) + _BEHIND)
                        return
    raise ValueError(f"{path}: nobody has entry {entry}")


def _flip(file: Path, offset: int) -> None:
    assert offset >= HEADER_BYTES, "a record begins behind the header"
    with file.open("r+b") as there:
        there.seek(offset)
        byte = there.read(1)[0]
        there.seek(offset)
        there.write(bytes([byte ^ 1]))
