"""The age of each subscription's backlog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, numbers, streams
from pyreplog.reports.report import Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot, SubscriptionSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, names_of, offsets_of, table_of
from pyreplog.tables.options import ReadOptions

BUCKETS = ("<=1m", "5m", "15m", "1h", "6h", "1d", "7d", ">7d")
_EDGES_S = (60, 300, 900, 3600, 21_600, 86_400, 604_800)
"""Upper bounds of the buckets, in seconds; each belongs to the bucket that it ends."""


@dataclass(frozen=True)
class BacklogAgeHistogram(Report):
    """Backlog by age. as_of_us: the moment of the snapshot, from which ages are counted."""

    as_of_us: int = 0

    name = "backlog_age_histogram"
    title = "Age of each subscription's backlog"
    definition = (
        "For each durable subscription of each topic partition: the messages that are not acknowledged, and the bytes "
        "of their values, by their age at the moment of the report. A bucket is named by its highest age, and begins "
        "after that of the bucket before it. Not counted are messages that are acknowledged before the backlog is "
        "read, messages published after the moment, and subscriptions deleted by then."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("bucket", pa.string(), "highest age in the bucket: " + ", ".join(BUCKETS)),
        ReportColumn("entries", pa.int64(), "messages of that age"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
    )
    needs = ("topic", "partition", "timestamp", "size")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("bucket", pa.int32()), ("entries", pa.int64()),
            ("bytes", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        behind: dict[str, list[SubscriptionSnapshot]] = {}
        for subscription in snapshot.readers:
            if subscription.backlog_messages:
                behind.setdefault(subscription.name, []).append(subscription)
        return [_read(name, subscriptions) for name, subscriptions in behind.items()]

    def at(self, snapshot: Snapshot) -> Report:
        return replace(self, as_of_us=snapshot.as_of_us)

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        entries, size = Counter[tuple[str, int, int]](), Counter[tuple[str, int, int]]()
        edges_us = np.array(_EDGES_S, np.int64) * 1_000_000
        for batch in batches:
            for stream, rows in streams(batch):
                bucket = np.searchsorted(edges_us, self.as_of_us - numbers(rows["timestamp"]), side="left")
                sizes = numbers(rows["size"])
                for number in np.unique(bucket).tolist():
                    key, in_bucket = (stream.topic or "", stream.partition, number), bucket == number
                    entries[key] += int(in_bucket.sum())
                    size[key] += int(sizes[in_bucket].sum())
        rows = [(*key, count, size[key]) for key, count in entries.items()]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.parts)
        return pa.table(dict(zip(self.parts.names, columns, strict=True)), schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        if not len(partials):
            return table_of(self, [])
        keys = ["topic", "partition", "subscription", "bucket"]
        summed = partials.group_by(keys).aggregate([("entries", "sum"), ("bytes", "sum")])
        rows = summed.sort_by([(key, "ascending") for key in keys])
        return self.table(
            {
                **{name: rows[name] for name in keys[:3]},
                "bucket": pa.array(BUCKETS).take(rows["bucket"]), "entries": rows["entries_sum"],
                "bytes": rows["bytes_sum"],
            }
        )  # fmt: skip


def _read(name: str, subscriptions: list[SubscriptionSnapshot]) -> ReportRead:
    """Return the read of a subscription's backlog, on all topics that have a subscription of that name."""
    options = {
        "topics": names_of(subscription.on for subscription in subscriptions),
        "subscription": name,
        "endingOffsets": offsets_of({(each.topic, each.partition): each.end for each in subscriptions}),
        "failOnDataLoss": "false",  # a subscription that was deleted meanwhile is left out, and is no error
    }
    return ReportRead(options, {"subscription": name})
