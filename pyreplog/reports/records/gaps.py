"""What is missing in between: sequence numbers of producers, and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.runs import FIRST, LAST, holes, joined
from pyreplog.reports.records.streams import (
    LEDGER,
    PARTITION,
    TOPIC,
    Numbers,
    OnRecords,
    RecordStream,
    numbers,
    streams,
)
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

_MANY_RUNS = 1 << 12
"""From so many on, runs are put together before more are taken up."""

_STREAM = ("topic", "partition", "ledger")
PRODUCER = ("topic", "partition", "producer_name")
_STREAM_FIELDS = [(figure.name, figure.type) for figure in (TOPIC, PARTITION, LEDGER)]
_RUN_FIELDS = [(FIRST, pa.int64()), (LAST, pa.int64())]

RUNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("producer_name", pa.string()), *_RUN_FIELDS])
"""Of sequence numbers."""


class SequenceGaps(OnRecords):
    """By producer. Memory grows with gaps, and with how far numbers come out of order."""

    name = "sequence_gaps"
    title = "Sequence numbers that a producer left out"
    definition = (
        "Of each named producer, the stretches of sequence numbers that none of its records has, between two that some "
        "have; in sequence order, wherever the records lie."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("producer_name", pa.string(), "whose numbers they are"),
        ReportColumn("after_seq", pa.int64(), "the last number before the gap"),
        ReportColumn("before_seq", pa.int64(), "the first number behind it"),
        ReportColumn("missing", pa.int64(), "numbers in it: before_seq - after_seq - 1"),
    )
    needs = ("topic", "partition", "producerName", "sequenceId")
    parts = RUNS

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return sequence_runs(batches)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        behind, after, before = holes(partials, PRODUCER)
        made = self.table(
            {**{name: behind[name] for name in PRODUCER}, **_gap("after_seq", after, "before_seq", before)}
        )
        return made.sort_by([(name, "ascending") for name in (*PRODUCER, "after_seq")])


class LogGaps(OnRecords):
    """By log, topic partition or ledger. Memory grows with gaps."""

    name = "log_gaps"
    title = "Offsets that are missing"
    definition = (
        "Of each log, topic partition or ledger, the stretches of offsets that no record has, between two that some "
        "have. What was removed from its beginning is no gap; of a subscription's backlog, what is acknowledged is one."
    )
    figures = (
        TOPIC,
        PARTITION,
        LEDGER,
        ReportColumn("after_offset", pa.int64(), "the last offset before the gap"),
        ReportColumn("before_offset", pa.int64(), "the first offset behind it"),
        ReportColumn("missing", pa.int64(), "offsets in it: before_offset - after_offset - 1"),
        ReportColumn("segment", pa.string(), "the file of the first one behind it; null where bookies are asked"),
    )
    needs = ("topic", "partition", "ledgerId", "offset", "segment")
    parts = pa.schema([*_STREAM_FIELDS, *_RUN_FIELDS, ("segment", pa.string())])

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        found = (_offset_runs(stream, rows, self.parts) for batch in batches for stream, rows in streams(batch))
        return gathered(found, self.parts, _STREAM)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        behind, after, before = holes(partials, _STREAM)
        made = self.table(
            {
                **{name: behind[name] for name in _STREAM}, **_gap("after_offset", after, "before_offset", before),
                "segment": behind["segment"],
            }
        )  # fmt: skip
        return made.sort_by([(name, "ascending") for name in (*_STREAM, "after_offset")])


def _gap(after_name: str, after: Numbers, before_name: str, before: Numbers) -> dict[str, Numbers]:
    return {after_name: after, before_name: before, "missing": before - after - 1}


def gathered(found: Iterator[pa.Table], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """All of these runs, put together now and then: so many are kept as there are runs, not as there were batches."""
    made, waiting, rows = schema.empty_table(), list[pa.Table](), 0
    for table in found:
        waiting.append(table)
        rows += len(table)
        if rows > max(_MANY_RUNS, len(made)) or len(waiting) > _MANY_RUNS:
            made, waiting, rows = joined(pa.concat_tables([made, *waiting]), keys), [], 0
    return joined(pa.concat_tables([made, *waiting]), keys)


def sequence_runs(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Runs of the sequence numbers of each producer, of schema RUNS. A number that comes twice is in two of them."""
    found = (_sequence_runs(stream, rows) for batch in batches for stream, rows in streams(batch))
    return gathered(found, RUNS, PRODUCER)


def _sequence_runs(stream: RecordStream, rows: pa.RecordBatch) -> pa.Table:
    rows = rows.select(["producerName", "sequenceId"]).drop_null()
    if not len(rows):
        return RUNS.empty_table()
    producer = rows["producerName"].dictionary_encode()
    codes, numbered = numbers(producer.indices), numbers(rows["sequenceId"])
    if not _follows(codes, numbered).all():
        order = np.lexsort((numbered, codes))
        codes, numbered = codes[order], numbered[order]
    starts = np.flatnonzero(np.concatenate(([True], ~_follows(codes, numbered))))
    ends = np.append(starts[1:], len(codes)) - 1
    names = producer.dictionary.take(pa.array(codes[starts]))
    return _runs(stream, RUNS, {"producer_name": names, FIRST: numbered[starts], LAST: numbered[ends]})


def _follows(codes: Numbers, values: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Of each row but the first, whether it continues the one before."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (codes[1:] == codes[:-1]) & (values[1:] == values[:-1] + 1)
    return found


def _offset_runs(stream: RecordStream, rows: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    offset, segment = numbers(rows["offset"]), rows["segment"]
    if not (offset[1:] > offset[:-1]).all():
        order = np.argsort(offset, kind="stable")
        offset, segment = offset[order], segment.take(pa.array(order))
    starts = np.flatnonzero(np.concatenate(([True], offset[1:] != offset[:-1] + 1)))
    ends = np.append(starts[1:], len(offset)) - 1
    columns = {FIRST: offset[starts], LAST: offset[ends], "segment": segment.take(pa.array(starts))}
    return _runs(stream, schema, columns)


def _runs(stream: RecordStream, schema: pa.Schema, columns: dict[str, Any]) -> pa.Table:
    count = len(columns[LAST])
    told = {
        name: pa.repeat(pa.scalar(value, pa.int64() if name == "ledger" else schema.field(name).type), count)
        for name, value in stream._asdict().items()
    }
    return pa.table({**told, **columns}).select(schema.names).cast(schema)
