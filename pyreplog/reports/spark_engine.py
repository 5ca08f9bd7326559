"""Reports in Spark: its tasks make the partials, which the driver merges.

Each report is a function of this module, too: `spark_engine.rate_by_minute(spark, path="data/orders")`. It takes
options of the Spark source, and parameters of the report, and returns a DataFrame.
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
    """The one that there is, or a new one. MissingExtraError: pyspark is not installed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(f"Spark needs pyspark: pip install 'pyreplog[spark]' ({error})") from error
    return SparkSession.builder.getOrCreate()


def run(spark: SparkSession, report: Report, given: Mapping[str, str], snapshot: Snapshot) -> DataFrame:
    """A report of what these options (those of the Spark source) mean, of the schema that `report.figures` says.

    Errors: ConfigError; those of planning and reading reach the caller as Spark wraps them.
    """
    return spark.createDataFrame(table(spark, report, given, snapshot))


def table(spark: SparkSession, report: Report, given: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    """As `run`, in this process."""
    report = report.at(snapshot)
    partials = _partials(spark, report, given, snapshot)
    second = report.second(partials)
    if second is None:
        return report.merge(partials, snapshot)
    return second.merge(_partials(spark, second, given, snapshot), snapshot)


def _partials(spark: SparkSession, report: Report, given: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    frames = [_frame(spark, one, options) for one, options in reads_of(report, given, snapshot)]
    if not frames:
        return report.parts.empty_table()
    together = reduce(lambda some, other: some.unionByName(other), frames)
    tags = [(name, pa.string()) for name in together.columns if name not in report.parts.names]
    schema = pa.schema([*report.parts, *tags])
    return together.toArrow().select(schema.names).cast(schema)


def _frame(spark: SparkSession, one: ReportRead, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql.functions import lit

    frame = spark.read.format("pyreplog").options(**options).load()
    return frame.withColumns({name: lit(text) for name, text in one.tag.items()}) if one.tag else frame


def __getattr__(name: str) -> Callable[..., DataFrame]:
    if name not in REPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = report_class(name)
    known = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set[str]()

    def function(spark: SparkSession, *, snapshot: Snapshot | None = None, **options: Any) -> DataFrame:
        report = report_of(name, **{key: value for key, value in options.items() if key in known})
        given = options_of({key: value for key, value in options.items() if key not in known})
        return run(spark, report, given, snapshot or snapshot_for(report, given))

    function.__name__, function.__doc__ = name, f"{found.title}. {found.definition}"
    return function
