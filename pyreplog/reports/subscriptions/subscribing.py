"""Columns, rows, and names of topics and offsets, which reports on subscriptions share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from pyreplog.reports.report import Report, ReportColumn
from pyreplog.tables.offsets import Partition

SUBSCRIPTION = ReportColumn("subscription", pa.string(), "name of the subscription")


def table_of(report: Report, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Return a result with these rows, each with the columns of the report in their order."""
    names = report.schema().names
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return report.table(dict(zip(names, columns, strict=True)))


def names_of(names: Iterable[str]) -> str:
    """Return names of topics and partitions as the option `topics` takes them: as JSON, since names may hold commas."""
    return json.dumps(list(dict.fromkeys(names)))


def offsets_of(offsets: Mapping[Partition, int]) -> str:
    """Return offsets as startingOffsets and endingOffsets take them."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic)
