"""Records as tasks would read them, without a log: any records, in any batches and tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyreplog.reports.catalogue import report_of_view
from pyreplog.reports.report import Report
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.arrays import schema_of
from tests.spark.reports.oracle import Record

COLUMNS = {
    "timestamp": "time", "size": "size", "producerName": "producer", "sequenceId": "sequence", "ledgerId": "ledger",
}  # fmt: skip


def report_on(report: Report, tasks: Sequence[Sequence[Sequence[Record]]], snapshot: Snapshot) -> pa.Table:
    """What a report says of tasks, each of which reads some batches."""
    partials = _partials(report, tasks)
    second = report.second(partials)
    return report.merge(partials, snapshot) if second is None else second.merge(_partials(second, tasks), snapshot)


def _partials(report: Report, tasks: Sequence[Sequence[Sequence[Record]]]) -> pa.Table:
    sent = report_of_view(report.name, json.dumps(report.parameters))
    partials = []
    for task in tasks:
        partial = sent.partial(_batches(sent, task))
        assert partial.schema == report.parts
        partials.append(partial)
    return pa.concat_tables([report.parts.empty_table(), *partials])


def _batches(report: Report, task: Sequence[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
    schema = schema_of(report.columns())
    for records in task:
        rows = [{**record._asdict(), "size": len(record.value), "ledger": record.ledger or 0} for record in records]
        columns = [pa.array([row[COLUMNS.get(f.name, f.name)] for row in rows], f.type) for f in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
