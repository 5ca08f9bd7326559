"""Records that exist more than once.

The first run reads only headers, as runs of sequence numbers. Where runs overlap, the second run reads values. So
memory grows with the duplicates, not with the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog._native.system.checksum import crc32c
from pyreplog.reports.records.gaps import PRODUCER, RUNS, sequence_runs
from pyreplog.reports.records.runs import FIRST, LAST, repeated
from pyreplog.reports.records.streams import PARTITION, TOPIC, Numbers, OnRecords, RecordStream, numbers, streams
from pyreplog.reports.report import Report, ReportColumn
from pyreplog.reports.snapshot import Snapshot

Suspects = tuple[tuple[str | None, int, str, list[int]], ...]
"""(topic, partition, producer, sequence numbers that occur more than once: first and last of each run, ascending)."""


@dataclass(frozen=True)
class Duplicates(OnRecords):
    """Duplicates by producer and sequence number. suspects: set by the report; None: not known yet."""

    suspects: Suspects | None = None

    name = "duplicates"
    title = "Records that exist more than once"
    definition = (
        "For each named producer, the sequence numbers that more than one record has: the number of these records, "
        "the first and the last of them by offset, and whether their values are the same, by CRC-32C."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("producer_name", pa.string(), "name of the producer"),
        ReportColumn("sequence_id", pa.int64(), "the sequence number that they share"),
        ReportColumn("copies", pa.int64(), "records with this number, two or more"),
        ReportColumn("first_offset", pa.int64(), "the smallest of their offsets"),
        ReportColumn("last_offset", pa.int64(), "the largest of their offsets"),
        ReportColumn("same_payload", pa.bool_(), "whether the values of all of them are the same"),
    )
    needs = ("topic", "partition", "offset", "producerName", "sequenceId")
    parts = pa.schema([*RUNS, ("offset", pa.int64()), ("crc", pa.int64())])

    def columns(self) -> tuple[str, ...]:
        return self.needs if self.suspects is None else (*self.needs, "value")

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        if self.suspects is None:
            runs = sequence_runs(batches)
            nothing = pa.nulls(len(runs), pa.int64())
            return runs.append_column("offset", nothing).append_column("crc", nothing)
        bounds = {tuple(producer): np.array(runs, np.int64) for *producer, runs in self.suspects}
        copies = [
            table
            for batch in batches
            for stream, rows in streams(batch)
            for table in _copies(stream, rows, bounds, self.parts)
        ]
        return pa.concat_tables([self.parts.empty_table(), *copies])

    def second(self, partials: pa.Table) -> Report | None:
        if self.suspects is not None:
            return None
        suspects: dict[tuple[Any, ...], list[int]] = {}
        for row in repeated(partials, PRODUCER).to_pylist():
            suspects.setdefault(tuple(row[name] for name in PRODUCER), []).extend((row[FIRST], row[LAST]))
        return Duplicates(tuple((*producer, bounds) for producer, bounds in suspects.items())) if suspects else None

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        copies = partials.filter(pc.is_valid(partials["offset"]))
        figures = [("offset", "count"), ("offset", "min"), ("offset", "max"), ("crc", "min"), ("crc", "max")]
        duplicates = copies.group_by([*PRODUCER, FIRST]).aggregate(figures)
        duplicates = duplicates.filter(pc.greater(duplicates["offset_count"], 1))
        duplicates = duplicates.sort_by([(name, "ascending") for name in (*PRODUCER, FIRST)])
        return self.table(
            {
                **{name: duplicates[name] for name in PRODUCER},
                "sequence_id": duplicates[FIRST], "copies": duplicates["offset_count"],
                "first_offset": duplicates["offset_min"], "last_offset": duplicates["offset_max"],
                "same_payload": pc.equal(duplicates["crc_min"], duplicates["crc_max"]),
            }
        )  # fmt: skip


def _copies(
    stream: RecordStream, rows: pa.RecordBatch, bounds: dict[tuple[Any, ...], Numbers], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the suspected records of one stream."""
    for name in rows["producerName"].unique().drop_null().to_pylist():
        producer = stream.topic, stream.partition, name
        if producer not in bounds:
            continue
        own = rows.filter(pc.and_(pc.equal(rows["producerName"], name), pc.is_valid(rows["sequenceId"])))
        own = own.filter(pa.array(_is_within(numbers(own["sequenceId"]), bounds[producer])))
        crcs = [crc32c(value) for value in own["value"].to_pylist()]  # only of suspects
        constants = {key: [value] * len(own) for key, value in zip(PRODUCER, producer, strict=True)}
        numbered = own["sequenceId"]
        columns = {**constants, FIRST: numbered, LAST: numbered, "offset": own["offset"], "crc": crcs}
        yield pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _is_within(values: Numbers, bounds: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which values lie in runs. bounds: first and last of each run."""
    is_within: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.searchsorted(
        bounds[::2], values, side="right"
    ) > np.searchsorted(bounds[1::2], values, side="left")
    return is_within
