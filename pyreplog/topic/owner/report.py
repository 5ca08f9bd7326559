"""Statistics of a topic, collected from its parts, and the metrics of all topics of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, Literal, NamedTuple, TypeVar

from pyreplog._native.system.histogram import Histogram
from pyreplog.errors import ReplogError
from pyreplog.metrics import Labels, Metric
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.chain import ChainLedger
from pyreplog.topic.model.cursor import Backlog, Cursor
from pyreplog.topic.model.dispatch.dispatcher import ConsumerStatus, Dispatcher, DispatchStatus
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    RateMeter,
    SubscriptionStats,
    TopicStats,
)
from pyreplog.topic.model.trend import Sample, Trend, trend
from pyreplog.topic.owner.dedup_cursor import DedupCursor
from pyreplog.topic.owner.maintenance import TopicMaintenance
from pyreplog.topic.owner.subscription import ConsumerCounters, Subscription
from pyreplog.topic.owner.subscriptions import Subscriptions
from pyreplog.topic.owner.system_cursors import SystemCursors, SystemCursorStatus
from pyreplog.topic.owner.topic_context import TopicContext

T = TypeVar("T")


class _Column(NamedTuple, Generic[T]):
    """A metric of each topic or subscription. read: returns its value; None: no sample."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[T], float | None]


_TOPIC: tuple[_Column[TopicStats], ...] = (
    _Column(
        "published_messages", "counter", "Messages that were published and confirmed.",
        lambda t: t.published_messages,
    ),
    _Column("published_entries", "counter", "Entries that hold the published messages.", lambda t: t.published_entries),
    _Column("published_bytes", "counter", "Value bytes of the published entries.", lambda t: t.published_bytes),
    _Column("publish_errors", "counter", "Messages whose publishing failed.", lambda t: t.publish_errors),
    _Column(
        "duplicates", "counter", "Messages that were dropped as duplicates, because they had been published before.",
        lambda t: t.duplicates,
    ),
    _Column(
        "pending_entries", "gauge", "Entries that are published and not confirmed yet.",
        lambda t: t.pending_entries,
    ),
    _Column(
        "pending_bytes", "gauge", "Value bytes of the entries that are not confirmed yet.",
        lambda t: t.pending_bytes,
    ),
    _Column(
        "storage_bytes", "gauge", "Value bytes of the entries that the topic stores, of one copy.",
        lambda t: t.storage_bytes,
    ),
    _Column(
        "backlog_bytes", "gauge", "Value bytes of the entries after the mark of the slowest durable subscription.",
        lambda t: t.backlog_bytes,
    ),
    _Column("producers", "gauge", "Producers whose sequence numbers the topic knows.", lambda t: t.producers),
    _Column("subscriptions", "gauge", "Subscriptions of the topic.", lambda t: len(t.subscriptions)),
    _Column(
        "publishing_stopped", "gauge", "1 if publishers wait or are refused, because a quota is exceeded.",
        lambda t: t.publishing != "open",
    ),
    _Column("quota_bytes", "gauge", "Backlog quota in bytes; missing if there is none.", lambda t: t.quota_bytes),
    _Column(
        "quota_seconds", "gauge", "Backlog quota for the age of the oldest message; missing if there is none.",
        lambda t: None if t.quota_ms is None else t.quota_ms / 1000,
    ),
)  # fmt: skip

