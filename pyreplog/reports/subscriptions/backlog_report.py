"""The backlog of each subscription."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot, SubscriptionSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class BacklogBySubscription(SnapshotReport):
    """Backlog by topic partition and subscription, from the snapshot alone."""

    name = "backlog_by_subscription"
    title = "Backlog of each subscription"
    definition = (
        "For each durable subscription of each topic partition: the messages from its mark to the end of the topic "
        "that are not acknowledged one by one. Bytes are those of the stored entries that hold them; an entry counts "
        "in full until all of its messages are acknowledged. The oldest message is the first by offset; its age is "
        "taken at the moment of the report. As Kafka's LAG, lag_offsets also counts acknowledged messages after the "
        "mark."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("backlog_entries", pa.int64(), "messages that are not acknowledged"),
        ReportColumn("backlog_bytes", pa.int64(), "bytes of the entries that hold them"),
        ReportColumn("oldest_offset", pa.int64(), "offset of the first of them; null: the backlog is empty"),
        ReportColumn("oldest_ts", TIME, "append time of that message; null: not known"),
        ReportColumn("age_s", pa.float64(), "age of the oldest message, in seconds"),
        ReportColumn("newest_ts", TIME, "append time of the last of them"),
        ReportColumn("log_end_offset", pa.int64(), "offset after the last message of the topic"),
        ReportColumn("lag_offsets", pa.int64(), "offsets from the mark to log_end_offset"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_row(subscription, snapshot) for subscription in snapshot.readers])


def _row(subscription: SubscriptionSnapshot, snapshot: Snapshot) -> tuple[object, ...]:
    age_s = None if subscription.oldest_us is None else (snapshot.as_of_us - subscription.oldest_us) / 1e6
    return (
        subscription.topic, subscription.partition, subscription.name, subscription.backlog_messages,
        subscription.backlog_bytes, subscription.oldest, subscription.oldest_us, age_s, subscription.newest_us,
        subscription.end, subscription.end - subscription.mark.offset,
    )  # fmt: skip
