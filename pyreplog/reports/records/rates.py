"""Entries and bytes appended, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog._native.tables.column_runs import sums_by_unit
from pyreplog.reports.records.streams import (
    PARTITION,
    TOPIC,
    Numbers,
    OnRecords,
    RecordStream,
    numbers,
    run_starts,
    streams,
)
from pyreplog.reports.report import TIME, ReportColumn
from pyreplog.reports.snapshot import Snapshot

MINUTE_US = 60_000_000

_GROUP = ["topic", "partition", "minute"]

_Sums = dict[tuple[RecordStream, int, str | None], tuple[int, int, int]]
"""By stream, minute and producer: entries, bytes, size of the largest."""


class RateByMinute(OnRecords):
    """Rates by partition and minute. Memory grows with minutes, and with producers in each."""

    name = "rate_by_minute"
    title = "Entries and bytes appended per minute"
    definition = (
        "For each minute (UTC) in which entries were appended: the number of entries, bytes of their values, their "
        "mean and largest size, and the number of named producers that they come from."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("minute", TIME, "start of the minute"),
        ReportColumn("entries", pa.int64(), "entries (of a topic: messages) appended in it"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("avg_size", pa.float64(), "bytes / entries"),
        ReportColumn("max_size", pa.int64(), "bytes of the largest value"),
        ReportColumn("producers", pa.int64(), "named producers"),
    )
    needs = ("topic", "partition", "timestamp", "size", "producerName")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("minute", TIME), ("producer", pa.string()),
            ("entries", pa.int64()), ("bytes", pa.int64()), ("max_size", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        sums: _Sums = {}
        for batch in batches:
            for stream, rows in streams(batch):
                _add(sums, stream, rows)
        sum_rows = [
            (stream.topic, stream.partition, minute * MINUTE_US, producer, *figures)
            for (stream, minute, producer), figures in sums.items()
        ]
        columns = zip(*sum_rows, strict=True) if sum_rows else [[] for _ in self.parts]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, self.parts, strict=True)], schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = [("entries", "sum"), ("bytes", "sum"), ("max_size", "max"), ("producer", "count_distinct")]
        minutes = partials.group_by(_GROUP).aggregate(sums).sort_by([(name, "ascending") for name in _GROUP])
        entries, size = minutes["entries_sum"], minutes["bytes_sum"]
        return self.table(
            {
                **{name: minutes[name] for name in _GROUP},
                "entries": entries, "bytes": size, "max_size": minutes["max_size_max"],
                "avg_size": pc.divide(size.cast(pa.float64()), entries.cast(pa.float64())),
                "producers": minutes["producer_count_distinct"],
            }
        )  # fmt: skip


def _add(sums: _Sums, stream: RecordStream, rows: pa.RecordBatch) -> None:
    """Add rows of one stream. They are sorted by minute and producer first, unless they are in that order already."""
    time, size, producer = numbers(rows["timestamp"]), rows["size"].to_numpy(), rows["producerName"]
    if producer.null_count == len(producer):  # the usual case
        for minute, *figures in sums_by_unit(time, size, MINUTE_US):
            _note(sums, (stream, minute, None), *figures)
        return
    encoded = producer.dictionary_encode(null_encoding="encode")
    names = encoded.dictionary.to_pylist()
    first = int(time.min()) // MINUTE_US
    codes: Numbers = (time // MINUTE_US - first) * len(names) + numbers(encoded.indices)
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes, size = codes[order], size[order]
    starts = run_starts(codes)
    counts = np.diff(starts, append=len(codes))
    total, largest = np.add.reduceat(size, starts, dtype=np.int64), np.maximum.reduceat(size, starts)
    for code, *figures in zip(*(column.tolist() for column in (codes[starts], counts, total, largest)), strict=True):
        _note(sums, (stream, first + code // len(names), names[code % len(names)]), *figures)


def _note(sums: _Sums, key: tuple[RecordStream, int, str | None], entries: int, size: int, largest: int) -> None:
    before = sums.get(key, (0, 0, 0))
    sums[key] = before[0] + entries, before[1] + size, max(before[2], largest)
