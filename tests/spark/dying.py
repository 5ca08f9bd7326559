"""A driver of its own for tests: writes to topics, and has tasks fail, or waits to be killed, where it hurts most.

`python -m tests.spark.dying URL FOLDER`: a batch job into the topic `retried`, each of whose tasks fails once behind some
rows that it has stored; then a query into the topic `killed`, which in its batch 3 stores all rows, makes the file
`stored` and goes no further.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyreplog.spark.source import PyreplogDataSource
from pyreplog.spark.write.options import WriteOptions
from pyreplog.spark.write.writer import TopicStreamWriter, TopicWriter
from tests.spark.spark_home import JAVA

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ROWS, PARTITIONS = 600, 2
FILES, DEADLY_BATCH = 6, 3


class FailingOnce(TopicWriter):
    """Its tasks' first attempts."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            super().write(islice(iterator, 2))
            raise RuntimeError("the task fails, its rows are there")
        return super().write(iterator)


class Dying(TopicStreamWriter):
    def __init__(self, options: WriteOptions, schema: StructType, stored: str) -> None:
        super().__init__(options, schema)
        self._stored = stored

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        written = super().write(iterator)
        if context.getLocalProperty("streaming.sql.batchId") == str(DEADLY_BATCH):
            Path(self._stored, f"stored-{context.partitionId()}").touch()
            signal.pause()
        return written


class FailingSource(PyreplogDataSource):
    """Writes with these."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        return FailingOnce(WriteOptions.of(self.raw_options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        given = dict(self.raw_options)
        return Dying(WriteOptions.of(given), schema, given["checkpointlocation"])


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    """A file in each batch."""
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / "input")).repartition(PARTITIONS)


def main(url: str, folder: Path) -> None:
    builder = SparkSession.builder.master(f"local[{PARTITIONS},2]")  # a task may be tried twice
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FailingSource)
    frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) value")
    frame.write.format("failing").mode("append").options(cluster=url, topic="retried").save()
    query = stream_of(spark, folder).writeStream.format("failing").options(cluster=url, topic="killed")
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
