"""Topics' numbers for Prometheus, made of their stats; docs/operations.md says what each is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

from pyreplog._native.system.histogram import Histogram
from pyreplog.metrics import Labels, Metric
from pyreplog.topic.model.stats import SubscriptionStats, TopicStats

T = TypeVar("T")


class _Column(NamedTuple, Generic[T]):
    """A metric that each topic, or subscription, has. read: its value, None: no sample, as it is not known or there is
    none."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[T], float | None]


_TOPIC: tuple[_Column[TopicStats], ...] = (
    _Column("published_messages", "counter", "Messages published and confirmed.", lambda t: t.published_messages),
    _Column("published_entries", "counter", "Entries those messages are in.", lambda t: t.published_entries),
    _Column("published_bytes", "counter", "Value bytes of those entries.", lambda t: t.published_bytes),
    _Column("publish_errors", "counter", "Messages whose publishing failed.", lambda t: t.publish_errors),
    _Column("duplicates", "counter", "Messages dropped: published before.", lambda t: t.duplicates),
    _Column("pending_entries", "gauge", "Entries published that are not confirmed yet.", lambda t: t.pending_entries),
    _Column("pending_bytes", "gauge", "Value bytes of those entries.", lambda t: t.pending_bytes),
    _Column("storage_bytes", "gauge", "Value bytes that are kept, of one copy.", lambda t: t.storage_bytes),
    _Column(
        "backlog_bytes", "gauge", "Value bytes behind the slowest durable subscription's mark.",
        lambda t: t.backlog_bytes,
    ),
    _Column("producers", "gauge", "Producers that are open.", lambda t: t.producers),
    _Column("subscriptions", "gauge", "Subscriptions that there are.", lambda t: len(t.subscriptions)),
    _Column(
        "publishing_stopped", "gauge", "1: publishers wait, or are refused, for a quota is exceeded.",
        lambda t: t.publishing != "open",
    ),
    _Column("quota_bytes", "gauge", "Backlog quota; missing: there is none.", lambda t: t.quota_bytes),
    _Column(
        "quota_seconds", "gauge", "Backlog quota, of the oldest message's age; missing: there is none.",
        lambda t: None if t.quota_ms is None else t.quota_ms / 1000,
    ),
)  # fmt: skip

_SUBSCRIPTION: tuple[_Column[SubscriptionStats], ...] = (
    _Column(
        "lag_seconds", "gauge",
        "Age of the oldest message that is not acknowledged, whether anybody is connected or not; 0: there is none; "
        "missing: it could not be read.",
        lambda s: s.lag_s,
    ),
    _Column("backlog_messages", "gauge", "Messages that are not acknowledged.", lambda s: s.backlog_messages),
    _Column("backlog_entries", "gauge", "Entries with any such message.", lambda s: s.backlog_entries),
    _Column("backlog_bytes", "gauge", "Value bytes of those entries.", lambda s: s.backlog_bytes),
    _Column("unacked_messages", "gauge", "Messages sent to consumers, not acknowledged.", lambda s: s.unacked),
    _Column(
        "delayed_messages", "gauge",
        "Messages that wait for their time; missing: nobody is connected, and the backlog is too long to be read.",
        lambda s: s.delayed,
    ),
    _Column("replay_messages", "gauge", "Messages that are to be sent again.", lambda s: s.replay),
    _Column(
        "permits", "gauge", "Messages that consumers may yet be sent.",
        lambda s: sum(consumer.permits for consumer in s.consumers),
    ),
    _Column("consumers", "gauge", "Consumers that are connected.", lambda s: len(s.consumers)),
    _Column("blocked", "gauge", "1: nothing is sent until consumers acknowledge something.", lambda s: s.blocked),
    _Column("stalled", "gauge", "1: its mark does not move although messages wait.", lambda s: s.stalled),
    _Column("ack_ranges", "gauge", "Ranges acknowledged behind the mark.", lambda s: s.ack_ranges),
    _Column("delivered_messages", "counter", "Messages sent, those again included.", lambda s: s.delivered_messages),
    _Column("delivered_bytes", "counter", "Bytes of those messages.", lambda s: s.delivered_bytes),
    _Column("redelivered_messages", "counter", "Messages sent again.", lambda s: s.redelivered_messages),
    _Column("acked_messages", "counter", "Messages acknowledged by consumers.", lambda s: s.acked_messages),
    _Column("expired_messages", "counter", "Messages acknowledged because of their age.", lambda s: s.expired_messages),
    _Column(
        "evicted_messages", "counter", "Messages acknowledged because a quota was exceeded.",
        lambda s: s.evicted_messages,
    ),
    _Column(
        "dead_lettered_messages", "counter", "Messages moved to the dead-letter topic.",
        lambda s: s.dead_lettered_messages,
    ),
    _Column("persists", "counter", "Times that its acknowledgements were stored.", lambda s: s.persists),
    _Column("last_acked_timestamp_seconds", "gauge", "When it acknowledged last; missing: never.",
        lambda s: _seconds(s.last_acked_us)),
    _Column("last_delivered_timestamp_seconds", "gauge", "When it was sent something last; missing: never.",
        lambda s: _seconds(s.last_delivered_us)),
    _Column("last_mark_timestamp_seconds", "gauge", "When its mark moved last; missing: never.",
        lambda s: _seconds(s.last_mark_us)),
)  # fmt: skip


def topic_metrics(topics: Iterable[TopicStats]) -> list[Metric]:
    """Of all topics that this process owns, each metric once. Labels: topic; of subscriptions, subscription too."""
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
    found: list[tuple[Labels, float | Histogram]] = [
        (labels, float(value)) for labels, value in values if value is not None
    ]
    return Metric(prefix + column.name, column.kind, column.help, found)


def _quotas(topics: Iterable[TopicStats]) -> list[Metric]:
    exceeded = Metric("pyreplog_topic_quota_exceeded", "gauge", "1: the backlog is beyond this quota.", [])
    evictions = Metric(
        "pyreplog_topic_quota_evictions", "counter", "Times that a subscription lost messages to this quota.", []
    )
    for topic in topics:
        for quota, limit in (("bytes", topic.quota_bytes), ("age", topic.quota_ms)):
            labels = {"topic": topic.name, "quota": quota}
            evictions.samples.append((labels, float(topic.quota_evictions.get(quota, 0))))
            if limit is not None:
                exceeded.samples.append((labels, float(quota in topic.quota_exceeded)))
    return [exceeded, evictions]


def _seconds(us: int) -> float | None:
    """A moment, if it ever came."""
    return us / 1e6 if us else None
