"""Whether subscriptions catch up with their backlogs, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, streams
from pyreplog.reports.report import Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot, SubscriptionSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, names_of, table_of
from pyreplog.tables.options import ReadOptions
from pyreplog.topic.model.trend import outlook

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DrainEstimate(Report):
    """Rates by topic partition and subscription. The messages that were appended in the window are read."""

    name = "drain_estimate"
    title = "How fast backlogs shrink"
    definition = (
        "For each durable subscription of each topic partition, over the window W before the moment of the report: "
        "messages appended per second, and messages that the mark passed per second. The position of the mark at the "
        "start of W comes from stored records, and is unknown if these do not go back so far. The backlog is gone "
        "after backlog / (out - in) seconds. Status: done, the backlog is empty; stalled, the mark did not move; "
        "growing, the mark was not faster than new messages; otherwise draining; null, not known."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("backlog_entries", pa.int64(), "messages that are not acknowledged"),
        ReportColumn("in_rate", pa.float64(), "messages appended per second"),
        ReportColumn("out_rate", pa.float64(), "messages that the mark passed per second; null: not known"),
        ReportColumn(
            "drain_s", pa.float64(), "seconds until the backlog is empty; null: never at these rates, or not known"
        ),
        ReportColumn("status", pa.string(), "done, stalled, growing, draining; null: not known"),
    )
    needs = ("topic", "partition")
    parts = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("entries", pa.int64())])

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        names = names_of(subscription.on for subscription in snapshot.readers)
        times = {"startingTimestamp": _iso(snapshot.since_us), "endingTimestamp": _iso(snapshot.as_of_us)}
        return [ReportRead({"topics": names, **times, "failOnDataLoss": "false"})] if snapshot.readers else []

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        entries = Counter[tuple[str, int]]()
        for batch in batches:
            for stream, rows in streams(batch):
                entries[stream.topic or "", stream.partition] += len(rows)
        rows = [(*key, count) for key, count in entries.items()]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.parts)
        return pa.table(dict(zip(self.parts.names, columns, strict=True)), schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        appended = Counter[tuple[str, int]]()
        for row in partials.to_pylist():
            appended[row["topic"], row["partition"]] += row["entries"]
        return table_of(self, [_row(each, appended[each.topic, each.partition], snapshot) for each in snapshot.readers])


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def _row(subscription: SubscriptionSnapshot, appended: int, snapshot: Snapshot) -> tuple[object, ...]:
    before = subscription.mark_at(snapshot.since_us)
    in_rate = appended / (snapshot.window_ms / 1000)
    out_rate = None if before is None else (subscription.mark.offset - before) / (snapshot.window_ms / 1000)
    drain_s, status = outlook(subscription.backlog_messages, in_rate, out_rate)
    return (
        subscription.topic,
        subscription.partition,
        subscription.name,
        subscription.backlog_messages,
        in_rate,
        out_rate,
        drain_s,
        status,
    )