_SUBSCRIPTION: tuple[_Column[SubscriptionStats], ...] = (
    _Column(
        "lag_seconds", "gauge",
        "Age of the oldest message that is not acknowledged, with or without connected consumers; 0 if there is none, "
        "missing if it could not be read.",
        lambda s: s.lag_s,
    ),
    _Column("backlog_messages", "gauge", "Messages that are not acknowledged.", lambda s: s.backlog_messages),
    _Column(
        "backlog_entries", "gauge", "Entries with messages that are not acknowledged.",
        lambda s: s.backlog_entries,
    ),
    _Column(
        "backlog_bytes", "gauge", "Value bytes of the entries with messages that are not acknowledged.",
        lambda s: s.backlog_bytes,
    ),
    _Column(
        "unacked_messages", "gauge", "Messages that were sent to consumers and are not acknowledged.",
        lambda s: s.unacked,
    ),
    _Column(
        "delayed_messages", "gauge",
        "Messages that wait for their delivery time; missing if no consumer is connected and the backlog is too long "
        "to be read.",
        lambda s: s.delayed,
    ),
    _Column("replay_messages", "gauge", "Messages that wait to be sent again.", lambda s: s.replay),
    _Column(
        "permits", "gauge", "Messages for which consumers have room now.",
        lambda s: sum(consumer.permits for consumer in s.consumers),
    ),
    _Column("consumers", "gauge", "Consumers that are connected.", lambda s: len(s.consumers)),
    _Column("blocked", "gauge", "1 if no message is sent until consumers acknowledge some.", lambda s: s.blocked),
    _Column(
        "stalled", "gauge", "1 if the mark of the subscription does not move although messages wait.",
        lambda s: s.stalled,
    ),
    _Column("ack_ranges", "gauge", "Ranges of messages that are acknowledged after the mark.", lambda s: s.ack_ranges),
    _Column(
        "delivered_messages", "counter", "Messages sent to consumers, including those sent again.",
        lambda s: s.delivered_messages,
    ),
    _Column(
        "delivered_bytes", "counter", "Bytes of the messages sent to consumers, including those sent again.",
        lambda s: s.delivered_bytes,
    ),
    _Column("redelivered_messages", "counter", "Messages sent to consumers again.", lambda s: s.redelivered_messages),
    _Column("acked_messages", "counter", "Messages acknowledged by consumers.", lambda s: s.acked_messages),
    _Column(
        "expired_messages", "counter", "Messages that expired: acknowledged because of their age.",
        lambda s: s.expired_messages,
    ),
    _Column(
        "evicted_messages", "counter", "Messages that were evicted: acknowledged because a quota was exceeded.",
        lambda s: s.evicted_messages,
    ),
    _Column(
        "dead_lettered_messages", "counter", "Messages moved to the dead-letter topic.",
        lambda s: s.dead_lettered_messages,
    ),
    _Column(
        "persists", "counter", "Times that the acknowledgements of the subscription were stored.",
        lambda s: s.persists,
    ),
    _Column("last_acked_timestamp_seconds", "gauge", "Time of the last acknowledgement; missing if there was none.",
        lambda s: _seconds(s.last_acked_us)),
    _Column("last_delivered_timestamp_seconds", "gauge",
        "Time at which a message was last sent to a consumer; missing if none was.",
        lambda s: _seconds(s.last_delivered_us)),
    _Column("last_mark_timestamp_seconds", "gauge", "Time at which the mark last moved; missing if it never did.",
        lambda s: _seconds(s.last_mark_us)),
)  # fmt: skip


def topic_metrics(topics: Iterable[TopicStats]) -> list[Metric]:
    """Return the metrics of all topics that this process owns, each once.

    Labels: topic, and for subscriptions also subscription.
    """
    topics = list(topics)
    of_topics = [({"topic": topic.name}, topic) for topic in topics]
    of_subscriptions = [
        ({"topic": topic.name, "subscription": sub.name}, sub) for topic in topics for sub in topic.subscriptions
    ]
    return [
        *(_metric("pyreplog_topic_", column, of_topics) for column in _TOPIC),
        *_quotas(topics),
        *(_metric("pyreplog_subscription_", column, of_subscriptions) for column in _SUBSCRIPTION),
    ]


def _metric(prefix: str, column: _Column[T], rows: Iterable[tuple[Labels, T]]) -> Metric:
    values = ((labels, column.read(row)) for labels, row in rows)
    samples: list[tuple[Labels, float | Histogram]] = [
        (labels, float(value)) for labels, value in values if value is not None
    ]
    return Metric(prefix + column.name, column.kind, column.help, samples)


def _quotas(topics: Iterable[TopicStats]) -> list[Metric]:
    exceeded = Metric("pyreplog_topic_quota_exceeded", "gauge", "1 if the backlog exceeds this quota.", [])
    evictions = Metric(
        "pyreplog_topic_quota_evictions",
        "counter",
        "Times that messages of a subscription were evicted because of this quota.",
        [],
    )
    for topic in topics:
        for quota, limit in (("bytes", topic.quota_bytes), ("age", topic.quota_ms)):
            labels = {"topic": topic.name, "quota": quota}
            evictions.samples.append((labels, float(topic.quota_evictions.get(quota, 0))))
            if limit is not None:
                exceeded.samples.append((labels, float(quota in topic.quota_exceeded)))
    return [exceeded, evictions]


def _seconds(us: int) -> float | None:
    """Return a time in seconds; None: it never happened."""
    return us / 1e6 if us else None


