"""The stream reader that Spark calls: `spark.readStream.format("pyreplog")`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyreplog.errors import ConfigError
from pyreplog.spark.stream.offsets import StreamOffset
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.task import ReadTask
from pyreplog.tables.schema import Column, planning_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from pyreplog.spark.stream.stream_planner import StreamPlanner
    from pyreplog.tables.log_slices import Part


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process beside the driver, and reads on executors, to which it is sent. Files are opened when needed.

    `commit` does nothing: Spark calls it for a batch when it plans the next one, and so perhaps never for the last one.
    """

    def __init__(self, options: StreamOptions, wanted: tuple[Column, ...]) -> None:
        self.options, self.columns = options, wanted

    @cached_property
    def planner(self) -> StreamPlanner:
        """The planner, which opens files or connects when it is first used."""
        from pyreplog.spark.stream.stream_planner import StreamPlanner

        return StreamPlanner(replace(self.options, read=planning_options(self.options.read, self.columns)))

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint. Raises the errors of `StreamPlanner.begin`."""
        return self.planner.begin().encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that maxOffsetsPerTrigger or maxBytesPerTrigger sets."""
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        return ReadAllAvailable() if self.options.max_bytes is None else ReadMaxBytes(self.options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Raises the errors of `StreamPlanner.next`."""
        rows, size = getattr(limit, "max_rows", None), getattr(limit, "max_bytes", None)
        if rows is None and size is None and not isinstance(limit, ReadAllAvailable):
            raise ConfigError(f"read limit: expected rows or bytes at most, found {limit!r}")
        return self.planner.next(StreamOffset.decode(start), max_rows=rows, max_bytes=size).encode()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end where its source ends now."""
        self.planner.stop_at_current_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all partitions when they were looked at last."""
        latest = self.planner.latest
        return None if latest is None else latest.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return an input partition for each task of a batch. Raises the errors of `StreamPlanner.tasks`."""
        return [ReadTask(slices) for slices in self.planner.tasks(StreamOffset.decode(start), StreamOffset.decode(end))]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches. Raises the errors of `reading.read`."""
        from pyreplog.tables.reading import read

        return read(cast("tuple[Part, ...]", partition.value), self.columns, self.options.read)

    def stop(self) -> None:
        """Close files and connections."""
        self.planner.close()
