"""Spark on logs: a Python data source that reads segment files as Arrow batches. docs/spark.md shows its use.

| module | holds |
|---|---|
| options, offsets, schema | what a read is asked for, and the columns there are |
| paths, logs | what paths point to; what a log holds at one moment |
| ranges, planning, slices | which stretches of logs are read, and by which task |
| held, scan, arrays, buffers, damage | reading them: mapped, verified, as Arrow columns; what is no record |
| clusterplan, ledgers, ledgerends, topics, backlogs, entryslices | which entries of a cluster are read |
| origins, storedmetadata, storedlog, storedbookies | a cluster in a directory, read beside its process; or over TCP |
| entryscan, copyreading, messagearrays | reading entries, from whichever copies there are, and the messages in them |
| reading, source | what tasks do; what Spark calls |
| writeoptions, writecolumns | what a write is asked for, and the columns it takes |
| writing, writtenrows, rowpublisher | into topics: what Spark calls, rows as columns of producers, each stored once |
| streamoptions, streamoffsets | what a stream is asked for; how far it has come, as its checkpoint says |
| tracks, streamlogs, streamtopics | the logs and topics that a stream follows, as they are found |
| streamlimits, streamplan, streaming | what its next batch is; what Spark calls of it |
| acknowledging | moving a subscription to where a stream has come |

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
