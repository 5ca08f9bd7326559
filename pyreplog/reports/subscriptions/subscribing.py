"""What reports on subscriptions have in common: columns, rows, and how reads name topics and offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from pyreplog.reports.report import Report, ReportColumn
from pyreplog.tables.offsets import Partition

SUBSCRIPTION = ReportColumn("subscription", pa.string(), "its name")


def table_of(report: Report, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """A report of these rows, each with what its figures say, in their order."""
    names = report.schema().names
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return report.table(dict(zip(names, columns, strict=True)))


def names_of(names: Iterable[str]) -> str:
    """Topics and partitions, for the option `topics`: names may hold commas."""
    return json.dumps(list(dict.fromkeys(names)))


def offsets_of(offsets: Mapping[Partition, int]) -> str:
    """For startingOffsets and endingOffsets."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        made.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(made)
