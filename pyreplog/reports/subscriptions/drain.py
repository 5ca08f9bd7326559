"""Whether subscriptions work their backlogs off, and when they will have."""

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DrainEstimate(Report):
    """By topic partition and subscription; what was appended in the window is read."""

    name = "drain_estimate"
    title = "How fast backlogs are worked off"
    definition = (
        "Of each durable subscription of each topic partition, over the window W before the moment of the report: "
        "messages appended, and how far the mark moved, per second; where the mark stood when W began is taken from "
        "what was stored of it, and unknown if that does not go back so far. The backlog is gone after backlog / (out "
        "- in) seconds. Status: done, there is none; stalled, the mark did not move; growing, not faster than messages "
        "came; else draining; null, not known."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("backlog_entries", pa.int64(), "messages that are not acknowledged"),
        ReportColumn("in_rate", pa.float64(), "messages appended per second"),
        ReportColumn("out_rate", pa.float64(), "messages that the mark passed per second; null: it is not known"),
        ReportColumn(
            "drain_s", pa.float64(), "seconds until there is no backlog; null: never at these rates, or not known"
        ),
        ReportColumn("status", pa.string(), "done, stalled, growing, draining; null: it is not known"),
    )
    needs = ("topic", "partition")
    parts = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("entries", pa.int64())])

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        names = names_of(one.on for one in snapshot.readers)
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
        return table_of(self, [_row(one, appended[one.topic, one.partition], snapshot) for one in snapshot.readers])


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def _row(one: SubscriptionSnapshot, appended: int, snapshot: Snapshot) -> tuple[object, ...]:
    before = one.mark_at(snapshot.since_us)
    in_rate = appended / snapshot.window_s
    out_rate = None if before is None else (one.mark.offset - before) / snapshot.window_s
    drain_s, status = _outlook(one.backlog_messages, in_rate, out_rate)
    return one.topic, one.partition, one.name, one.backlog_messages, in_rate, out_rate, drain_s, status


def _outlook(backlog: int, in_rate: float, out_rate: float | None) -> tuple[float | None, str | None]:
    if backlog == 0:
        return 0.0, "done"
    if out_rate is None:
        return None, None
    if out_rate == 0:
        return None, "stalled"
    if out_rate <= in_rate:
        return None, "growing"
    return backlog / (out_rate - in_rate), "draining"
