"""Record streams: the log, topic partition or ledger that a record belongs to. Reports have rows for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog._native.tables.column_runs import are_numbers_alike, are_strings_alike
from pyreplog.errors import ConfigError
from pyreplog.reports.report import Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ANY, ReadOptions

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

TOPIC = ReportColumn("topic", pa.string(), "topic, or name of the log; null: entries of ledgers are read")
PARTITION = ReportColumn("partition", pa.int32(), "partition number; -1: no partition of a topic")
LEDGER = ReportColumn("ledger", pa.int64(), "id of the ledger if entries of ledgers are read; otherwise null")


class OnRecords(Report):
    """Base of the reports that read every record once, and nothing else."""

    needs_snapshot = False

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return one read of all records. Raises ConfigError if copies of the same entries are selected."""
        if options.replica != ANY:
            raise ConfigError(f"replica: {self.name} reads each entry once; expected any, found {options.replica!r}")
        return [ReportRead()]


class RecordStream(NamedTuple):
    """The scope within which offsets count. ledger: None unless entries of ledgers are read."""

    topic: str | None
    partition: int
    ledger: int | None = None


def streams(batch: pa.RecordBatch) -> Iterator[tuple[RecordStream, pa.RecordBatch]]:
    """Yield the rows of each stream, in their order. Ledgers are told apart if there is a column `ledgerId`."""
    if not len(batch):
        return
    if _is_constant(batch):
        yield _stream_of(batch), batch
        return
    codes = _codes(batch)
    order = np.argsort(codes, kind="stable")
    starts = run_starts(codes[order])
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = batch.take(pa.array(order[start:stop]))
        yield _stream_of(rows), rows


def numbers(column: pa.Array) -> Numbers:
    """Return a column of numbers or times without nulls as int64."""
    wide = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
    values: Numbers = wide.to_numpy().astype(np.int64, copy=False)
    return values


def run_starts(values: Numbers) -> Numbers:
    """Return the indices at which runs of equal values begin."""
    starts: Numbers = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
    return starts


def _stream_of(batch: pa.RecordBatch) -> RecordStream:
    """Return the stream of the first row."""
    topic, ledger = batch["topic"][0].as_py(), None
    if topic is None and "ledgerId" in batch.schema.names:
        ledger = batch["ledgerId"][0].as_py()
    return RecordStream(topic, batch["partition"][0].as_py(), ledger)


def _is_constant(batch: pa.RecordBatch) -> bool:
    """Return whether all rows belong to one stream: the usual case, decided without a step for each row."""
    topic = batch["topic"]
    if topic.null_count == len(topic):
        if "ledgerId" in batch.schema.names and not _is_single_value(numbers(batch["ledgerId"])):
            return False
    elif topic.null_count or not _is_one_text(topic):
        return False
    return are_numbers_alike(batch["partition"].to_numpy())


def _is_single_value(values: Numbers) -> bool:
    return bool((values == values[0]).all())


def _is_one_text(column: pa.Array) -> bool:
    """Return whether all strings are equal, by their bytes."""
    _, offsets, data = column.buffers()
    return are_strings_alike(offsets, data or b"", column.offset, len(column))


def _codes(batch: pa.RecordBatch) -> Numbers:
    """Return a number for each row, the same for rows of the same stream."""
    columns: list[Any] = [batch["topic"], batch["partition"]]
    if "ledgerId" in batch.schema.names:
        nothing = pa.scalar(None, pa.int64())
        columns.append(pc.if_else(batch["topic"].is_null(), batch["ledgerId"], nothing))
    codes = np.zeros(len(batch), np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + numbers(encoded.indices)
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes
