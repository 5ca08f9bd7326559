"""What is known of a partitioned topic at a moment: of each partition, and of all together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyreplog.topic.model.stats import InternalStats, Stats, SubscriptionStats, TopicStats
from pyreplog.topic.model.topic_position import TopicPosition

_TOPIC_SUMS = (
    "storage_bytes", "published_messages", "published_entries", "published_bytes", "publish_errors", "pending_entries",
    "pending_bytes", "duplicates", "rate_published", "rate_published_bytes", "rate_delivered", "rate_delivered_bytes",
)  # fmt: skip
_SUBSCRIPTION_SUMS = (
    "backlog_messages", "backlog_entries", "backlog_bytes", "unacked", "replay", "ack_ranges", "ack_bytes",
    "delivered_messages", "delivered_bytes", "redelivered_messages", "acked_messages", "expired_messages",
    "evicted_messages", "dead_lettered_messages", "rate_delivered", "rate_delivered_bytes", "rate_redelivered",
    "rate_acked", "rate_expired", "persists",
)  # fmt: skip
_SUBSCRIPTION_LATEST = ("last_flow_us", "last_delivered_us", "last_acked_us", "last_mark_us", "last_expired_us")
_PUBLISHING = ("open", "held", "refused")


@dataclass(frozen=True, kw_only=True)
class PartitionedStats(Stats):
    """A partitioned topic. partitions: how many it has. total: of those that this process owns, together: counts,
    rates and totals are sums, and what is true of one partition (a limit exceeded, a subscription blocked or stalled)
    is told; a subscription's consumers are listed once for each partition. parts: the same, one by one."""

    name: str
    partitions: int
    total: TopicStats
    parts: Mapping[int, TopicStats]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "parts": {str(at): part.to_dict() for at, part in self.parts.items()}}


@dataclass(frozen=True, kw_only=True)
class PartitionedInternalStats(Stats):
    """Ledgers and cursors of a partitioned topic. partitions: how many it has. parts: those that this process owns."""

    name: str
    partitions: int
    parts: Mapping[int, InternalStats]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "parts": {str(at): part.to_dict() for at, part in self.parts.items()}}


def partitioned_stats(name: str, partitions: int, parts: Mapping[int, TopicStats]) -> PartitionedStats:
    """parts: one at least."""
    return PartitionedStats(name=name, partitions=partitions, total=_together(name, list(parts.values())), parts=parts)


def _together(name: str, parts: Sequence[TopicStats]) -> TopicStats:
    subscriptions: dict[str, list[SubscriptionStats]] = {}
    for part in parts:
        for sub in part.subscriptions:
            subscriptions.setdefault(sub.name, []).append(sub)
    evictions: dict[str, int] = {}
    for part in parts:
        for kind, times in part.quota_evictions.items():
            evictions[kind] = evictions.get(kind, 0) + times
    return replace(
        parts[0],
        name=name,
        at_us=max(part.at_us for part in parts),
        epoch=max(part.epoch for part in parts),
        start=_total(part.start for part in parts),
        end=_total(part.end for part in parts),
        producers=max(part.producers for part in parts),
        publishing=max((part.publishing for part in parts), key=_PUBLISHING.index),
        waits_for=next((part.waits_for for part in parts if part.waits_for), ""),
        quota_exceeded=tuple(sorted({kind for part in parts for kind in part.quota_exceeded})),
        quota_evictions=evictions,
        subscriptions=tuple(_subscription(subscriptions[sub]) for sub in sorted(subscriptions)),
        **_sums(parts, _TOPIC_SUMS),
    )


def _subscription(parts: Sequence[SubscriptionStats]) -> SubscriptionStats:
    oldest = [part.oldest_us for part in parts if part.oldest_us is not None]
    drains = [part.drain_s for part in parts if part.backlog_messages]
    return replace(
        parts[0],
        at_us=max(part.at_us for part in parts),
        mark=_total(part.mark for part in parts),
        oldest_us=min(oldest, default=None),
        blocked=any(part.blocked for part in parts),
        stalled=any(part.stalled for part in parts),
        drain_s=None if None in drains else max((drain for drain in drains if drain is not None), default=None),
        active_consumer=None,
        consumers=tuple(consumer for part in parts for consumer in part.consumers),
        **_sums(parts, _SUBSCRIPTION_SUMS),
        delayed=None if any(part.delayed is None for part in parts) else sum(part.delayed or 0 for part in parts),
        **{name: max(getattr(part, name) for part in parts) for name in _SUBSCRIPTION_LATEST},
    )


def _sums(parts: Sequence[Stats], names: Iterable[str]) -> dict[str, Any]:
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _total(totals: Iterable[TopicPosition]) -> TopicPosition:
    return TopicPosition(*map(sum, zip(*totals, strict=True)))
