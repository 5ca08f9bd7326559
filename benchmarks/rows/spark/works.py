"""What a Spark is asked for. Each function has a session and texts, and gives what JSON holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import pyreplog
from pyreplog._native.log.segment import HEADER_BYTES, Segment

_PAIR = "key binary, value binary"
_TASKS = 4
"""Of the source of rows in memory: as many as ours has for a GiB."""

# ---- all bytes -------------------------------------------------------------------------------------------------


def touch_log(spark: SparkSession, log: str) -> int:
    """By the source, keys and values alone."""
    return _touched(spark.read.format("pyreplog").options(columns="key,value").load(log))


def touch_parquet(spark: SparkSession, folder: str) -> int:
    """By Spark's own reader."""
    return _touched(spark.read.parquet(folder))


def touch_arrow(spark: SparkSession, folder: str) -> int:
    """By a source in Python that has nothing to do but to hand over what is in memory."""
    spark.dataSource.register(Mapped)
    return _touched(spark.read.format("mapped").load(folder))


def touch_binary_file(spark: SparkSession, log: str) -> int:
    """By Spark's reader of whole files, and a function that parses them, natively."""
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.log").load(log).select("content")
    return _touched(spark.createDataFrame(files.rdd.flatMap(lambda row: _parsed(row.content)), _PAIR))


def touch_rdd(spark: SparkSession, log: str) -> int:
    """By a function that gives tuples, two tasks, and createDataFrame."""
    with pyreplog.open(log, mode="r") as reader:
        start, end = reader.start, reader.end
    middle = (start + end) // 2
    rows = spark.sparkContext.parallelize([(start, middle), (middle, end)], 2).flatMap(lambda part: _tuples(log, *part))
    return _touched(spark.createDataFrame(rows, _PAIR))


def _touched(frame: DataFrame) -> int:
    """The sum beside: of values that come an even number of times the hashes cancel each other out."""
    hashes = f.expr("bit_xor(xxhash64(key, value))"), f.expr("sum(xxhash64(key, value) & 65535)")
    rows = frame.agg(*hashes, f.count("*")).collect()
    return sum(map(int, rows[0]))


def _parsed(content: bytes) -> Iterator[tuple[bytes | None, bytes]]:
    fd = os.memfd_create("segment")
    os.write(fd, content)
    segment, offset = Segment(fd, "segment", writable=False), HEADER_BYTES
    while offset < segment.size and any(segment.bytes_at(offset, 4)):  # the last one ends in zeros
        found = segment.scan(offset, segment.size, until=segment.size, limit=10_000)
        yield from zip(found.keys(), found.values(), strict=True)
        offset = found.next_position - segment.base


def _tuples(log: str, start: int, stop: int) -> Iterator[tuple[bytes | None, bytes]]:
    with pyreplog.open(log, mode="r") as reader:
        for batch in reader.read(start, stop):
            yield from zip(batch.keys(), batch.values(), strict=True)


class Mapped(DataSource):
    """Record batches of Arrow files, mapped: the rows lie in memory as they are to be handed over."""

    @classmethod
    def name(cls) -> str:
        return "mapped"

    def schema(self) -> StructType:
        first = min(Path(self.options["path"]).iterdir())
        return from_arrow_schema(pa.ipc.open_file(pa.memory_map(str(first))).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return _MappedReader(str(self.options["path"]))


class _MappedReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        files = sorted(map(str, Path(self._folder).iterdir()))
        each = -(-len(files) // _TASKS)
        return [InputPartition(files[at : at + each]) for at in range(0, len(files), each)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for path in partition.value:
            file = pa.ipc.open_file(pa.memory_map(path))
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


# ---- sums ------------------------------------------------------------------------------------------------------


def sum_log(spark: SparkSession, log: str) -> list[Any]:
    """Of each minute: its number, entries, bytes; by the source, two columns."""
    return _sums(spark.read.format("pyreplog").options(columns="timestamp,size").load(log))


def sum_arrow(spark: SparkSession, folder: str) -> list[Any]:
    """The same, by a source in Python that has nothing to do but to hand over what is in memory."""
    spark.dataSource.register(Mapped)
    return _sums(spark.read.format("mapped").load(folder))


def sum_parquet(spark: SparkSession, folder: str) -> list[Any]:
    """The same, by Spark's own reader."""
    return _sums(spark.read.parquet(folder))


def _sums(frame: DataFrame) -> list[Any]:
    groups = frame.groupBy(f.expr("unix_micros(timestamp) div 60000000"))
    return sorted(tuple(row) for row in groups.agg(f.count("*"), f.sum("size")).collect())


# ---- a ledger --------------------------------------------------------------------------------------------------


def touch_ledgers(spark: SparkSession, cluster: str) -> int:
    """All bytes of a cluster's entries, each once."""
    return _touched(spark.read.format("pyreplog").options(columns="key,value").load(cluster))


def count_ledgers(spark: SparkSession, cluster: str) -> list[int]:
    """How many rows there are, how many entries, and how many shuffles in the plan that reads them."""
    frame = spark.read.format("pyreplog").options(columns="ledgerId,entryId,value").load(cluster)
    shuffles = str(frame._jdf.queryExecution().executedPlan()).count("Exchange")  # type: ignore[operator]
    rows = frame.agg(f.count("*"), f.expr("count(distinct ledgerId, entryId)")).collect()
    return [*map(int, rows[0]), shuffles]


# ---- writing ---------------------------------------------------------------------------------------------------


def write_topic(spark: SparkSession, folder: str, cluster: str, topic: str) -> None:
    """Keys and values of Parquet files into a topic."""
    rows = spark.read.parquet(folder).select("key", "value")
    rows.write.format("pyreplog").mode("append").options(cluster=cluster, topic=topic).save()


def write_parquet(spark: SparkSession, folder: str, into: str) -> None:
    """The same into Parquet files, uncompressed."""
    rows = spark.read.parquet(folder).select("key", "value")
    rows.write.mode("overwrite").option("compression", "none").parquet(into)
