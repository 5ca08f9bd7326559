"""How much was appended, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog._native.tables.stretches import sums_by_unit
from pyreplog.reports.records.streams import (
    PARTITION,
    TOPIC,
    Numbers,
    OnRecords,
    RecordStream,
    numbers,
    streams,
    stretches,
)
from pyreplog.reports.report import TIME, ReportColumn
from pyreplog.reports.snapshot import Snapshot

MINUTE_US = 60_000_000

_GROUP = ["topic", "partition", "minute"]

_Sums = dict[tuple[RecordStream, int, str | None], tuple[int, int, int]]
"""By stream, minute and producer: entries, bytes, the largest."""


class RateByMinute(OnRecords):
    """By partition and minute. Memory grows with minutes, and with producers in each."""

    name = "rate_by_minute"
    title = "Entries and bytes appended per minute"
    definition = (
        "Of each minute (UTC) in which anything was appended: entries, bytes of their values, their mean and largest "
        "size, and how many named producers they are of."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("minute", TIME, "its beginning"),
        ReportColumn("entries", pa.int64(), "entries, of a topic messages, appended in it"),
        ReportColumn("bytes", pa.int64(), "of their values"),
        ReportColumn("avg_size", pa.float64(), "bytes / entries"),
        ReportColumn("max_size", pa.int64(), "bytes of the largest"),
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
        made = [
            (stream.topic, stream.partition, minute * MINUTE_US, producer, *found)
            for (stream, minute, producer), found in sums.items()
        ]
        columns = zip(*made, strict=True) if made else [[] for _ in self.parts]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, self.parts, strict=True)], schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = [("entries", "sum"), ("bytes", "sum"), ("max_size", "max"), ("producer", "count_distinct")]
        made = partials.group_by(_GROUP).aggregate(sums).sort_by([(name, "ascending") for name in _GROUP])
        entries, size = made["entries_sum"], made["bytes_sum"]
        return self.table(
            {
                **{name: made[name] for name in _GROUP},
                "entries": entries, "bytes": size, "max_size": made["max_size_max"],
                "avg_size": pc.divide(size.cast(pa.float64()), entries.cast(pa.float64())),
                "producers": made["producer_count_distinct"],
            }
        )  # fmt: skip


def _add(sums: _Sums, stream: RecordStream, rows: pa.RecordBatch) -> None:
    """Rows of one stream, sorted by what they are summed by unless they are so."""
    time, size, producer = numbers(rows["timestamp"]), rows["size"].to_numpy(), rows["producerName"]
    if producer.null_count == len(producer):  # as most often
        for minute, *found in sums_by_unit(time, size, MINUTE_US):
            _note(sums, (stream, minute, None), *found)
        return
    encoded = producer.dictionary_encode(null_encoding="encode")
    names = encoded.dictionary.to_pylist()
    first = int(time.min()) // MINUTE_US
    codes: Numbers = (time // MINUTE_US - first) * len(names) + numbers(encoded.indices)
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes, size = codes[order], size[order]
    starts = stretches(codes)
    counts = np.diff(starts, append=len(codes))
    total, largest = np.add.reduceat(size, starts, dtype=np.int64), np.maximum.reduceat(size, starts)
    for code, *found in zip(*(column.tolist() for column in (codes[starts], counts, total, largest)), strict=True):
        _note(sums, (stream, first + code // len(names), names[code % len(names)]), *found)


def _note(sums: _Sums, key: tuple[RecordStream, int, str | None], entries: int, size: int, largest: int) -> None:
    before = sums.get(key, (0, 0, 0))
    sums[key] = before[0] + entries, before[1] + size, max(before[2], largest)
