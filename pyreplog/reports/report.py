"""Report: the base of every report.

Both engines, `local_engine` and `spark_engine`, run the same three steps. `reads` returns the reads; `partial` makes a
small table of the records of one task, with Arrow and numpy and without an object per record; `merge` makes the result
from all partial tables, which contain the columns that it needs to join the records of two tasks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions

TIME = pa.timestamp("us", "UTC")


class ReportColumn(NamedTuple):
    """A column of a report: name, Arrow type, and meaning in one line."""

    name: str
    type: pa.DataType
    meaning: str


@dataclass(frozen=True)
class ReportRead:
    """One read of a report.

    Attributes:
        options: options that replace those of the user; named as Spark takes them.
        tag: constant columns of its partial results.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    tag: Mapping[str, str] = field(default_factory=dict)


class Report(ABC):
    """A report.

    A report with parameters is a frozen dataclass. Each field has a default, and a type that JSON has, so that it can
    be sent to executors.

    Attributes:
        name: name in snake_case, as in functions and commands.
        title: title for people.
        definition: exact definition for people.
        figures: columns of the result.
        needs: columns of the source that `partial` reads.
        parts: schema of partial results, without the tag.
        needs_snapshot: whether `merge` or `reads` uses more than the time of the snapshot.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    definition: ClassVar[str]
    figures: ClassVar[tuple[ReportColumn, ...]]
    needs: ClassVar[tuple[str, ...]]
    parts: ClassVar[pa.Schema]
    needs_snapshot: ClassVar[bool] = True

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return the reads of the report; none: it needs the snapshot only."""
        return [ReportRead()]

    def at(self, snapshot: Snapshot) -> Report:
        """Return the report for a snapshot, with the facts that `partial` needs in its fields."""
        return self

    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read."""
        return self.needs

    @abstractmethod
    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the partial result of one task, with schema `parts`.

        Memory does not grow with the number of records.
        """

    def second(self, partials: pa.Table) -> Report | None:
        """Return a report to run on the same source instead, if the partial results show what to read in detail; else
        None."""
        return None

    @abstractmethod
    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        """Return the result, with schema `schema()`, in an order that does not depend on the order of tasks."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The fields of the report, by name."""
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) else {}

    @classmethod
    def schema(cls) -> pa.Schema:
        """Return the schema of the result."""
        return pa.schema([(figure.name, figure.type) for figure in cls.figures])

    def table(self, columns: Mapping[str, Any]) -> pa.Table:
        """Return a result with these columns."""
        return pa.table({name: columns[name] for name in self.schema().names}, schema=self.schema())


class SnapshotReport(Report):
    """A report that reads nothing: it has no tasks, and no partial results."""

    needs = ()
    parts = pa.schema([])

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        return []

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return self.parts.empty_table()
