"""Statistics of topics, for people and programs.

Times are microseconds since 1970, 0: never. Rates are per second, over about the last minute.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.model.trend import slowest_drain

WINDOW_S = 60.0
_STEPS = 6


class RateMeter:
    """Measures how fast counters grow. Any thread.

    Each call compares the counters with their values about `window_s` seconds before. If a counter went back, all start
    again.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_us = round(window_s * 1e6)
        self._lock = threading.Lock()  # guards the samples
        self._samples: deque[tuple[int, dict[str, int]]] = deque()

    def measure(self, now_us: int, counts: Mapping[str, int]) -> dict[str, float]:
        """Return the growth per second of each counter; 0.0 at the first call.

        now_us: the time on a clock that does not go back, microseconds.
        """
        with self._lock:
            samples = self._samples
            if samples and any(counts.get(name, before) < before for name, before in samples[-1][1].items()):
                samples.clear()
            while len(samples) > 1 and samples[1][0] <= now_us - self._window_us:
                samples.popleft()
            if not samples or now_us - samples[-1][0] >= self._window_us // _STEPS:
                samples.append((now_us, dict(counts)))
            since_us, before = samples[0]
        seconds = (now_us - since_us) / 1e6
        return {name: _growth(before.get(name, 0), n) / seconds if seconds > 0 else 0.0 for name, n in counts.items()}


