"""Reports on logs, topics and clusters: backlogs, rates, sizes, keys, gaps, copies; with Spark or without it.

| modules | what they hold |
|---|---|
| `report`, `snapshot` | the base of every report; facts that need no reading of whole logs |
| `gathering`, `cursors`, `append_times`, `replications` | gathering a snapshot from metadata, cursor ledgers, entries |
| `cluster_partitions` | gathering partitions, brokers and consumer groups from brokers |
| `readiness` | gathering the readiness of replicated subscriptions from the servers of topics |
| `catalogue` | all reports, by name: those on `records`, `subscriptions`, `copies`, `partitions` |
| `parameters`, `partials` | the options of a report's reads; the work of one task |
| `local_engine`, `spark_engine` | the two engines that run reports |
| `suite`, `outcome` | several reports on one source, and the outcome of each |
| `page` | an HTML page of reports |
| `export` | records as Parquet files |
| `atomic_files`, `atomic_directories` | files and directories that appear as a whole or not at all |

`run` runs any report. Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pyreplog.errors import ConfigError
from pyreplog.reports.catalogue import REPORTS, report_of, require_pyarrow
from pyreplog.reports.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pyreplog.reports.local_engine import ReportProgress
    from pyreplog.reports.report import Report

__all__ = ["REPORTS", "Snapshot", "run"]

_Source = str | Path | Mapping[str, object]


@overload
def run(
    report: str | Report,
    source: _Source,
    engine: Literal["local"] = "local",
    *,
    snapshot: Snapshot | None = None,
    workers: int = 2,
    progress: Callable[[ReportProgress], None] | None = None,
    **parameters: Any,
) -> pa.Table: ...


@overload
def run(
    report: str | Report,
    source: _Source,
    engine: Literal["spark"],
    *,
    snapshot: Snapshot | None = None,
    spark: SparkSession | None = None,
    **parameters: Any,
) -> DataFrame: ...


def run(
    report: str | Report,
    source: _Source,
    engine: Literal["local", "spark"] = "local",
    *,
    snapshot: Snapshot | None = None,
    spark: SparkSession | None = None,
    workers: int = 2,
    progress: Callable[[ReportProgress], None] | None = None,
    **parameters: Any,
) -> pa.Table | DataFrame:
    """Run a report on logs, topics or a cluster.

    Args:
        report: name of a report, with its parameters as keywords; or an instance of `Report`.
        source: a path, or options of the Spark source by name.
        engine: "local": threads of this process; "spark": Spark.
        snapshot: what `gather` returned; None: gather now.
        spark: the Spark session; None: the active one, or a new one.
        workers: threads of the local engine.
        progress: called by the local engine after each task.
        parameters: parameters of the report.

    Returns:
        A `pyarrow.Table`; with engine "spark" a Spark DataFrame.

    Raises:
        ConfigError: the report, a parameter, an option or the engine is unknown.
        InvalidArgumentError: `workers` is less than 1.
        MissingExtraError: pyarrow is not installed, or pyspark is not and the engine is "spark".
        ReplogError: as planning and reading.

    Example:
        ```python
        table = run("rate_by_minute", "data/orders")
        print(table.to_pylist())
        ```

    See docs/spark.md.
    """
    if engine not in ("local", "spark"):
        raise ConfigError(f"engine: expected local or spark, found {engine!r}")
    require_pyarrow()
    from pyreplog.reports import local_engine
    from pyreplog.reports.parameters import options_of, snapshot_for

    chosen = report_of(report, **parameters) if isinstance(report, str) else report
    options = options_of(source)
    snapshot = snapshot or snapshot_for(chosen, options)
    if engine == "local":
        return local_engine.run(chosen, options, snapshot, workers=workers, progress=progress)
    from pyreplog.reports.spark_engine import run as run_in_spark
    from pyreplog.reports.spark_engine import session

    return run_in_spark(spark or session(), chosen, options, snapshot)
