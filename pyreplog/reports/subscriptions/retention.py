"""What could be removed, what keeps the rest, and subscriptions that keep it for nobody."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import SegmentSnapshot, Snapshot, SubscriptionSnapshot, TopicSnapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class RetentionForecast(SnapshotReport):
    """By ledger of a topic, or segment of a log, from the snapshot alone."""

    name = "retention_forecast"
    title = "What could be removed"
    definition = (
        "Of each ledger of a topic, or segment of a log: it can be removed when it is closed and every durable "
        "subscription, this package's own included, has its mark, as that is stored, at its end or beyond; then "
        "settings of retention alone keep it. Where one of them could not be asked, and no other needs it, it is not "
        "known whether it can be. Bytes are what its removal frees: of a ledger its values, counted once, "
        "of a segment its records."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("segment", pa.string(), "id of the ledger, or name of the file"),
        ReportColumn("closes_ts", TIME, "when it was closed; null: it goes on, or it is not known"),
        ReportColumn("deletable", pa.bool_(), "no subscription needs it; null: not known, one could not be asked"),
        ReportColumn("bytes_freed", pa.int64(), "by its removal"),
        ReportColumn("pinned_by", pa.string(), "the slowest subscription that needs it; null: none does"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        slowest: dict[str, SubscriptionSnapshot] = {}
        for one in snapshot.subscriptions:
            slowest[one.on] = min(slowest.get(one.on, one), one, key=_place)
        rows = list[tuple[object, ...]]()
        unknown = {one.on for one in snapshot.unknown}
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
    """By topic partition and subscription, from the snapshot alone."""

    name = "dead_subscriptions"
    title = "Subscriptions that nobody seems to read"
    definition = (
        "Durable subscriptions with a backlog whose mark did not move in the window before the moment of the report, "
        "or of which it is not known when it moved: those that stand longest first. A single message that nobody "
        "acknowledges holds a mark, too. Pinned are the closed ledgers with messages behind the mark."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("last_cursor_move_ts", TIME, "when its mark moved, or was set; null: it is not known"),
        ReportColumn("backlog_bytes", pa.int64(), "of the entries that hold its backlog"),
        ReportColumn("pinned_segments", pa.int64(), "closed ledgers that it needs"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        dead = [
            one
            for one in snapshot.readers
            if one.backlog_messages and (one.moved_us is None or one.moved_us < snapshot.since_us)
        ]
        topics = {topic.name: topic for topic in snapshot.topics}
        dead.sort(key=lambda one: (one.moved_us is None, one.moved_us or 0, one.topic, one.partition, one.name))
        return table_of(
            self, [(*_names(one), one.moved_us, one.backlog_bytes, _pinned(one, topics[one.on])) for one in dead]
        )


def _names(one: SubscriptionSnapshot) -> tuple[str, int, str]:
    return one.topic, one.partition, one.name


def _place(one: SubscriptionSnapshot) -> tuple[int, str]:
    return one.mark.offset, one.name


def _needs(one: SubscriptionSnapshot, segment: SegmentSnapshot) -> bool:
    """Whether the segment holds a message that is not below the mark."""
    return one.mark.offset < segment.end


def _pinned(one: SubscriptionSnapshot, topic: TopicSnapshot) -> int:
    return sum(segment.is_closed and _needs(one, segment) for segment in topic.segments)
