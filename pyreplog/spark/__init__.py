"""Spark on logs and topics: a Python data source that reads and writes Arrow batches. docs/spark.md describes its use.

| module | holds |
|---|---|
| `source` | the data source that Spark calls, based on `pyreplog.tables` |
| `task` | the input partition that Spark sends to an executor |
| `stream` | reading streams |
| `write` | writing into topics |
| `acknowledging` | moving a subscription to the position of a streaming query |

Spark finds the source through the top-level package `pyspark_pyreplog`. Importing this package loads neither pyspark
nor pyarrow.
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
    """Register `spark.read.format("pyreplog")` in a session that does not find it by itself.

    Args:
        spark: the session.

    Raises:
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
