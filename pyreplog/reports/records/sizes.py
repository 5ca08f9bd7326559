"""Sizes of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, Numbers, OnRecords, RecordStream, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

_BITS = 11
"""Sizes below 2**_BITS are counted one by one, larger ones by their first _BITS bits: exact to a thousandth."""
_EXACT = 1 << _BITS
_HALF = _EXACT // 2

_GROUP = ["topic", "partition"]


class SizeHistogram(OnRecords):
    """Sizes by partition and power of two. There is a count for each size, cut to eleven bits."""

    name = "size_histogram"
    title = "Sizes of records"
    definition = (
        "For each bucket [lo, hi) of sizes, with hi = 2 lo, and one for size 0: entries, and bytes of their values. "
        "Every row repeats figures of the partition: the median, the 90th and the 99th percentile of sizes (nearest "
        "rank; from 2048 bytes on up to 0.1% too low), and the largest size."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("lo", pa.int64(), "smallest size of the bucket"),
        ReportColumn("hi", pa.int64(), "smallest size above the bucket"),
        ReportColumn("entries", pa.int64(), "entries (of a topic: messages) of these sizes"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("p50", pa.int64(), "half of the partition's entries have at most this size"),
        ReportColumn("p90", pa.int64(), "nine tenths of them have at most this size"),
        ReportColumn("p99", pa.int64(), "99 of 100 have at most this size"),
        ReportColumn("max", pa.int64(), "largest size in the partition"),
    )
    needs = ("topic", "partition", "size")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("bin", pa.int64()), ("entries", pa.int64()),
            ("bytes", pa.int64()), ("max", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        tables, counts = [self.parts.empty_table()], None
        for batch in batches:
            for stream, rows in streams(batch):
                if counts is None or counts.stream != stream:
                    tables += [] if counts is None else [counts.table(self.parts)]
                    counts = _SizeCounts(stream)
                counts.add(rows["size"].to_numpy().astype(np.int64))
        return pa.concat_tables([*tables, *([] if counts is None else [counts.table(self.parts)])])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = [("entries", "sum"), ("bytes", "sum"), ("max", "max")]
        bins = partials.group_by([*_GROUP, "bin"]).aggregate(sums)
        bins = bins.sort_by([(name, "ascending") for name in (*_GROUP, "bin")])
        groups: dict[tuple[str | None, int], list[dict[str, int]]] = {}
        for row in bins.to_pylist():
            groups.setdefault((row["topic"], row["partition"]), []).append(row)
        rows = [(*group, *row) for group, group_bins in groups.items() for row in _buckets(group_bins)]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))


class _SizeCounts:
    """Counts of the sizes of one stream, by bin."""

    def __init__(self, stream: RecordStream) -> None:
        self.stream = stream
        self._largest = 0
        self._entries = np.zeros(0, np.int64)
        self._bytes = np.zeros(0, np.int64)

    def add(self, sizes: Numbers) -> None:
        bins, largest = bins_of(sizes), int(sizes.max())
        count = max(int(bins_of(np.array([largest]))[0]) + 1, len(self._entries))
        self._entries, self._bytes = _grown(self._entries, count), _grown(self._bytes, count)
        self._entries += np.bincount(bins, minlength=count)
        self._bytes += np.bincount(bins, sizes, count).astype(np.int64)  # exact: a batch has less than 2**53 bytes
        self._largest = max(self._largest, largest)

    def table(self, schema: pa.Schema) -> pa.Table:
        used = np.flatnonzero(self._entries)
        constants = [[value] * len(used) for value in self.stream[:2]]
        columns = [*constants, used, self._entries[used], self._bytes[used], [self._largest] * len(used)]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)


def bins_of(sizes: Numbers) -> Numbers:
    """Return the bin of each size."""
    shift = np.maximum(np.frexp(sizes.astype(np.float64))[1] - _BITS, 0)
    bins: Numbers = shift * _HALF + (sizes >> shift)
    return bins


def low_of(number: int) -> int:
    """Return the smallest size of a bin."""
    shift = max(number // _HALF - 1, 0)
    return (number - shift * _HALF) << shift


def _grown(values: Numbers, count: int) -> Numbers:
    return values if len(values) == count else np.concatenate((values, np.zeros(count - len(values), np.int64)))


def _buckets(bins: Sequence[dict[str, int]]) -> list[tuple[int, ...]]:
    """Return the rows of one partition. bins: ascending."""
    total, largest = sum(row["entries_sum"] for row in bins), max(row["max_max"] for row in bins)
    percentiles = [_percentile(bins, total, percent) for percent in (50, 90, 99)]
    sums_by_bits: dict[int, tuple[int, int]] = {}
    for row in bins:
        bits = low_of(row["bin"]).bit_length()
        before = sums_by_bits.get(bits, (0, 0))
        sums_by_bits[bits] = before[0] + row["entries_sum"], before[1] + row["bytes_sum"]
    return [(1 << bits >> 1, 1 << bits, *sums, *percentiles, largest) for bits, sums in sums_by_bits.items()]


def _percentile(bins: Sequence[dict[str, int]], total: int, percent: int) -> int:
    """Return the smallest size that so many percent of all entries do not exceed."""
    rank, seen = -(-total * percent // 100), 0
    for row in bins:
        seen += row["entries_sum"]
        if seen >= rank:
            return low_of(row["bin"])
    raise AssertionError("the bins have fewer entries than the total")
