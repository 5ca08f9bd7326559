"""How large records are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, Numbers, OnRecords, RecordStream, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

_BITS = 11
"""Sizes below 2**_BITS are counted one by one, larger ones by their first _BITS bits: to within a thousandth."""
_EXACT = 1 << _BITS
_HALF = _EXACT // 2

_GROUP = ["topic", "partition"]


class SizeHistogram(OnRecords):
    """By partition and power of two; of each size, cut to eleven bits, a count is kept."""

    name = "size_histogram"
    title = "Sizes of records"
    definition = (
        "Of each bucket [lo, hi) of sizes, hi = 2 lo (and one of the size 0): entries, and bytes of their values. In "
        "every row of a partition, of all its sizes: the median, the 90th and the 99th percentile (nearest rank; from "
        "2048 bytes on up to 0.1% too low), and the largest."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("lo", pa.int64(), "the smallest size of the bucket"),
        ReportColumn("hi", pa.int64(), "the first size beyond it"),
        ReportColumn("entries", pa.int64(), "entries, of a topic messages, of these sizes"),
        ReportColumn("bytes", pa.int64(), "of their values"),
        ReportColumn("p50", pa.int64(), "half of the partition's entries are at most so large"),
        ReportColumn("p90", pa.int64(), "nine tenths"),
        ReportColumn("p99", pa.int64(), "99 of 100"),
        ReportColumn("max", pa.int64(), "the largest of the partition"),
    )
    needs = ("topic", "partition", "size")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("bin", pa.int64()), ("entries", pa.int64()),
            ("bytes", pa.int64()), ("max", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        made, counts = [self.parts.empty_table()], None
        for batch in batches:
            for stream, rows in streams(batch):
                if counts is None or counts.stream != stream:
                    made += [] if counts is None else [counts.table(self.parts)]
                    counts = _Counts(stream)
                counts.add(rows["size"].to_numpy().astype(np.int64))
        return pa.concat_tables([*made, *([] if counts is None else [counts.table(self.parts)])])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = [("entries", "sum"), ("bytes", "sum"), ("max", "max")]
        bins = partials.group_by([*_GROUP, "bin"]).aggregate(sums)
        bins = bins.sort_by([(name, "ascending") for name in (*_GROUP, "bin")])
        groups: dict[tuple[str | None, int], list[dict[str, int]]] = {}
        for row in bins.to_pylist():
            groups.setdefault((row["topic"], row["partition"]), []).append(row)
        rows = [(*group, *row) for group, found in groups.items() for row in _buckets(found)]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))


class _Counts:
    """Sizes of one stream, by bin."""

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
        there = np.flatnonzero(self._entries)
        told = [[value] * len(there) for value in self.stream[:2]]
        columns = [*told, there, self._entries[there], self._bytes[there], [self._largest] * len(there)]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)


def bins_of(sizes: Numbers) -> Numbers:
    """The bin of each size."""
    shift = np.maximum(np.frexp(sizes.astype(np.float64))[1] - _BITS, 0)
    found: Numbers = shift * _HALF + (sizes >> shift)
    return found


def low_of(number: int) -> int:
    """The smallest size of a bin."""
    shift = max(number // _HALF - 1, 0)
    return (number - shift * _HALF) << shift


def _grown(values: Numbers, count: int) -> Numbers:
    return values if len(values) == count else np.concatenate((values, np.zeros(count - len(values), np.int64)))


def _buckets(bins: Sequence[dict[str, int]]) -> list[tuple[int, ...]]:
    """Rows of one partition. bins: ascending."""
    total, largest = sum(row["entries_sum"] for row in bins), max(row["max_max"] for row in bins)
    shown = [_percentile(bins, total, percent) for percent in (50, 90, 99)]
    found: dict[int, tuple[int, int]] = {}
    for row in bins:
        bits = low_of(row["bin"]).bit_length()
        before = found.get(bits, (0, 0))
        found[bits] = before[0] + row["entries_sum"], before[1] + row["bytes_sum"]
    return [(1 << bits >> 1, 1 << bits, *sums, *shown, largest) for bits, sums in found.items()]


def _percentile(bins: Sequence[dict[str, int]], total: int, percent: int) -> int:
    """The smallest size that so many percent of all entries do not exceed."""
    rank, seen = -(-total * percent // 100), 0
    for row in bins:
        seen += row["entries_sum"]
        if seen >= rank:
            return low_of(row["bin"])
    raise AssertionError("fewer entries than there are")
