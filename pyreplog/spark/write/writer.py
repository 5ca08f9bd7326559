"""The writers that Spark calls: they check in the driver and write on executors, with a producer for each partition."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyreplog.errors import ConfigError, ReplogError
from pyreplog.spark.write.columns import WrittenColumns, written_columns
from pyreplog.spark.write.options import WriteOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger(__name__)

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of the tasks of a query


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task.

    rows: rows of its partition. stored: those that this attempt stored; earlier attempts stored the others.
    """

    partition: int
    rows: int
    stored: int


class TopicWriter(DataSourceArrowWriter):
    """Writer of `df.write`: one job, whose tasks may be repeated. It is sent to executors."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check the columns, and the topic if there is only one. Raises ConfigError, and the errors of `open_topic`."""
        self._options, self._columns = options, written_columns(schema, options)
        self._job = uuid.uuid4().hex
        self._partitions = None if options.topic is None else _check_topic(options, options.topic)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one partition. Raises the errors of `rows_of` and `RowPublisher`."""
        return _write(iterator, self._options, self._columns, self._job, 0, self._partitions)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: all rows are stored."""
        logger.info("job %s: %s", self._job, _summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: stored rows stay."""
        logger.warning("job %s failed; stored rows stay: %s", self._job, _summary(messages))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writer of `df.writeStream`: query and batch in the checkpoint number the rows. It is sent to executors."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check the columns. Raises ConfigError."""
        self._options, self._columns = options, written_columns(schema, options)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one partition of a batch. Raises the errors of `TopicWriter.write`."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or batch is None:
            raise ConfigError(f"expected a task of a streaming query, found query {query!r}, batch {batch!r}")
        return _write(iterator, self._options, self._columns, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: all rows are stored."""
        logger.info("batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: stored rows stay, and are not stored again when the batch is repeated."""
        logger.warning("batch %d failed; stored rows stay: %s", batchId, _summary(messages))


def check_appends(overwrite: bool) -> None:
    """Raise ConfigError for a mode that overwrites."""
    if overwrite:
        raise ConfigError(
            "mode: rows are appended to topics; expected mode or outputMode append, found one that overwrites"
        )


def _check_topic(options: WriteOptions, topic: str) -> int | None:
    """Return the number of partitions of the topic, by which all attempts of all tasks route; None: it has none."""
    from pyreplog.spark.write.publisher import open_topic
    from pyreplog.topic.client.remote.client import connect
    from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic

    credentials = options.credentials
    with connect(options.cluster, secret=credentials.read_secret(), tls=credentials.context()) as client:
        opened = open_topic(client, topic, options)
        return opened.partitions if isinstance(opened, RemotePartitionedTopic) else None


def _write(
    batches: Iterator[RecordBatch], options: WriteOptions, columns: WrittenColumns, job: str, number: int,
    partitions: int | None = None,
) -> Written:  # fmt: skip
    from pyreplog.spark.write.publisher import RowPublisher
    from pyreplog.spark.write.rows import rows_of

    partition, first = _context().partitionId(), 0
    with RowPublisher(options, f"spark-{job}-{partition}", number, partitions) as publisher:
        try:
            for batch in batches:
                for rows in rows_of(batch, columns, options.topic, first):
                    publisher.publish(rows)
                first += batch.num_rows
            publisher.finish()
        except ReplogError as error:
            error.add_note(f"in partition {partition} of batch {number}")
            raise
    return Written(partition, publisher.rows, publisher.stored)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("expected a task of Spark, found none")
    return context


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = [cast("Written", message) for message in messages if message is not None]
    rows, stored = sum(task.rows for task in done), sum(task.stored for task in done)
    return f"{rows} rows of {len(done)} of {len(messages)} partitions, {rows - stored} of them stored before"
