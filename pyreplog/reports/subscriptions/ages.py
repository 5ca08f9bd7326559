"""How old the backlog of each subscription is."""

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
"""Of an age, in seconds; each belongs to the bucket below it."""


@dataclass(frozen=True)
class BacklogAgeHistogram(Report):
    """as_of_us: the moment that ages are of; that of the snapshot."""

    as_of_us: int = 0

    name = "backlog_age_histogram"
    title = "Age of each subscription's backlog"
    definition = (
        "Of each durable subscription of each topic partition: messages that are not acknowledged, and bytes of their "
        "values, by their age at the moment of the report; each bucket goes up to the age that it is named by, from "
        "that of the one before. What is acknowledged when the backlog is read is not counted, nor what was published "
        "after the moment, nor subscriptions that are deleted by then."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("bucket", pa.string(), "up to which age: " + ", ".join(BUCKETS)),
        ReportColumn("entries", pa.int64(), "messages of that age"),
        ReportColumn("bytes", pa.int64(), "of their values"),
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
        for one in snapshot.readers:
            if one.backlog_messages:
                behind.setdefault(one.name, []).append(one)
        return [_read(name, there) for name, there in behind.items()]

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
                    key, there = (stream.topic or "", stream.partition, number), bucket == number
                    entries[key] += int(there.sum())
                    size[key] += int(sizes[there].sum())
        rows = [(*key, count, size[key]) for key, count in entries.items()]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.parts)
        return pa.table(dict(zip(self.parts.names, columns, strict=True)), schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        if not len(partials):
            return table_of(self, [])
        keys = ["topic", "partition", "subscription", "bucket"]
        summed = partials.group_by(keys).aggregate([("entries", "sum"), ("bytes", "sum")])
        found = summed.sort_by([(key, "ascending") for key in keys])
        return self.table(
            {
                **{name: found[name] for name in keys[:3]},
                "bucket": pa.array(BUCKETS).take(found["bucket"]), "entries": found["entries_sum"],
                "bytes": found["bytes_sum"],
            }
        )  # fmt: skip


def _read(name: str, there: list[SubscriptionSnapshot]) -> ReportRead:
    """The backlog of a subscription, on all topics that have one of that name."""
    options = {
        "topics": names_of(one.on for one in there),
        "subscription": name,
        "endingOffsets": offsets_of({(one.topic, one.partition): one.end for one in there}),
        "failOnDataLoss": "false",  # deleted meanwhile: one subscription less, and no error of all
    }
    return ReportRead(options, {"subscription": name})
