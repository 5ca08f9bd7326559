"""Runs reports in Spark: its tasks make partial results, and the driver merges them.

Each report is also a function of this module: `spark_engine.rate_by_minute(spark, path="data/orders")`. It takes
options of the Spark source and parameters of the report, and returns a DataFrame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyreplog.errors import MissingExtraError
from pyreplog.reports.catalogue import REPORTS, report_class, report_of
from pyreplog.reports.parameters import options_of, reads_of, snapshot_for
from pyreplog.reports.report import Report, ReportRead
from pyreplog.reports.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session() -> SparkSession:
    """Return the active Spark session, or a new one. Raises MissingExtraError if pyspark is not installed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(f"Spark needs pyspark: pip install 'pyreplog[spark]' ({error})") from error
    return SparkSession.builder.getOrCreate()


def run(spark: SparkSession, report: Report, source: Mapping[str, str], snapshot: Snapshot) -> DataFrame:
    """Run a report on a source, and return a DataFrame with the columns `report.figures`.

    Raises ConfigError for unknown or invalid options. Errors of planning and reading are raised as Spark wraps them.

    Args:
        spark: the Spark session.
        report: the report.
        source: options of the Spark source.
        snapshot: a snapshot of the same source.
    """
    return spark.createDataFrame(table(spark, report, source, snapshot))


def table(spark: SparkSession, report: Report, source: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    """Run a report like `run`, and return an Arrow table."""
    report = report.at(snapshot)
    partials = _partials(spark, report, source, snapshot)
    second = report.second(partials)
    if second is None:
        return report.merge(partials, snapshot)
    return second.merge(_partials(spark, second, source, snapshot), snapshot)


def _partials(spark: SparkSession, report: Report, source: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    frames = [_frame(spark, read, options) for read, options in reads_of(report, source, snapshot)]
    if not frames:
        return report.parts.empty_table()
    union = reduce(lambda some, other: some.unionByName(other), frames)
    tags = [(name, pa.string()) for name in union.columns if name not in report.parts.names]
    schema = pa.schema([*report.parts, *tags])
    return union.toArrow().select(schema.names).cast(schema)


def _frame(spark: SparkSession, read: ReportRead, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql.functions import lit

    frame = spark.read.format("pyreplog").options(**options).load()
    return frame.withColumns({name: lit(text) for name, text in read.tag.items()}) if read.tag else frame


def __getattr__(name: str) -> Callable[..., DataFrame]:
    if name not in REPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    report_type = report_class(name)
    known = (
        {field.name for field in dataclasses.fields(report_type)}
        if dataclasses.is_dataclass(report_type)
        else set[str]()
    )

    def function(spark: SparkSession, *, snapshot: Snapshot | None = None, **options: Any) -> DataFrame:
        report = report_of(name, **{key: value for key, value in options.items() if key in known})
        source = options_of({key: value for key, value in options.items() if key not in known})
        return run(spark, report, source, snapshot or snapshot_for(report, source))

    function.__name__, function.__doc__ = name, f"{report_type.title}. {report_type.definition}"
    return function
