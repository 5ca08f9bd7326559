"""The data source that Spark calls: `spark.read.format("pyreplog")`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyreplog.spark import schema as columns
from pyreplog.spark.options import ReadOptions
from pyreplog.spark.schema import Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from pyreplog.spark.planning import Part


class PyreplogDataSource(DataSource):
    """Logs as tables. Options: `ReadOptions`; columns: `pyreplog.spark.schema`.

    A DataFrame stays as it was planned: the log's end is settled at its first action, and a new `load` sees a new one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.wanted = ReadOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "pyreplog"

    def schema(self) -> str:
        """The columns of a read without a schema of the user's."""
        return columns.as_ddl(columns.default_columns(self.wanted))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of the columns of a schema. ConfigError: not all of them are there."""
        return LogSourceReader(self.wanted, columns.columns_of(schema, self.wanted))


class Task(InputPartition):
    """The slices that one task reads."""

    def __init__(self, slices: tuple[Part, ...]) -> None:
        super().__init__(slices)


class LogSourceReader(DataSourceReader):
    """Plans in the driver, reads on executors, to which it is sent: it holds no files.

    What only one of the two needs is imported there. Filters are not pushed down: Spark up to 4.3 lets those of one
    query change another's answer.
    """

    def __init__(self, options: ReadOptions, wanted: tuple[Column, ...]) -> None:
        self.options, self.columns = options, wanted

    def partitions(self) -> list[InputPartition]:
        """One for each task; errors as of `planning.plan`."""
        from pyreplog.spark.planning import plan

        return [Task(slices) for slices in plan(self.options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Arrow batches; errors as of `reading.read`. An empty plan is one partition of None."""
        from pyreplog.spark.reading import read

        return read(cast("tuple[Part, ...] | None", partition.value) or (), self.columns, self.options)
