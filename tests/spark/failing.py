"""A sink whose first attempts of a batch's tasks fail when they have stored some of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyreplog.spark.source import PyreplogDataSource
from pyreplog.spark.write.options import WriteOptions
from pyreplog.spark.write.writer import TopicStreamWriter

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class FailingOnce(TopicStreamWriter):
    """folder: where attempts leave word that they were there."""

    def __init__(self, options: WriteOptions, schema: StructType, folder: str) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        been = Path(self._folder, f"been-{context.partitionId()}")
        if been.exists():
            return super().write(iterator)
        batch = next(iterator)
        super().write(iter([batch.slice(0, len(batch) // 2)]))
        been.touch()
        raise RuntimeError("the task fails, half of its rows are there")


class FailingSink(PyreplogDataSource):
    @classmethod
    def name(cls) -> str:
        return "failing-once"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        given = dict(self.raw_options)
        return FailingOnce(WriteOptions.of(given), schema, given["checkpointlocation"])
