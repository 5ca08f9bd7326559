"""How far each subscription is behind."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot, SubscriptionSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class BacklogBySubscription(SnapshotReport):
    """By topic partition and subscription, from the snapshot alone."""

    name = "backlog_by_subscription"
    title = "Backlog of each subscription"
    definition = (
        "Of each durable subscription of each topic partition: the messages from its mark on, up to the end of the "
        "topic, without those acknowledged one by one. Bytes are those of the entries that hold them, as they are "
        "stored; an entry counts in full until all of it is acknowledged. The oldest is the first by offset, its age "
        "that at the moment of the report; lag_offsets counts acknowledged ones beyond the mark, too, as Kafka's LAG."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("backlog_entries", pa.int64(), "messages that are not acknowledged"),
        ReportColumn("backlog_bytes", pa.int64(), "of the entries that hold them"),
        ReportColumn("oldest_offset", pa.int64(), "of the first of them; null: there is none"),
        ReportColumn("oldest_ts", TIME, "when that was appended; null: it is not known"),
        ReportColumn("age_s", pa.float64(), "of the oldest, in seconds"),
        ReportColumn("newest_ts", TIME, "when the last of them was appended"),
        ReportColumn("log_end_offset", pa.int64(), "offset behind the last message of the topic"),
        ReportColumn("lag_offsets", pa.int64(), "from the mark to there"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_row(one, snapshot) for one in snapshot.readers])


def _row(one: SubscriptionSnapshot, snapshot: Snapshot) -> tuple[object, ...]:
    age_s = None if one.oldest_us is None else (snapshot.as_of_us - one.oldest_us) / 1e6
    return (
        one.topic, one.partition, one.name, one.backlog_messages, one.backlog_bytes, one.oldest, one.oldest_us, age_s,
        one.newest_us, one.end, one.end - one.mark.offset,
    )  # fmt: skip
