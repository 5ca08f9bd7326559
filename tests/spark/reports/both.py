"""Both engines on the same, cut into tasks in several ways, beside rows that plain Python found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyreplog.reports import local_engine, spark_engine
from pyreplog.reports.report import Report
from pyreplog.reports.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]

CUTS: tuple[dict[str, str], ...] = ({}, {"minPartitions": "3"}, {"minPartitions": "17"}, {"maxPartitionBytes": "5000"})
"""One task, a few, and so many that borders fall wherever they can."""


def check(
    report: Report,
    options: Mapping[str, str],
    snapshot: Snapshot,
    expected: Sequence[Row],
    *,
    spark: SparkSession | None = None,
    cuts: Sequence[Mapping[str, str]] = CUTS,
) -> pa.Table:
    """Each engine gives the same table, however it is cut, and it has these rows, in whatever order. Without `spark` the
    local engine alone is run: where one test draws many examples. Returns the table."""
    first = local_engine.run(report, options, snapshot, workers=1)
    assert first.schema == report.schema()
    for cut in cuts:
        result = local_engine.run(report, {**options, **cut}, snapshot)
        assert result == first, f"{report.name} with {cut}: {result.to_pylist()}, and {first.to_pylist()} in one task"
    if spark is not None:
        in_spark = spark_engine.run(spark, report, {**options, "minPartitions": "3"}, snapshot)
        assert in_spark.columns == report.schema().names
        assert in_spark.toArrow().cast(report.schema()) == first
    assert_rows(first.to_pylist(), expected)
    return first


def assert_rows(rows: Sequence[Row], expected: Sequence[Row]) -> None:
    """The same rows, in whatever order; floats to nine digits."""
    for first, other in zip(_sorted(rows), _sorted(expected), strict=False):
        assert first.keys() == other.keys()
        for name, value in first.items():
            assert _is_same(value, other[name]), f"{name}: {first}, expected {other}"
    assert len(rows) == len(expected)


def _is_same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-9) or (math.isnan(value) and math.isnan(other))
    return value == other


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """By all that is no float: those may differ in the last digit."""
    return sorted(rows, key=lambda row: repr([(k, v) for k, v in sorted(row.items()) if not isinstance(v, float)]))
