"""The data source that Spark calls: `spark.read.format("pyreplog")`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyreplog.spark.stream.options import StreamOptions, check_batch, common_options
from pyreplog.spark.task import ReadTask
from pyreplog.tables import schema as columns
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.schema import Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from pyreplog.spark.stream.reader import LogStreamReader
    from pyreplog.spark.write.writer import TopicStreamWriter, TopicWriter
    from pyreplog.tables.log_slices import Part


class PyreplogDataSource(DataSource):
    """Logs, ledgers and topics as tables.

    Options are those of `ReadOptions`, columns those of `pyreplog.tables.schema`; for writing those of `WriteOptions`
    and `pyreplog.spark.write.columns`.

    A DataFrame keeps its plan: its first action determines the end of the log, and a new `load` reads to a new end.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.raw_options = dict(options)

    @cached_property
    def read_options(self) -> ReadOptions:
        """The options of a read. Raises the errors of `ReadOptions.of`."""
        return ReadOptions.of(self.raw_options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pyreplog"

    def schema(self) -> str | StructType:
        """Return the columns of a read for which the user gave no schema."""
        wanted = ReadOptions.of(common_options(self.raw_options))
        if wanted.view is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            from pyreplog.reports.partials import view_of

            return from_arrow_schema(view_of(wanted).parts)
        return columns.as_ddl(columns.default_columns(wanted))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema. Raises ConfigError for a column that does not exist."""
        check_batch(self.raw_options)
        if self.read_options.view is not None:
            return ViewReader(self.read_options)
        return LogSourceReader(self.read_options, columns.columns_of(schema, self.read_options))

    def streamReader(self, schema: StructType) -> LogStreamReader:
        """Return a stream reader of the columns of a schema.

        Raises ConfigError for a column that does not exist, and for a source that cannot be streamed.
        """
        from pyreplog.spark.stream.reader import LogStreamReader

        wanted = StreamOptions.of(self.raw_options)
        return LogStreamReader(wanted, columns.columns_of(schema, wanted.read))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return a writer for the rows of a DataFrame. Raises the errors of `WriteOptions.of` and `TopicWriter`."""
        from pyreplog.spark.write.options import WriteOptions
        from pyreplog.spark.write.writer import TopicWriter, check_appends

        check_appends(overwrite)
        return TopicWriter(WriteOptions.of(self.raw_options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Return a writer for the rows of a stream. Raises the errors of `WriteOptions.of` and `TopicStreamWriter`."""
        from pyreplog.spark.write.options import WriteOptions
        from pyreplog.spark.write.writer import TopicStreamWriter, check_appends

        check_appends(overwrite)
        return TopicStreamWriter(WriteOptions.of(self.raw_options), schema)


class LogSourceReader(DataSourceReader):
    """Plans in the driver, and reads on executors, to which it is sent; it holds no files.

    Each method imports what it needs. Filters are not pushed down: Spark up to 4.3 lets the filters of one query change
    the answer of another.
    """

    def __init__(self, options: ReadOptions, wanted: tuple[Column, ...]) -> None:
        self.options, self.columns = options, wanted

    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each task. Raises the errors of `planning.plan`."""
        from pyreplog.tables.planning import plan

        return [ReadTask(slices) for slices in plan(columns.planning_options(self.options, self.columns))]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches.

        Raises the errors of `reading.read`. For an empty plan Spark makes a partition of None.
        """
        from pyreplog.tables.reading import read

        return read(cast("tuple[Part, ...] | None", partition.value) or (), self.columns, self.options)


class ViewReader(DataSourceReader):
    """Reads the partial results of a report: each task yields one table of all that it reads."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each task. Raises the errors of `planning.plan`."""
        from pyreplog.reports.partials import read_options, view_of
        from pyreplog.tables.planning import plan

        return [ReadTask(slices) for slices in plan(read_options(view_of(self.options), self.options))]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches. Raises the errors of `reading.read`, and those of the report."""
        from pyreplog.reports.partials import partial_of, read_options, view_of

        report = view_of(self.options)
        task = cast("tuple[Part, ...] | None", partition.value) or ()
        return iter(partial_of(report, task, read_options(report, self.options)).to_batches())
