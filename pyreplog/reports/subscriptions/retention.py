"""What could be removed, what keeps the rest, and subscriptions that keep it for nobody."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.facts import Facts, SegmentFact, SubscriptionFact, TopicFact
from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, Figure, OfFacts
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class RetentionForecast(OfFacts):
    """By ledger of a topic, or segment of a log, from facts alone."""

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
        Figure("segment", pa.string(), "id of the ledger, or name of the file"),
        Figure("closes_ts", TIME, "when it was closed; null: it goes on, or it is not known"),
        Figure("deletable", pa.bool_(), "no subscription needs it; null: not known, one could not be asked"),
        Figure("bytes_freed", pa.int64(), "by its removal"),
        Figure("pinned_by", pa.string(), "the slowest subscription that needs it; null: none does"),
    )

    def merge(self, partials: pa.Table, facts: Facts) -> pa.Table:
        slowest: dict[str, SubscriptionFact] = {}
        for one in facts.subscriptions:
            slowest[one.on] = min(slowest.get(one.on, one), one, key=_place)
        rows = list[tuple[object, ...]]()
        unknown = {one.on for one in facts.unknown}
        for topic in (*facts.topics, *facts.logs):
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


class DeadSubscriptions(OfFacts):
    """By topic partition and subscription, from facts alone."""

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
        Figure("last_cursor_move_ts", TIME, "when its mark moved, or was set; null: it is not known"),
        Figure("backlog_bytes", pa.int64(), "of the entries that hold its backlog"),
        Figure("pinned_segments", pa.int64(), "closed ledgers that it needs"),
    )

    def merge(self, partials: pa.Table, facts: Facts) -> pa.Table:
        dead = [
            one
            for one in facts.readers
            if one.backlog_messages and (one.moved_us is None or one.moved_us < facts.since_us)
        ]
        topics = {topic.name: topic for topic in facts.topics}
        dead.sort(key=lambda one: (one.moved_us is None, one.moved_us or 0, one.topic, one.partition, one.name))
        return table_of(
            self, [(*_names(one), one.moved_us, one.backlog_bytes, _pinned(one, topics[one.on])) for one in dead]
        )


def _names(one: SubscriptionFact) -> tuple[str, int, str]:
    return one.topic, one.partition, one.name


def _place(one: SubscriptionFact) -> tuple[int, str]:
    return one.mark.offset, one.name


def _needs(one: SubscriptionFact, segment: SegmentFact) -> bool:
    """Whether the segment holds a message that is not below the mark."""
    return one.mark.offset < segment.end


def _pinned(one: SubscriptionFact, topic: TopicFact) -> int:
    return sum(segment.is_closed and _needs(one, segment) for segment in topic.segments)
