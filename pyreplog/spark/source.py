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
    from pyreplog.tables.logslices import Part


class PyreplogDataSource(DataSource):
    """Logs as tables. Options: `ReadOptions`; columns: `pyreplog.tables.schema`. Of writing: `WriteOptions`,
    `pyreplog.spark.write.columns`.

    A DataFrame stays as it was planned: the log's end is settled at its first action, and a new `load` sees a new one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.given = dict(options)

    @cached_property
    def wanted(self) -> ReadOptions:
        """Of a read. Errors: as `ReadOptions.of`."""
        return ReadOptions.of(self.given)

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "pyreplog"

    def schema(self) -> str | StructType:
        """The columns of a read without a schema of the user's."""
        wanted = ReadOptions.of(common_options(self.given))
        if wanted.view is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            from pyreplog.reports.partials import view_of

            return from_arrow_schema(view_of(wanted).parts)
        return columns.as_ddl(columns.default_columns(wanted))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of the columns of a schema. ConfigError: not all of them are there."""
        check_batch(self.given)
        if self.wanted.view is not None:
            return ViewReader(self.wanted)
        return LogSourceReader(self.wanted, columns.columns_of(schema, self.wanted))

    def streamReader(self, schema: StructType) -> LogStreamReader:
        """Of the columns of a schema. ConfigError: not all of them are there, or no stream is of that."""
        from pyreplog.spark.stream.reader import LogStreamReader

        wanted = StreamOptions.of(self.given)
        return LogStreamReader(wanted, columns.columns_of(schema, wanted.read))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Of the rows of a DataFrame. Errors: as `WriteOptions.of`, `TopicWriter`."""
        from pyreplog.spark.write.options import WriteOptions
        from pyreplog.spark.write.writer import TopicWriter, check_appends

        check_appends(overwrite)
        return TopicWriter(WriteOptions.of(self.given), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Of the rows of a stream. Errors: as `WriteOptions.of`, `TopicStreamWriter`."""
        from pyreplog.spark.write.options import WriteOptions
        from pyreplog.spark.write.writer import TopicStreamWriter, check_appends

        check_appends(overwrite)
        return TopicStreamWriter(WriteOptions.of(self.given), schema)


class LogSourceReader(DataSourceReader):
    """Plans in the driver, reads on executors, to which it is sent: it holds no files.

    What only one of the two needs is imported there. Filters are not pushed down: Spark up to 4.3 lets those of one
    query change another's answer.
    """

    def __init__(self, options: ReadOptions, wanted: tuple[Column, ...]) -> None:
        self.options, self.columns = options, wanted

    def partitions(self) -> list[InputPartition]:
        """One for each task; errors as of `planning.plan`."""
        from pyreplog.tables.planning import plan

        return [ReadTask(slices) for slices in plan(self.options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Arrow batches; errors as of `ledger_read_op.read`. An empty plan is one partition of None."""
        from pyreplog.tables.reading import read

        return read(cast("tuple[Part, ...] | None", partition.value) or (), self.columns, self.options)


class ViewReader(DataSourceReader):
    """As LogSourceReader, of a report's partials: each task yields one table of all that it reads."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """One for each task; errors as of `planning.plan`."""
        from pyreplog.tables.planning import plan

        return [ReadTask(slices) for slices in plan(self.options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Arrow batches; errors as of `ledger_read_op.read`, and those of the report."""
        from pyreplog.reports.partials import partial_of, read_options, view_of

        report = view_of(self.options)
        task = cast("tuple[Part, ...] | None", partition.value) or ()
        return iter(partial_of(report, task, read_options(report, self.options)).to_batches())