def _growth(before: int, now: int) -> int:
    """Return how much a counter grew; it may have started from 0 since."""
    return now - before if now >= before else now


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Base of statistics that can be converted to JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, texts and numbers only."""
        return {item.name: _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True)
class ConsumerStats(Stats):
    """One consumer. Fields named *_bytes count bytes of values.

    Attributes:
        name: name of the consumer.
        consumer: number of the consumer.
        address: HOST:PORT of a remote one; "": in the owner's process.
        connected_us: when it was attached.
        active: it receives messages; False for the waiting consumers of failover subscriptions.
        blocked: it gets no more messages until it acknowledges some.
        permits: number of messages that it may still be sent.
        unacked: messages that were sent and not acknowledged.
        draining_hashes: keys that move to it once another consumer has acknowledged them.
        delivered_messages: includes redelivered messages.
        delivered_bytes: includes redelivered messages.
        redelivered_messages: messages that were delivered again.
        acked_messages: messages that it acknowledged.
        rate_delivered: messages per second.
        rate_delivered_bytes: bytes per second.
        rate_redelivered: messages per second.
        rate_acked: messages per second.
        last_delivered_us: when messages were last delivered to it.
        last_acked_us: when it last acknowledged messages.
    """

    name: str
    consumer: int
    address: str = ""
    connected_us: int = 0
    active: bool = True
    blocked: bool = False
    permits: int = 0
    unacked: int = 0
    draining_hashes: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    redelivered_messages: int = 0
    acked_messages: int = 0
    rate_delivered: float = 0.0
    rate_delivered_bytes: float = 0.0
    rate_redelivered: float = 0.0
    rate_acked: float = 0.0
    last_delivered_us: int = 0
    last_acked_us: int = 0


@dataclass(frozen=True, kw_only=True)
class SubscriptionStats(Stats):
    """One subscription.

    Attributes:
        name: name of the subscription.
        at_us: when the statistics were taken.
        type: type of the subscription; None: not known, because no consumer is connected.
        durable: its cursor is stored.
        mark: everything before it is acknowledged.
        backlog_messages: messages that are not acknowledged.
        backlog_entries: entries with a message that is not acknowledged.
        backlog_bytes: bytes of these entries.
        oldest_us: when the first unacknowledged message could be delivered: its append time, or a later deliver_at;
            None: there is no such message, or it could not be read.
        unacked: messages that were sent and not acknowledged.
        delayed: messages that wait for their deliver_at. With consumers: of those that were read. Without: of the whole
            backlog, which is read once for this if it has at most 1 MiB and 65,536 messages; None: it has more, or
            could not be read.
        replay: messages to be sent again.
        blocked: no consumer gets more messages until some are acknowledged.
        ack_ranges: ranges of messages acknowledged behind the mark.
        ack_bytes: memory of these ranges.
        delivered_messages: includes redelivered messages.
        delivered_bytes: bytes of values.
        redelivered_messages: messages that were delivered again.
        acked_messages: messages that were acknowledged.
        expired_messages: messages that were acknowledged because of `ttl_ms`.
        evicted_messages: messages that were acknowledged because of a quota.
        dead_lettered_messages: messages that went to the dead-letter topic.
        rate_delivered: messages per second.
        rate_delivered_bytes: bytes per second.
        rate_redelivered: messages per second.
        rate_acked: messages per second.
        rate_expired: messages per second.
        last_flow_us: when a consumer last asked for messages.
        last_delivered_us: when messages were last delivered.
        last_acked_us: when messages were last acknowledged.
        last_mark_us: when the mark last moved.
        last_expired_us: when messages last expired.
        persists: how often its state was stored.
        drain_s: seconds until the backlog is empty at the present rate; None: never, or not known.
        stalled: the mark does not move; see docs/topics.md.
        active_consumer: name of the active consumer of an exclusive or failover subscription.
        consumers: the consumers.
        properties: its properties.
    """

    name: str
    at_us: int
    type: str | None = None
    durable: bool = True
    mark: TopicPosition = ORIGIN
    backlog_messages: int = 0
    backlog_entries: int = 0
    backlog_bytes: int = 0
    oldest_us: int | None = None
    unacked: int = 0
    delayed: int | None = 0
    replay: int = 0
    blocked: bool = False
    ack_ranges: int = 0
    ack_bytes: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    redelivered_messages: int = 0
    acked_messages: int = 0
    expired_messages: int = 0
    evicted_messages: int = 0
    dead_lettered_messages: int = 0
    rate_delivered: float = 0.0
    rate_delivered_bytes: float = 0.0
    rate_redelivered: float = 0.0
    rate_acked: float = 0.0
    rate_expired: float = 0.0
    last_flow_us: int = 0
    last_delivered_us: int = 0
    last_acked_us: int = 0
    last_mark_us: int = 0
    last_expired_us: int = 0
    persists: int = 0
    drain_s: float | None = None
    stalled: bool = False
    active_consumer: str | None = None
    consumers: tuple[ConsumerStats, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def backlog_no_delayed(self) -> int:
        """Messages that could be delivered now."""
        return max(self.backlog_messages - (self.delayed or 0), 0)

    @property
    def lag_s(self) -> float | None:
        """Age in seconds of the oldest unacknowledged message, counted for a delayed one from when it is due.

        0.0: there is no such message. None: its age could not be read.
        """
        if self.backlog_no_delayed == 0:
            return 0.0
        return None if self.oldest_us is None else max(self.at_us - self.oldest_us, 0) / 1e6

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics, with computed properties, as dicts, lists, texts and numbers only."""
        return {**super().to_dict(), "backlog_no_delayed": self.backlog_no_delayed, "lag_s": self.lag_s}


