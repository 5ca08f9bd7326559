"""Where the messages of topics were published, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.records.rates import MINUTE_US
from pyreplog.reports.records.streams import PARTITION, TOPIC, OnRecords, RecordStream, numbers, streams
from pyreplog.reports.report import TIME, ReportColumn
from pyreplog.reports.snapshot import Snapshot

_MINUTE = ["topic", "partition", "minute"]
_GROUP = [*_MINUTE, "originCluster"]

_Sums = dict[tuple[RecordStream, int, str | None], tuple[int, int]]
"""By stream, minute and cluster: entries, bytes."""


class OriginsByMinute(OnRecords):
    """Messages by partition, minute and the cluster where they were published. Memory grows with these."""

    name = "origins"
    title = "Messages of each cluster of origin per minute"
    definition = (
        "For each minute (UTC) in which messages were appended, and each cluster where such messages were published: "
        "their number, bytes of their values, and their share of the messages that the topic partition got in that "
        "minute. Minutes are those in which messages were appended here, not where they were published."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("minute", TIME, "start of the minute"),
        ReportColumn("originCluster", pa.string(), "cluster where they were published; null: here"),
        ReportColumn("entries", pa.int64(), "messages appended in it"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("share", pa.float64(), "entries / all messages of the topic partition in the minute"),
    )
    needs = ("topic", "partition", "timestamp", "size", "originCluster")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("minute", TIME), ("originCluster", pa.string()),
            ("entries", pa.int64()), ("bytes", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        sums: _Sums = {}
        for batch in batches:
            for stream, rows in streams(batch):
                _add(sums, stream, rows)
        sum_rows = [
            (stream.topic, stream.partition, minute * MINUTE_US, cluster, *figures)
            for (stream, minute, cluster), figures in sums.items()
        ]
        columns = zip(*sum_rows, strict=True) if sum_rows else [[] for _ in self.parts]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, self.parts, strict=True)], schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by(_GROUP).aggregate([("entries", "sum"), ("bytes", "sum")])
        sums = sums.sort_by([(name, "ascending") for name in _GROUP])
        totals: dict[tuple[object, ...], int] = {}
        keys = [*zip(*(sums[name].to_pylist() for name in _MINUTE), strict=True)]
        entries = sums["entries_sum"].to_pylist()
        for key, count in zip(keys, entries, strict=True):
            totals[key] = totals.get(key, 0) + count
        shares = [count / totals[key] for key, count in zip(keys, entries, strict=True)]
        return self.table(
            {
                **{name: sums[name] for name in _GROUP},
                "entries": sums["entries_sum"], "bytes": sums["bytes_sum"], "share": pa.array(shares, pa.float64()),
            }
        )  # fmt: skip


def _add(sums: _Sums, stream: RecordStream, rows: pa.RecordBatch) -> None:
    columns = {
        "minute": pa.array(numbers(rows["timestamp"]) // MINUTE_US), "cluster": rows["originCluster"],
        "size": pc.cast(rows["size"], pa.int64()),
    }  # fmt: skip
    groups = pa.table(columns).group_by(["minute", "cluster"], use_threads=False)
    for row in groups.aggregate([("size", "count"), ("size", "sum")]).to_pylist():
        key = stream, row["minute"], row["cluster"]
        before = sums.get(key, (0, 0))
        sums[key] = before[0] + row["size_count"], before[1] + row["size_sum"]