class TopicReport:
    """The statistics of one topic. Any thread. Rates are those since the last call of `stats`."""

    def __init__(
        self,
        context: TopicContext,
        subscriptions: Subscriptions,
        system_cursors: SystemCursors,
        maintenance: TopicMaintenance,
        dedup: DedupCursor | None,
        *,
        address: str,
    ) -> None:
        """Create the report.

        dedup: None: the topic does not deduplicate. address: where this process serves the topic, or "".
        """
        self._context, self._subscriptions, self._system_cursors = context, subscriptions, system_cursors
        self._maintenance, self._dedup, self._address = maintenance, dedup, address
        self._rates = RateMeter()

    def stats(self, publisher: Publisher) -> TopicStats:
        """Return the statistics of the topic.

        Reads one entry of each subscription whose oldest message is not known yet; for each one without consumers it
        reads a short backlog whose delayed messages were not counted yet.
        """
        managed, config, now_us = self._context.managed, self._context.managed.config, self._context.clock.now_us()
        counts, chain = publisher.counts, managed.stats()
        subscriptions = tuple(_subscription(self._context, sub, now_us) for sub in self._subscriptions.all())
        rates = self._rates.measure(
            self._context.clock.monotonic_us(), _counted(counts.messages, counts.bytes, subscriptions)
        )
        rated = tuple(_with_rates(sub, rates) for sub in subscriptions)
        decision = self._maintenance.decision
        return TopicStats(
            name=self._context.name, at_us=now_us, owner=self._address, epoch=chain.epoch, start=chain.start,
            end=chain.end, storage_bytes=chain.end.size - chain.start.size,
            producers=0 if self._dedup is None else len(self._dedup.producers),
            published_messages=counts.messages, published_entries=counts.entries, published_bytes=counts.bytes,
            publish_errors=counts.errors, pending_entries=chain.pending_entries, pending_bytes=chain.pending_bytes,
            duplicates=counts.duplicates, rate_published=rates["published"],
            rate_published_bytes=rates["published_bytes"],
            rate_delivered=sum(sub.rate_delivered for sub in rated),
            rate_delivered_bytes=sum(sub.rate_delivered_bytes for sub in rated),
            deduplicates=config.deduplicate, publishing=decision.publishing, waits_for=chain.waits_for,
            quota_bytes=config.quota_bytes,
            quota_ms=config.quota_ms, quota_exceeded=decision.exceeded,
            quota_evictions=dict(self._maintenance.evictions),
            subscriptions=rated, properties=dict(managed.chain.properties),
        )  # fmt: skip

    def internal_stats(self, publisher: Publisher) -> InternalStats:
        """Return the ledgers and cursors of the topic."""
        managed, now_us = self._context.managed, self._context.clock.monotonic_us()
        chain, stats = managed.chain, managed.stats()
        cursors = (
            *(_cursor(subscription, now_us) for subscription in self._subscriptions.all()),
            *map(_system_cursor, self._system_cursors.all()),
        )
        ledgers = tuple(_ledger(item, stats.end) for item in chain.ledgers)
        return InternalStats(
            name=self._context.name, state=stats.state, epoch=stats.epoch, start=stats.start, end=stats.end,
            entries_added=publisher.counts.entries, pending_entries=stats.pending_entries,
            pending_bytes=stats.pending_bytes, waiting_cursors=sum(cursor.waiting for cursor in cursors),
            ledgers=ledgers, cursors=cursors, last_entry=_last_entry(ledgers),
        )  # fmt: skip


def _counted(messages: int, size: int, subscriptions: Sequence[SubscriptionStats]) -> dict[str, int]:
    """Return the counters, by name, of which rates are computed."""
    return {
        "published": messages,
        "published_bytes": size,
        **{f"{name}/{sub.name}": value for sub in subscriptions for name, value in _counters(sub).items()},
        **{
            f"{name}/{sub.name}/{consumer.consumer}": value
            for sub in subscriptions
            for consumer in sub.consumers
            for name, value in _consumer_counters(consumer).items()
        },
    }


def _counters(sub: SubscriptionStats) -> dict[str, int]:
    return {
        "delivered": sub.delivered_messages,
        "delivered_bytes": sub.delivered_bytes,
        "redelivered": sub.redelivered_messages,
        "acked": sub.acked_messages,
        "expired": sub.expired_messages,
    }


def _consumer_counters(consumer: ConsumerStats) -> dict[str, int]:
    return {
        "delivered": consumer.delivered_messages,
        "delivered_bytes": consumer.delivered_bytes,
        "redelivered": consumer.redelivered_messages,
        "acked": consumer.acked_messages,
    }


def _with_rates(sub: SubscriptionStats, rates: dict[str, float]) -> SubscriptionStats:
    sub_rates = {f"rate_{name}": rates[f"{name}/{sub.name}"] for name in _counters(sub)}
    consumers = tuple(
        replace(row, **{f"rate_{name}": rates[f"{name}/{sub.name}/{row.consumer}"] for name in _consumer_counters(row)})  # type: ignore[arg-type]
        for row in sub.consumers
    )
    return replace(sub, consumers=consumers, **sub_rates)  # type: ignore[arg-type]


