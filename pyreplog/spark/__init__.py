"""Spark on logs: a Python data source that reads segment files as Arrow batches. docs/spark.md shows its use.

| module | holds |
|---|---|
| `source` | what Spark calls: the data source, over `pyreplog.tables` |
| `task` | what it sends to an executor |
| `stream` | reading streams |
| `write` | writing into topics |
| `acknowledging` | moving a subscription to where a stream has come |

Spark finds the source by itself, through the top-level package `pyspark_pyreplog`. Importing this one loads neither
pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyreplog.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyreplog.spark.acknowledging import acknowledge
    from pyreplog.spark.source import PyreplogDataSource

__all__ = ["PyreplogDataSource", "acknowledge", "register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("pyreplog")` known to a session, where it is not found by itself.

    MissingExtraError: pyspark or pyarrow is not installed.
    """
    source = _source()
    spark.dataSource.register(source)


def _source() -> type[PyreplogDataSource]:
    try:
        from pyreplog.spark.source import PyreplogDataSource
    except ImportError as error:
        raise MissingExtraError(f"Spark needs pyspark and pyarrow: pip install 'pyreplog[spark]' ({error})") from error
    return PyreplogDataSource


def __getattr__(name: str) -> Any:
    if name == "acknowledge":
        from pyreplog.spark.acknowledging import acknowledge

        return acknowledge
    if name != "PyreplogDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _source()
