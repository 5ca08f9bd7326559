"""The keys that most records have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyreplog.errors import ConfigError
from pyreplog.reports.records.streams import PARTITION, TOPIC, Numbers, OnRecords, RecordStream, numbers, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

SHOWN_BYTES = 64
"""Bytes of a key that the report shows."""

_MANY_ROWS = 1 << 20
"""Rows that are collected before they are counted."""

_GROUP = ["topic", "partition"]


@dataclass(frozen=True)
class KeySkew(OnRecords):
    """The most frequent keys by partition. Keys are counted exactly, so memory grows with the number of different keys.

    top: number of keys of each partition.
    """

    top: int = 20

    name = "key_skew"
    title = "Keys that most records have"
    definition = (
        "For each partition, the keys that most records have: number of records, bytes of their values, and share of "
        "all records of the partition; and one row for the records without a key. Every row repeats figures of the "
        "partition: the share of the first key, the number of keys, and how unevenly the records are distributed over "
        "keys, as Gini coefficient (0: evenly; near 1: nearly all on one key)."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("rank", pa.int64(), "1: most entries, and among equals most bytes; null: no key"),
        ReportColumn("key", pa.string(), "first 64 bytes of the key, in hex; null: entries without a key"),
        ReportColumn("entries", pa.int64(), "entries (of a topic: messages) with this key"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("share", pa.float64(), "entries / all entries of the partition"),
        ReportColumn("top1_share", pa.float64(), "share of the first key; null: no entry has a key"),
        ReportColumn("distinct_keys", pa.int64(), "keys of the partition"),
        ReportColumn("gini", pa.float64(), "Gini coefficient of entries over keys; null: no entry has a key"),
    )
    needs = ("topic", "partition", "key", "size")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary()), ("entries", pa.int64()),
            ("bytes", pa.int64()),
        ]
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.top, int) or self.top < 1:
            raise ConfigError(f"top: expected a number of keys, 1 or more, found {self.top!r}")

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        tables, counts = [self.parts.empty_table()], None
        for batch in batches:
            for stream, rows in streams(batch):
                if counts is None or counts.stream != stream:
                    tables += [] if counts is None else [counts.table(self.parts)]
                    counts = _KeyCounts(stream)
                counts.add(rows)
        return pa.concat_tables([*tables, *([] if counts is None else [counts.table(self.parts)])])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by([*_GROUP, "key"]).aggregate([("entries", "sum"), ("bytes", "sum")])
        order = [("entries_sum", "descending"), ("bytes_sum", "descending"), ("key", "ascending")]
        ranked = sums.sort_by([*((name, "ascending") for name in _GROUP), *order])
        partitions = ranked.select(_GROUP).group_by(_GROUP, use_threads=False).aggregate([([], "count_all")])
        tables, at = [self.schema().empty_table()], 0
        for row in partitions.to_pylist():
            rows = ranked.slice(at, row["count_all"])
            at += len(rows)
            tables.append(self._of_partition(RecordStream(row["topic"], row["partition"]), rows))
        return pa.concat_tables(tables)

    def _of_partition(self, stream: RecordStream, rows: pa.Table) -> pa.Table:
        """Return the rows of one partition. rows: its keys, in the order of their ranks."""
        keyed, without = rows.filter(rows["key"].is_valid()), rows.filter(rows["key"].is_null())
        counts = numbers(keyed["entries_sum"].combine_chunks())
        keyless = sum(without["entries_sum"].to_pylist()), sum(without["bytes_sum"].to_pylist())
        total = int(counts.sum()) + keyless[0]
        ranked = [
            (rank, row["key"][:SHOWN_BYTES].hex(), row["entries_sum"], row["bytes_sum"])
            for rank, row in enumerate(keyed.slice(0, self.top).to_pylist(), 1)
        ]
        head = (int(counts[0]) / total if len(counts) else None, len(counts), _gini(counts))
        result = [
            (*stream[:2], rank, key, entries, size, entries / total, *head)
            for rank, key, entries, size in [*ranked, (None, None, *keyless)]
        ]
        return self.table(dict(zip(self.schema().names, zip(*result, strict=True), strict=True)))


class _KeyCounts:
    """Counts of the keys of one stream. Rows are collected, and counted many at a time."""

    def __init__(self, stream: RecordStream) -> None:
        self.stream = stream
        self._waiting, self._rows = list[pa.Table](), 0
        self._counted: pa.Table | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        columns = {"key": rows["key"], "entries": pa.repeat(pa.scalar(1, pa.int64()), len(rows))}
        self._waiting.append(pa.table({**columns, "bytes": rows["size"].cast(pa.int64())}))
        self._rows += len(rows)
        if self._rows > max(_MANY_ROWS, 0 if self._counted is None else len(self._counted)):
            self._count()

    def table(self, schema: pa.Schema) -> pa.Table:
        self._count()
        assert self._counted is not None, "no rows were added"
        columns: dict[str, object] = {
            name: pa.repeat(pa.scalar(value, schema.field(name).type), len(self._counted))
            for name, value in zip(_GROUP, self.stream[:2], strict=True)
        }
        return pa.table(
            {**columns, **{name: self._counted[name] for name in ("key", "entries", "bytes")}}, schema=schema
        )

    def _count(self) -> None:
        tables = [*([] if self._counted is None else [self._counted]), *self._waiting]
        sums = [("entries", "sum"), ("bytes", "sum")]
        counts = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate(sums)
        self._counted = counts.rename_columns([name.removesuffix("_sum") for name in counts.column_names])
        self._waiting, self._rows = [], 0


def _gini(counts: Numbers) -> float | None:
    """Return the Gini coefficient of counts in descending order; None: there are none."""
    if not len(counts):
        return None
    ranks = np.arange(len(counts), 0, -1, dtype=np.float64)
    return float(2 * (ranks * counts).sum() / (len(counts) * counts.sum()) - (len(counts) + 1) / len(counts))