@dataclass(frozen=True, kw_only=True)
class TopicStats(Stats):
    """A topic, as its owner knows it.

    Attributes:
        name: name of the topic.
        at_us: when the statistics were taken.
        owner: address of the process that serves it; "": no other process can reach it.
        epoch: epoch of the owner.
        start: position of the first message that is kept.
        end: position behind the last confirmed message.
        storage_bytes: bytes between them.
        producers: producers that deduplication knows.
        published_messages: messages that were published.
        published_entries: entries that were published.
        published_bytes: bytes of values that were published.
        publish_errors: entries that were not published.
        pending_entries: entries that are not confirmed yet.
        pending_bytes: bytes that are not confirmed yet.
        duplicates: messages that were dropped because their sequence was published before.
        rate_published: messages per second.
        rate_published_bytes: bytes per second.
        rate_delivered: messages per second.
        rate_delivered_bytes: bytes per second.
        deduplicates: `deduplicate` is set.
        publishing: "open", "held" or "refused"; see `TopicConfig.quota_policy`.
        waits_for: why no ledger can be opened, for example missing bookies; publishers wait for that. "": no reason.
        quota_bytes: the quota; None: no quota.
        quota_ms: the quota; None: no quota.
        quota_exceeded: the exceeded quotas: "bytes", "age".
        quota_evictions: how often messages were acknowledged because of a quota, by the same names.
        subscriptions: the subscriptions.
        properties: properties of the topic.
    """

    name: str
    at_us: int
    owner: str = ""
    epoch: int = 0
    start: TopicPosition = ORIGIN
    end: TopicPosition = ORIGIN
    storage_bytes: int = 0
    producers: int = 0
    published_messages: int = 0
    published_entries: int = 0
    published_bytes: int = 0
    publish_errors: int = 0
    pending_entries: int = 0
    pending_bytes: int = 0
    duplicates: int = 0
    rate_published: float = 0.0
    rate_published_bytes: float = 0.0
    rate_delivered: float = 0.0
    rate_delivered_bytes: float = 0.0
    deduplicates: bool = False
    publishing: str = "open"
    waits_for: str = ""
    quota_bytes: int | None = None
    quota_ms: int | None = None
    quota_exceeded: tuple[str, ...] = ()
    quota_evictions: Mapping[str, int] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionStats, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def backlog_bytes(self) -> int:
        """Bytes from the mark of the slowest durable subscription to the end, which a quota limits."""
        marks = [sub.mark.size for sub in self.subscriptions if sub.durable]
        return max(self.end.size - min(marks), 0) if marks else 0

    @property
    def oldest(self) -> tuple[str, float] | None:
        """(subscription, seconds) of the durable subscription with the oldest unacknowledged message.

        None: all is acknowledged, or no age could be read.
        """
        lags = [(sub.lag_s, sub.name) for sub in self.subscriptions if sub.durable and sub.lag_s]
        return None if not lags else max(((name, lag) for lag, name in lags), key=lambda oldest: oldest[1])

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, texts and numbers only; `subscriptions` is a dict by name."""
        subscription, age = self.oldest or (None, 0.0)
        return {
            **super().to_dict(),
            "subscriptions": {sub.name: sub.to_dict() for sub in self.subscriptions},
            "backlog_bytes": self.backlog_bytes,
            "oldest_s": age,
            "oldest_subscription": subscription,
        }


@dataclass(frozen=True, kw_only=True)
class LedgerStats(Stats):
    """One ledger of a topic.

    Attributes:
        ledger: id of the ledger.
        start: position of its first entry in the topic.
        entries: number of entries.
        messages: number of messages.
        size: bytes of values.
        created_us: when it was created.
        closed_us: when it was closed; None: it is open.
        below_write_quorum: number of missing copies; None: not checked.
    """

    ledger: int
    start: TopicPosition
    entries: int
    messages: int
    size: int
    created_us: int
    closed_us: int | None = None
    below_write_quorum: int | None = None


@dataclass(frozen=True, kw_only=True)
class CursorStats(Stats):
    """One cursor.

    Attributes:
        name: name of the subscription, or of one of pyreplog's own cursors, which keep messages, too.
        durable: the cursor is stored.
        state: "open"; of pyreplog's own cursors also "stored" (no part of the owner moves it: it keeps messages until
            it is deleted), or "unknown" (as well, and its mark is not known exactly).
        mark: everything before it is acknowledged.
        durable_mark: the mark as it is stored; trimming depends on it.
        read: offset that is read next. At the end with `mark` before it: messages are sent and not acknowledged.
        entries_behind_mark: entries behind the mark.
        acked_messages: messages acknowledged behind the mark.
        ack_ranges: ranges of these messages.
        ack_bytes: memory of these ranges.
        reads_pending: pending reads.
        replays_pending: pending reads of messages to be delivered again.
        waiting: it waits for messages to be published.
        dirty: acknowledgements are not stored yet.
        cursor_ledger: ledger of its last stored state; -1: the metadata store.
        cursor_entry: entry of its last stored state; -1: the metadata store.
        properties: its properties.
    """

    name: str
    durable: bool = True
    state: str = "open"
    mark: TopicPosition = ORIGIN
    durable_mark: TopicPosition = ORIGIN
    read: int = 0
    entries_behind_mark: int = 0
    acked_messages: int = 0
    ack_ranges: int = 0
    ack_bytes: int = 0
    reads_pending: int = 0
    replays_pending: int = 0
    waiting: bool = False
    dirty: bool = False
    cursor_ledger: int = -1
    cursor_entry: int = -1
    properties: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InternalStats(Stats):
    """The ledgers and cursors of a topic, to find out why it makes no progress.

    Attributes:
        name: name of the topic.
        state: state of the chain of ledgers.
        epoch: epoch of the owner.
        start: position of the first message that is kept.
        end: position behind the last confirmed message.
        last_entry: (ledger, entry) that was confirmed last; None: none was.
        entries_added: entries that this owner added.
        pending_entries: entries that are not confirmed yet.
        pending_bytes: bytes that are not confirmed yet.
        waiting_cursors: cursors that wait for messages to be published.
        ledgers: the ledgers.
        cursors: the cursors.
    """

    name: str
    state: str
    epoch: int
    start: TopicPosition = ORIGIN
    end: TopicPosition = ORIGIN
    last_entry: tuple[int, int] | None = None
    entries_added: int = 0
    pending_entries: int = 0
    pending_bytes: int = 0
    waiting_cursors: int = 0
    ledgers: tuple[LedgerStats, ...] = ()
    cursors: tuple[CursorStats, ...] = ()

    @property
    def entries(self) -> int:
        """Number of entries that are kept."""
        return self.end.entries - self.start.entries

    @property
    def size(self) -> int:
        """Bytes of values that are kept."""
        return self.end.size - self.start.size

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, texts and numbers only; `cursors` is a dict by name."""
        cursors = {cursor.name: cursor.to_dict() for cursor in self.cursors}
        return {**super().to_dict(), "cursors": cursors, "entries": self.entries, "size": self.size}