def _subscription(context: TopicContext, subscription: Subscription, now_us: int) -> SubscriptionStats:
    end, clock_us = context.managed.end, context.clock.monotonic_us()

    def read(cursor: Cursor, dispatcher: Dispatcher) -> tuple[DispatchStatus, Backlog, Trend]:
        reached = max(end, cursor.mark)
        backlog = cursor.backlog(reached)
        first = dispatcher.first_due(reached.offset)
        now = Sample(clock_us, reached.offset, cursor.mark.offset, backlog.messages, first)
        return dispatcher.status(clock_us), backlog, trend([*cursor.samples, now])

    status, backlog, course = subscription.inspect(read)
    try:
        oldest = subscription.oldest_due_us() if backlog.messages else None
    except ReplogError:
        oldest = None
    try:
        delayed = status.delayed if status.consumers else subscription.count_delayed()
    except ReplogError:
        delayed = None
    cursor, counts, acked_us = subscription.cursor, subscription.counts, subscription.cursor.last_acked_us
    active = [consumer.name for consumer in status.consumers if consumer.is_active]
    return SubscriptionStats(
        name=subscription.name, at_us=now_us, type=subscription.settings.type, durable=cursor.durable, mark=cursor.mark,
        backlog_messages=backlog.messages, backlog_entries=backlog.entries, backlog_bytes=backlog.size,
        oldest_us=oldest, unacked=status.unacked, delayed=delayed, replay=status.replay,
        blocked=any(wait.startswith("max_unacked") for wait in status.waits), ack_ranges=cursor.acks.ranges,
        ack_bytes=cursor.acks.nbytes, delivered_messages=counts.delivered, delivered_bytes=counts.delivered_bytes,
        redelivered_messages=counts.redelivered, acked_messages=counts.acked(cursor), expired_messages=counts.expired,
        evicted_messages=counts.evicted, dead_lettered_messages=counts.dead_lettered,
        last_flow_us=counts.last_flow_us, last_delivered_us=counts.last_delivered_us,
        last_acked_us=0 if acked_us is None else now_us - max(clock_us - acked_us, 0), last_mark_us=counts.last_mark_us,
        last_expired_us=counts.last_expired_us,
        persists=counts.persists, drain_s=course.drain_s, stalled=course.stalled,
        active_consumer=active[0] if subscription.settings.type == "failover" and active else None,
        consumers=tuple(
            _consumer(consumer, subscription.consumer_counts(consumer.id)) for consumer in status.consumers
        ),
        properties=dict(subscription.properties),
    )  # fmt: skip


def _consumer(status: ConsumerStatus, counts: ConsumerCounters) -> ConsumerStats:
    return ConsumerStats(
        name=status.name, consumer=status.id, address=counts.address, connected_us=counts.connected_us,
        active=status.is_active, blocked=status.is_blocked, permits=status.permits, unacked=status.unacked,
        delivered_messages=status.delivered, delivered_bytes=counts.delivered_bytes,
        redelivered_messages=counts.redelivered, acked_messages=status.acknowledged,
        last_delivered_us=counts.last_delivered_us, last_acked_us=counts.last_acked_us,
    )  # fmt: skip


def _ledger(item: ChainLedger, topic_end: TopicPosition) -> LedgerStats:
    """Return the statistics of a ledger; the open one ends with the topic."""
    end = item.end if item.is_closed else topic_end
    return LedgerStats(
        ledger=item.ledger, start=item.start, entries=end.entries - item.start.entries,
        messages=end.offset - item.start.offset, size=end.size - item.start.size, created_us=item.created_us,
        closed_us=item.closed_us if item.is_closed else None,
    )  # fmt: skip


def _last_entry(ledgers: Sequence[LedgerStats]) -> tuple[int, int] | None:
    return next(((item.ledger, item.entries - 1) for item in reversed(ledgers) if item.entries), None)


def _cursor(subscription: Subscription, now_us: int) -> CursorStats:
    status, durable_mark = subscription.inspect(
        lambda cursor, dispatcher: (dispatcher.status(now_us), cursor.durable_mark)
    )
    cursor, persister = subscription.cursor, subscription.persister
    stored_in = None if persister is None else persister.cursor_ledger
    return CursorStats(
        name=subscription.name, durable=cursor.durable, mark=cursor.mark, durable_mark=durable_mark,
        read=status.position,
        entries_behind_mark=cursor.acks.entries_out, acked_messages=cursor.acks.acked_messages,
        ack_ranges=cursor.acks.ranges, ack_bytes=cursor.acks.nbytes, reads_pending=status.reads,
        replays_pending=status.replay, waiting="all is read" in status.waits, dirty=cursor.has_changes,
        cursor_ledger=-1 if stored_in is None else stored_in.ledger, properties=dict(cursor.properties),
    )  # fmt: skip


def _system_cursor(cursor: SystemCursorStatus) -> CursorStats:
    return CursorStats(
        name=cursor.name, state=cursor.state, mark=cursor.mark, durable_mark=cursor.mark, read=cursor.mark.offset,
        cursor_ledger=cursor.cursor_ledger,
    )  # fmt: skip
