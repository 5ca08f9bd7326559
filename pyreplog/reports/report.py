"""Report: what every report is made of. Both engines, `local_engine` and `spark_engine`, run the same three steps.

`reads` says what is read; `partial` makes a small table of what one task has read, with Arrow and numpy and no object
per record; `merge` makes the answer of all those. What lies across the border of two tasks is found at the merge:
partials carry what they begin and end with.
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
    """A column of a report: name; Arrow type; what it says, in one line."""

    name: str
    type: pa.DataType
    meaning: str


@dataclass(frozen=True)
class ReportRead:
    """One read of a report. options: over those that the user gave, by the names that Spark takes. tag: columns that
    its partials get, each of one text."""

    options: Mapping[str, str] = field(default_factory=dict)
    tag: Mapping[str, str] = field(default_factory=dict)


class Report(ABC):
    """One report. name: snake_case, as functions and commands call it. title, definition: for people; exact. figures:
    its columns. needs: columns of the source that `partial` is given. parts: the schema of partials, without the tag.

    A report with parameters is a frozen dataclass, each field with a default and such that JSON can hold it: so it
    travels to executors.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    definition: ClassVar[str]
    figures: ClassVar[tuple[ReportColumn, ...]]
    needs: ClassVar[tuple[str, ...]]
    parts: ClassVar[pa.Schema]
    needs_facts: ClassVar[bool] = True

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """What is read; none: the snapshot says it all."""
        return [ReportRead()]

    def at(self, snapshot: Snapshot) -> Report:
        """The report as its tasks run it: where `partial` depends on facts, they are put into its fields."""
        return self

    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self.needs

    @abstractmethod
    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Of all that one task reads, of schema `parts`; memory does not grow with the number of records."""

    def second(self, partials: pa.Table) -> Report | None:
        """A report to be run in place of this one, on the same: where partials tell what must be looked at closely."""
        return None

    @abstractmethod
    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        """The report, of schema `schema()`, in an order that does not depend on that of the tasks."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Its fields, by name."""
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) else {}

    @classmethod
    def schema(cls) -> pa.Schema:
        """Of the report."""
        return pa.schema([(figure.name, figure.type) for figure in cls.figures])

    def table(self, columns: Mapping[str, Any]) -> pa.Table:
        """A report of these columns."""
        return pa.table({name: columns[name] for name in self.schema().names}, schema=self.schema())


class SnapshotReport(Report):
    """A report for which nothing is read: it has no tasks, and no partials."""

    needs = ()
    parts = pa.schema([])

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        return []

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return self.parts.empty_table()
