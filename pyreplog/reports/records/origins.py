"""Where the messages of topics were published, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.records.rates import MINUTE_US
from pyreplog.reports.records.streams import PARTITION, TOPIC, OnRecords, RecordStream, numbers, streams
from pyreplog.reports.report import TIME, ReportColumn
from pyreplog.reports.snapshot import Snapshot

_MINUTE = ["topic", "partition", "minute"]
_GROUP = [*_MINUTE, "originCluster"]


class _Amounts(NamedTuple):
    """Amounts of messages: their number, bytes of their values, lowest and highest offset at the origin."""

    entries: int
    bytes: int
    first: int | None
    last: int | None


_Sums = dict[tuple[RecordStream, int, str | None], _Amounts]
"""By stream, minute and cluster."""


class OriginsByMinute(OnRecords):
    """Messages by partition, minute and the cluster where they were published. Memory grows with these."""

    name = "origins"
    title = "Messages of each cluster of origin per minute"
    definition = (
        "For each minute (UTC) in which messages were appended, and each cluster where such messages were published: "
        "their number, bytes of their values, their share of the messages that the topic partition got in that "
        "minute, and their offsets there. Minutes are those in which messages were appended here, not where they were "
        "published."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("minute", TIME, "start of the minute"),
        ReportColumn("originCluster", pa.string(), "cluster where they were published; null: here"),
        ReportColumn("cluster", pa.string(), "its name, if it was added here, otherwise as originCluster; null: here"),
        ReportColumn("entries", pa.int64(), "messages appended in it"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("share", pa.float64(), "entries / all messages of the topic partition in the minute"),
        ReportColumn("first_origin_offset", pa.int64(), "lowest offset of them where they were published; null: here"),
        ReportColumn("last_origin_offset", pa.int64(), "highest offset of them where they were published; null: here"),
    )
    needs = ("topic", "partition", "timestamp", "size", "originCluster", "originOffset")
    needs_snapshot = True
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("minute", TIME), ("originCluster", pa.string()),
            ("entries", pa.int64()), ("bytes", pa.int64()), ("first", pa.int64()), ("last", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        sums: _Sums = {}
        for batch in batches:
            for stream, rows in streams(batch):
                _add(sums, stream, rows)
        sum_rows = [
            (stream.topic, stream.partition, minute * MINUTE_US, cluster, *amounts)
            for (stream, minute, cluster), amounts in sums.items()
        ]
        columns = zip(*sum_rows, strict=True) if sum_rows else [[] for _ in self.parts]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, self.parts, strict=True)], schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by(_GROUP).aggregate(
            [("entries", "sum"), ("bytes", "sum"), ("first", "min"), ("last", "max")]
        )
        sums = sums.sort_by([(name, "ascending") for name in _GROUP])
        totals: dict[tuple[object, ...], int] = {}
        keys = [*zip(*(sums[name].to_pylist() for name in _MINUTE), strict=True)]
        entries = sums["entries_sum"].to_pylist()
        for key, count in zip(keys, entries, strict=True):
            totals[key] = totals.get(key, 0) + count
        shares = [count / totals[key] for key, count in zip(keys, entries, strict=True)]
        known = dict(snapshot.clusters)
        clusters = [cluster and known.get(cluster, cluster) for cluster in sums["originCluster"].to_pylist()]
        return self.table(
            {
                **{name: sums[name] for name in _GROUP}, "cluster": pa.array(clusters, pa.string()),
                "entries": sums["entries_sum"], "bytes": sums["bytes_sum"], "share": pa.array(shares, pa.float64()),
                "first_origin_offset": sums["first_min"], "last_origin_offset": sums["last_max"],
            }
        )  # fmt: skip


def _add(sums: _Sums, stream: RecordStream, rows: pa.RecordBatch) -> None:
    columns = {
        "minute": pa.array(numbers(rows["timestamp"]) // MINUTE_US), "cluster": rows["originCluster"],
        "size": pc.cast(rows["size"], pa.int64()), "offset": rows["originOffset"],
    }  # fmt: skip
    groups = pa.table(columns).group_by(["minute", "cluster"], use_threads=False)
    amounts = groups.aggregate([("size", "count"), ("size", "sum"), ("offset", "min"), ("offset", "max")])
    for row in amounts.to_pylist():
        key = stream, row["minute"], row["cluster"]
        more = _Amounts(row["size_count"], row["size_sum"], row["offset_min"], row["offset_max"])
        before = sums.get(key)
        sums[key] = more if before is None else _added(before, more)


def _added(before: _Amounts, more: _Amounts) -> _Amounts:
    """Return the amounts of both. All messages of a key have offsets at the origin, or none has."""
    return _Amounts(
        before.entries + more.entries,
        before.bytes + more.bytes,
        None if before.first is None or more.first is None else min(before.first, more.first),
        None if before.last is None or more.last is None else max(before.last, more.last),
    )
