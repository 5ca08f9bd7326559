"""Which keys most records have."""

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
"""Of a key."""

_MANY_ROWS = 1 << 20
"""So many records are gathered before they are counted."""

_GROUP = ["topic", "partition"]


@dataclass(frozen=True)
class KeySkew(OnRecords):
    """top: so many keys of each partition. Keys are counted exactly, so memory grows with how many there are."""

    top: int = 20

    name = "key_skew"
    title = "Keys that most records have"
    definition = (
        "Of each partition, the keys that most records have: how many, bytes of their values, and their share of all "
        "its records, with and without a key; and one row without a key. In every row, of the partition: the share of "
        "the first key, how many keys there are, and how unevenly records with a key are spread over them, as Gini's "
        "coefficient (0: evenly; towards 1: all on one)."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("rank", pa.int64(), "1: most entries, of equals most bytes; null: no key"),
        ReportColumn("key", pa.string(), "first 64 bytes, in hex; null: the entries without one"),
        ReportColumn("entries", pa.int64(), "entries, of a topic messages, of this key"),
        ReportColumn("bytes", pa.int64(), "of their values"),
        ReportColumn("share", pa.float64(), "entries / all entries of the partition"),
        ReportColumn("top1_share", pa.float64(), "share of the first key; null: there are none"),
        ReportColumn("distinct_keys", pa.int64(), "keys of the partition"),
        ReportColumn("gini", pa.float64(), "of the entries of each key; null: there are none"),
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
        made, counts = [self.parts.empty_table()], None
        for batch in batches:
            for stream, rows in streams(batch):
                if counts is None or counts.stream != stream:
                    made += [] if counts is None else [counts.table(self.parts)]
                    counts = _Counts(stream)
                counts.add(rows)
        return pa.concat_tables([*made, *([] if counts is None else [counts.table(self.parts)])])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by([*_GROUP, "key"]).aggregate([("entries", "sum"), ("bytes", "sum")])
        order = [("entries_sum", "descending"), ("bytes_sum", "descending"), ("key", "ascending")]
        found = sums.sort_by([*((name, "ascending") for name in _GROUP), *order])
        streams_found = found.select(_GROUP).group_by(_GROUP, use_threads=False).aggregate([([], "count_all")])
        made, at = [self.schema().empty_table()], 0
        for row in streams_found.to_pylist():
            rows = found.slice(at, row["count_all"])
            at += len(rows)
            made.append(self._of_partition(RecordStream(row["topic"], row["partition"]), rows))
        return pa.concat_tables(made)

    def _of_partition(self, stream: RecordStream, rows: pa.Table) -> pa.Table:
        """rows: its keys, in the order of their ranks."""
        keyed, without = rows.filter(rows["key"].is_valid()), rows.filter(rows["key"].is_null())
        counts = numbers(keyed["entries_sum"].combine_chunks())
        nothing = sum(without["entries_sum"].to_pylist()), sum(without["bytes_sum"].to_pylist())
        total = int(counts.sum()) + nothing[0]
        ranked = [
            (rank, row["key"][:SHOWN_BYTES].hex(), row["entries_sum"], row["bytes_sum"])
            for rank, row in enumerate(keyed.slice(0, self.top).to_pylist(), 1)
        ]
        head = (int(counts[0]) / total if len(counts) else None, len(counts), _gini(counts))
        made = [
            (*stream[:2], rank, key, entries, size, entries / total, *head)
            for rank, key, entries, size in [*ranked, (None, None, *nothing)]
        ]
        return self.table(dict(zip(self.schema().names, zip(*made, strict=True), strict=True)))


class _Counts:
    """Keys of one stream. What waits is counted when there is much of it."""

    def __init__(self, stream: RecordStream) -> None:
        self.stream = stream
        self._waiting, self._rows = list[pa.Table](), 0
        self._made: pa.Table | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        columns = {"key": rows["key"], "entries": pa.repeat(pa.scalar(1, pa.int64()), len(rows))}
        self._waiting.append(pa.table({**columns, "bytes": rows["size"].cast(pa.int64())}))
        self._rows += len(rows)
        if self._rows > max(_MANY_ROWS, 0 if self._made is None else len(self._made)):
            self._count()

    def table(self, schema: pa.Schema) -> pa.Table:
        self._count()
        assert self._made is not None, "a stream has rows"
        columns: dict[str, object] = {
            name: pa.repeat(pa.scalar(value, schema.field(name).type), len(self._made))
            for name, value in zip(_GROUP, self.stream[:2], strict=True)
        }
        return pa.table({**columns, **{name: self._made[name] for name in ("key", "entries", "bytes")}}, schema=schema)

    def _count(self) -> None:
        tables = [*([] if self._made is None else [self._made]), *self._waiting]
        sums = [("entries", "sum"), ("bytes", "sum")]
        found = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate(sums)
        self._made = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
        self._waiting, self._rows = [], 0


def _gini(counts: Numbers) -> float | None:
    """Of all counts, in descending order."""
    if not len(counts):
        return None
    ranks = np.arange(len(counts), 0, -1, dtype=np.float64)
    return float(2 * (ranks * counts).sum() / (len(counts) * counts.sum()) - (len(counts) + 1) / len(counts))
