"""Append times that are older than the time of the record before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import LEDGER, PARTITION, TOPIC, OnRecords, RecordStream, numbers, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot


@dataclass
class _Piece:
    """Neighbouring records of one stream, in the order of their offsets.

    Attributes:
        first_us: time of the first record.
        last_us: time of the last record.
        worst_us: the largest step back in time.
    """

    stream: RecordStream
    first: int
    last: int
    first_us: int
    last_us: int
    violations: int = 0
    first_violation: int | None = None
    worst_us: int = 0

    def take(self, other: _Piece) -> None:
        """Append the records that follow."""
        step = self.last_us - other.first_us
        if step > 0:
            self._note(1, other.first, step)
        self._note(other.violations, other.first_violation, other.worst_us)
        self.last, self.last_us = other.last, other.last_us

    def _note(self, count: int, first: int | None, worst_us: int) -> None:
        self.violations += count
        self.first_violation = first if self.first_violation is None else self.first_violation
        self.worst_us = max(self.worst_us, worst_us)


class OrderViolations(OnRecords):
    """Steps back in time by log, topic partition or ledger, also between the records of two tasks."""

    name = "order_violations"
    title = "Append times that step back"
    definition = (
        "For each log, topic partition or ledger: the number of records with an older append time than the record "
        "before them, the first of these by offset, and the largest step back."
    )
    figures = (
        TOPIC,
        PARTITION,
        LEDGER,
        ReportColumn("violations", pa.int64(), "records that are older than the one before them"),
        ReportColumn("first_offset", pa.int64(), "offset of the first of them; null: no record is"),
        ReportColumn("max_backstep_ms", pa.float64(), "the largest step back, in milliseconds"),
    )
    needs = ("topic", "partition", "ledgerId", "offset", "timestamp")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("ledger", pa.int64()), ("first", pa.int64()),
            ("last", pa.int64()), ("first_us", pa.int64()), ("last_us", pa.int64()), ("violations", pa.int64()),
            ("first_violation", pa.int64()), ("worst_us", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        pieces, last = list[_Piece](), dict[RecordStream, _Piece]()
        for batch in batches:
            for stream, rows in streams(batch):
                piece, before = _piece(stream, rows), last.get(stream)
                if before is not None and before.last < piece.first:
                    before.take(piece)
                else:
                    pieces.append(piece)
                    last[stream] = piece
        rows = [{**vars(piece), **piece.stream._asdict()} for piece in pieces]
        return pa.table({name: [row[name] for row in rows] for name in self.parts.names}, schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        pieces: dict[RecordStream, _Piece] = {}
        for row in partials.sort_by([("first", "ascending")]).to_pylist():
            stream = RecordStream(row.pop("topic"), row.pop("partition"), row.pop("ledger"))
            piece = _Piece(stream, **row)
            if stream in pieces:
                pieces[stream].take(piece)
            else:
                pieces[stream] = piece
        rows = [
            (*stream, piece.violations, piece.first_violation, piece.worst_us / 1000)
            for stream, piece in sorted(pieces.items(), key=lambda item: _order(item[0]))
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))


def _order(stream: RecordStream) -> tuple[str, int, int]:
    return stream.topic or "", stream.partition, -1 if stream.ledger is None else stream.ledger


def _piece(stream: RecordStream, rows: pa.RecordBatch) -> _Piece:
    offset, time = numbers(rows["offset"]), numbers(rows["timestamp"])
    if not (offset[1:] > offset[:-1]).all():
        order = np.argsort(offset, kind="stable")
        offset, time = offset[order], time[order]
    back = time[:-1] - time[1:]
    at = np.flatnonzero(back > 0)
    piece = _Piece(stream, int(offset[0]), int(offset[-1]), int(time[0]), int(time[-1]))
    if at.size:
        piece.violations, piece.first_violation = len(at), int(offset[at[0] + 1])
        piece.worst_us = int(back[at].max())
    return piece
