"""Data that retention could remove, subscriptions that prevent it, and subscriptions that seem to be unused."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import SegmentSnapshot, Snapshot, SubscriptionSnapshot, TopicSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class RetentionForecast(SnapshotReport):
    """Removable ledgers of topics and segments of logs, from the snapshot alone."""

    name = "retention_forecast"
    title = "What could be removed"
    definition = (
        "For each ledger of a topic, or segment of a log: it can be removed when it is closed, and the stored mark of "
        "every durable subscription, this package's own included, is at its end or after it; then only retention "
        "settings keep it. If the state of a subscription is unknown, and no other one needs the ledger, it is not "
        "known whether it can be removed. Bytes are those that the removal frees: the values of a ledger, counted "
        "once, or the records of a segment."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("segment", pa.string(), "id of the ledger, or name of the file"),
        ReportColumn("closes_ts", TIME, "when it was closed; null: it is open, or not known"),
        ReportColumn(
            "deletable", pa.bool_(), "no subscription needs it; null: not known, because the state of one is unknown"
        ),
        ReportColumn("bytes_freed", pa.int64(), "bytes that its removal frees"),
        ReportColumn("pinned_by", pa.string(), "the slowest subscription that needs it; null: none does"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        slowest: dict[str, SubscriptionSnapshot] = {}
        for subscription in snapshot.subscriptions:
            slowest[subscription.on] = min(slowest.get(subscription.on, subscription), subscription, key=_place)
        rows = list[tuple[object, ...]]()
        unknown = {state.on for state in snapshot.unknown}
        for topic in (*snapshot.topics, *snapshot.logs):
            last = slowest.get(topic.name)
            for segment in topic.segments:
                pinned_by = last.name if last is not None and _needs(last, segment) else None
                deletable = segment.is_closed and pinned_by is None
                rows.append(
                    (
                        topic.topic, topic.partition, segment.name, segment.closed_us,
                        None if deletable and topic.name in unknown else deletable, segment.size, pinned_by,
                    )
                )  # fmt: skip
        return table_of(self, rows)


class DeadSubscriptions(SnapshotReport):
    """Idle subscriptions by topic partition, from the snapshot alone."""

    name = "dead_subscriptions"
    title = "Subscriptions that seem to have no reader"
    definition = (
        "Durable subscriptions with a backlog whose mark did not move in the window before the moment of the report, "
        "or for which it is not known when the mark moved; the longest idle ones come first. A single message that "
        "no consumer acknowledges also holds a mark. Pinned are the closed ledgers with messages after the mark."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("last_cursor_move_ts", TIME, "when its mark last moved, or was set; null: not known"),
        ReportColumn("backlog_bytes", pa.int64(), "bytes of the entries that hold its backlog"),
        ReportColumn("pinned_segments", pa.int64(), "closed ledgers that it needs"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        dead = [
            each
            for each in snapshot.readers
            if each.backlog_messages and (each.moved_us is None or each.moved_us < snapshot.since_us)
        ]
        topics = {topic.name: topic for topic in snapshot.topics}
        dead.sort(key=lambda each: (each.moved_us is None, each.moved_us or 0, each.topic, each.partition, each.name))
        return table_of(
            self, [(*_names(each), each.moved_us, each.backlog_bytes, _pinned(each, topics[each.on])) for each in dead]
        )


def _names(subscription: SubscriptionSnapshot) -> tuple[str, int, str]:
    return subscription.topic, subscription.partition, subscription.name


def _place(subscription: SubscriptionSnapshot) -> tuple[int, str]:
    return subscription.mark.offset, subscription.name


def _needs(subscription: SubscriptionSnapshot, segment: SegmentSnapshot) -> bool:
    """Return whether a segment holds a message at or after the mark of a subscription."""
    return subscription.mark.offset < segment.end


def _pinned(subscription: SubscriptionSnapshot, topic: TopicSnapshot) -> int:
    return sum(segment.is_closed and _needs(subscription, segment) for segment in topic.segments)
