"""Gaps: missing sequence numbers of producers, and missing offsets."""

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
"""Number of collected runs from which they are joined."""

_STREAM = ("topic", "partition", "ledger")
PRODUCER = ("topic", "partition", "producer_name")
_STREAM_FIELDS = [(figure.name, figure.type) for figure in (TOPIC, PARTITION, LEDGER)]
_RUN_FIELDS = [(FIRST, pa.int64()), (LAST, pa.int64())]

RUNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("producer_name", pa.string()), *_RUN_FIELDS])
"""Schema of runs of sequence numbers."""


class SequenceGaps(OnRecords):
    """Missing sequence numbers by producer. Memory grows with gaps, and with how far numbers are out of order."""

    name = "sequence_gaps"
    title = "Sequence numbers that a producer left out"
    definition = (
        "For each named producer, the ranges of sequence numbers that none of its records has, between two numbers "
        "that records have. The order of the records does not matter."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("producer_name", pa.string(), "name of the producer"),
        ReportColumn("after_seq", pa.int64(), "the last number before the gap"),
        ReportColumn("before_seq", pa.int64(), "the first number after the gap"),
        ReportColumn("missing", pa.int64(), "numbers in the gap: before_seq - after_seq - 1"),
    )
    needs = ("topic", "partition", "producerName", "sequenceId")
    parts = RUNS

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return sequence_runs(batches)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        following, after, before = holes(partials, PRODUCER)
        gaps = self.table(
            {**{name: following[name] for name in PRODUCER}, **_gap("after_seq", after, "before_seq", before)}
        )
        return gaps.sort_by([(name, "ascending") for name in (*PRODUCER, "after_seq")])


class LogGaps(OnRecords):
    """Missing offsets by log, topic partition or ledger. Memory grows with gaps."""

    name = "log_gaps"
    title = "Offsets that are missing"
    definition = (
        "For each log, topic partition or ledger, the ranges of offsets that no record has, between two offsets that "
        "records have. Records removed from the beginning are no gap. In the backlog of a subscription, acknowledged "
        "messages are gaps."
    )
    figures = (
        TOPIC,
        PARTITION,
        LEDGER,
        ReportColumn("after_offset", pa.int64(), "the last offset before the gap"),
        ReportColumn("before_offset", pa.int64(), "the first offset after the gap"),
        ReportColumn("missing", pa.int64(), "offsets in the gap: before_offset - after_offset - 1"),
        ReportColumn("segment", pa.string(), "file of the first record after the gap; null if bookies were asked"),
    )
    needs = ("topic", "partition", "ledgerId", "offset", "segment")
    parts = pa.schema([*_STREAM_FIELDS, *_RUN_FIELDS, ("segment", pa.string())])

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        runs = (_offset_runs(stream, rows, self.parts) for batch in batches for stream, rows in streams(batch))
        return gathered(runs, self.parts, _STREAM)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        following, after, before = holes(partials, _STREAM)
        gaps = self.table(
            {
                **{name: following[name] for name in _STREAM}, **_gap("after_offset", after, "before_offset", before),
                "segment": following["segment"],
            }
        )  # fmt: skip
        return gaps.sort_by([(name, "ascending") for name in (*_STREAM, "after_offset")])


def _gap(after_name: str, after: Numbers, before_name: str, before: Numbers) -> dict[str, Numbers]:
    return {after_name: after, before_name: before, "missing": before - after - 1}


def gathered(tables: Iterator[pa.Table], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Return all runs, joined from time to time, so that memory grows with joined runs and not with batches."""
    runs, waiting, rows = schema.empty_table(), list[pa.Table](), 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        if rows > max(_MANY_RUNS, len(runs)) or len(waiting) > _MANY_RUNS:
            runs, waiting, rows = joined(pa.concat_tables([runs, *waiting]), keys), [], 0
    return joined(pa.concat_tables([runs, *waiting]), keys)


def sequence_runs(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Return runs of the sequence numbers of each producer, of schema RUNS.

    A number that occurs twice is in two runs.
    """
    runs = (_sequence_runs(stream, rows) for batch in batches for stream, rows in streams(batch))
    return gathered(runs, RUNS, PRODUCER)


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
    """Return for each row but the first whether it continues the one before it."""
    follows: np.ndarray[tuple[int], np.dtype[np.bool_]] = (codes[1:] == codes[:-1]) & (values[1:] == values[:-1] + 1)
    return follows


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
    constants = {
        name: pa.repeat(pa.scalar(value, pa.int64() if name == "ledger" else schema.field(name).type), count)
        for name, value in stream._asdict().items()
    }
    return pa.table({**constants, **columns}).select(schema.names).cast(schema)