def _plain(value: object) -> Any:
    if isinstance(value, Stats):
        return value.to_dict()
    if isinstance(value, TopicPosition):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


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
    """A partitioned topic.

    Attributes:
        name: name of the topic.
        partitions: number of its partitions.
        total: the partitions that this process owns, together. Counts, rates and positions are sums. A state of one
            partition (an exceeded quota, a blocked or stalled subscription) is that of the whole. A subscription's
            consumers are listed once for each partition.
        parts: statistics of each partition that this process owns.
    """

    name: str
    partitions: int
    total: TopicStats
    parts: Mapping[int, TopicStats]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, texts and numbers only."""
        return {**super().to_dict(), "parts": {str(at): part.to_dict() for at, part in self.parts.items()}}


@dataclass(frozen=True, kw_only=True)
class PartitionedInternalStats(Stats):
    """The ledgers and cursors of a partitioned topic.

    Attributes:
        name: name of the topic.
        partitions: number of its partitions.
        parts: statistics of each partition that this process owns.
    """

    name: str
    partitions: int
    parts: Mapping[int, InternalStats]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, texts and numbers only."""
        return {**super().to_dict(), "parts": {str(at): part.to_dict() for at, part in self.parts.items()}}


def partitioned_stats(name: str, partitions: int, parts: Mapping[int, TopicStats]) -> PartitionedStats:
    """Combine the statistics of at least one partition."""
    return PartitionedStats(name=name, partitions=partitions, total=_combined(name, list(parts.values())), parts=parts)


def _combined(name: str, parts: Sequence[TopicStats]) -> TopicStats:
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
    return replace(
        parts[0],
        at_us=max(part.at_us for part in parts),
        mark=_total(part.mark for part in parts),
        oldest_us=min(oldest, default=None),
        blocked=any(part.blocked for part in parts),
        stalled=any(part.stalled for part in parts),
        drain_s=slowest_drain(part.drain_s for part in parts if part.backlog_messages),
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
