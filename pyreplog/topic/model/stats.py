"""What is known of a topic at a moment, for people and programs. Times are microseconds since 1970, 0: never; rates are
per second, over about the last minute."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyreplog.topic.model.positions import ORIGIN, TopicPosition

WINDOW_S = 60.0
_STEPS = 6


class RateMeter:
    """How fast counters grow: told them now and then, it compares with what they were about `window_s` seconds before,
    or at the latest time before that. Counters that went back begin anew. For one thread at a time."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_us = round(window_s * 1e6)
        self._seen: deque[tuple[int, dict[str, int]]] = deque()

    def look(self, now_us: int, counts: Mapping[str, int]) -> dict[str, float]:
        """Per second, for each of `counts`; 0.0 at the first look. now_us: of a clock that does not go back."""
        seen = self._seen
        if seen and any(counts.get(name, before) < before for name, before in seen[-1][1].items()):
            seen.clear()
        while len(seen) > 1 and seen[1][0] <= now_us - self._window_us:
            seen.popleft()
        if not seen or now_us - seen[-1][0] >= self._window_us // _STEPS:
            seen.append((now_us, dict(counts)))
        since_us, before = seen[0]
        seconds = (now_us - since_us) / 1e6
        return {name: _growth(before.get(name, 0), n) / seconds if seconds > 0 else 0.0 for name, n in counts.items()}


def _growth(before: int, now: int) -> int:
    """How much a counter grew; it may have begun anew meanwhile."""
    return now - before if now >= before else now


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Base of what can be told as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, texts and numbers only."""
        return {item.name: _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True)
class ConsumerStats(Stats):
    """One consumer. address: HOST:PORT of a remote one; "": in the owner's process. connected_us: since when it is
    attached. *_bytes: of values. last_*_us: when something was delivered to it, or acknowledged by it, last; 0: never.

    permits: messages it may yet be sent. unacked: sent, not acknowledged. blocked: it gets no more
    until it acknowledges some. active: it is the one that is sent messages, of those that take turns. delivered: those
    sent again included; redelivered: those alone. draining_hashes: keys that move to it when another has acknowledged
    them."""

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

    at_us: the moment. type: None when nobody is connected and it is not known. backlog_*: not acknowledged; entries and
    bytes count in full when any of their messages is not. oldest_us: since when the first message that is not
    could have been delivered, its append time or a later deliver_at; None: there is none, or it could not be read.
    unacked: sent, not acknowledged. delayed: wait for their deliver_at. With consumers: of those that were read for
    them. Without: of the whole backlog, which is read for that if it has at most 1 MiB and 65,536 messages, once; None:
    it is longer, or could not be read. replay: to be sent again. blocked: nobody gets more until some are acknowledged.
    ack_ranges, ack_bytes: what is acknowledged behind the mark. drain_s, stalled: see `trend`. persists: times its
    state was stored.
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
        """Age of the oldest message that is not acknowledged, whoever is connected: a delayed one's begins when it is
        due; 0.0: there is none, None: its age could not be read."""
        if self.backlog_no_delayed == 0:
            return 0.0
        return None if self.oldest_us is None else max(self.at_us - self.oldest_us, 0) / 1e6

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "backlog_no_delayed": self.backlog_no_delayed, "lag_s": self.lag_s}


@dataclass(frozen=True, kw_only=True)
class TopicStats(Stats):
    """A topic, as its owner knows it.

    at_us: the moment. owner: address of the process that serves it, "" when it is reached from within only. start, end:
    of what is kept. storage_bytes: of it. quota_*: limits, None: there are none; quota_exceeded: "bytes", "age", those
    that are; quota_evictions: times that messages were acknowledged for a subscription, by the same names. publishing:
    "open", "held" or "refused". pending_*: published, not confirmed yet. duplicates: messages dropped because their
    sequence was published before. waits_for: what is in the way of a new ledger, such as bookies that are missing, ""
    nothing: as long as no ledger is open, publishers wait.
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
        """From the slowest durable subscription's mark to the end: what it keeps, and what a quota is about."""
        marks = [sub.mark.size for sub in self.subscriptions if sub.durable]
        return max(self.end.size - min(marks), 0) if marks else 0

    @property
    def oldest(self) -> tuple[str, float] | None:
        """(subscription, seconds) of the durable one whose oldest message that is not acknowledged is the oldest; None:
        all are, or no age could be read."""
        lags = [(sub.lag_s, sub.name) for sub in self.subscriptions if sub.durable and sub.lag_s]
        return None if not lags else max(((name, lag) for lag, name in lags), key=lambda found: found[1])

    def to_dict(self) -> dict[str, Any]:
        """`subscriptions` by their names."""
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
    """One ledger of a topic. closed_us: None while it is open. below_write_quorum: copies that are missing, None: not
    looked at."""

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
    """One cursor. durable_mark: the mark as it is stored: what is trimmed depends on it. read: offset that is read
    next; behind the end with `mark` before it: sent and not acknowledged, or a hole. reads_pending, replays_pending:
    reads under way. waiting: for messages to be published. cursor_ledger, cursor_entry: where its state is stored last,
    -1: in the metadata store. dirty: there are acknowledgements that are not stored yet."""

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
    """A topic's ledgers and cursors, to find out why something stands still. state: of the chain of ledgers. end: all
    before it is confirmed. last_entry: (ledger, entry) that is confirmed last, None: there is none. entries_added:
    since the owner began."""

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
        """Of all that is kept."""
        return self.end.entries - self.start.entries

    @property
    def size(self) -> int:
        """Its value bytes."""
        return self.end.size - self.start.size

    def to_dict(self) -> dict[str, Any]:
        """`cursors` by their names."""
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
