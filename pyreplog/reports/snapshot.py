"""Snapshot: facts about logs and clusters at one moment, the same for all steps of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.model.positions import TopicPosition

if TYPE_CHECKING:
    from pyreplog.autorecovery.overview import RecoveryOverview
    from pyreplog.geo.subscription_readiness import SubscriptionReadiness
    from pyreplog.kafka.groups.group_status import GroupStatus
    from pyreplog.ledger.ledger_metadata import LedgerMetadata
    from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus

WINDOW_MAX_MS = 100 * 365 * 86_400_000
"""The longest window, a hundred years: its start is a time that calendars have."""

Ranges = NDArray[np.int64]
"""int64[n, 2]: half-open ranges, ascending."""


class SegmentSnapshot(NamedTuple):
    """A part of a topic or a log that is removed as a whole: a ledger, or a segment file.

    Attributes:
        name: id of the ledger, or name of the file.
        start: offset of its first entry.
        end: offset after its last entry.
        size: bytes of a ledger's values, or of the file.
        created_us: when it was created; None: unknown.
        closed_us: when it was closed; None: it is open (`is_closed` is False), or the time is unknown.
    """

    name: str
    start: int
    end: int
    size: int
    created_us: int | None
    closed_us: int | None
    is_closed: bool


@dataclass(frozen=True, kw_only=True)
class TopicSnapshot:
    """A topic, each partition by itself, or a log. Of a log, `start` and `end` have only offsets.

    Attributes:
        name: name in the metadata store.
        topic: name of the topic, as in rows.
        partition: number of the partition, as in rows.
        start: position of the first existing message.
        end: position behind the last existing message.
        segments: segments in order; some may be empty.
    """

    name: str
    topic: str
    partition: int
    start: TopicPosition
    end: TopicPosition
    segments: tuple[SegmentSnapshot, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SubscriptionSnapshot:
    """A durable subscription of one topic or partition, as its state was stored.

    Attributes:
        on: `TopicSnapshot.name` of its topic.
        mark: all messages before it are acknowledged.
        acked: offsets after the mark that are acknowledged, too.
        backlog_messages: messages up to the topic's end that are not acknowledged.
        backlog_bytes: bytes of the entries that hold them, each counted in full.
        oldest_us: append time of the first of them; None: there is none, or it cannot be read.
        newest_us: append time of the last of them; None: there is none, or it cannot be read.
        moved_us: when the mark last moved, or was set; None: unknown.
        marks: int64[n, 2], (time, mark from then on), ascending, as far back as is known.
        is_system: it belongs to this package.
        state: what a system cursor stores in addition to its mark.
    """

    on: str
    topic: str
    partition: int
    name: str
    mark: TopicPosition
    end: int
    acked: Ranges = field(default_factory=lambda: np.empty((0, 2), np.int64), compare=False)
    backlog_messages: int
    backlog_bytes: int
    moved_us: int | None
    oldest_us: int | None = None
    newest_us: int | None = None
    marks: Ranges = field(default_factory=lambda: np.empty((0, 2), np.int64), compare=False)
    is_system: bool = False
    state: bytes = field(default=b"", compare=False)

    def mark_at(self, time_us: int) -> int | None:
        """Return where the mark was at a time; None: unknown."""
        at = int(np.searchsorted(self.marks[:, 0], time_us, side="right")) - 1
        return None if at < 0 else int(self.marks[at, 1])

    @property
    def oldest(self) -> int | None:
        """Offset of the first message that is not acknowledged; None: all are."""
        return next(self._open(), (None, None))[0]

    @property
    def newest(self) -> int | None:
        """Offset of the last message that is not acknowledged; None: all are."""
        stop = self.end
        for low, high in reversed(self.acked.tolist()):
            if high < stop:
                break
            stop = min(stop, low)
        return stop - 1 if stop > self.mark.offset else None

    def _open(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of offsets that are not acknowledged."""
        at = self.mark.offset
        for low, high in self.acked.tolist():
            if at < min(low, self.end):
                yield at, min(low, self.end)
            at = high
        if at < self.end:
            yield at, self.end


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot:
    """A ledger of a cluster.

    Attributes:
        metadata: quorums, fragments and state, without the fields that only writers need.
        entries: number of confirmed entries, which is all of them for a closed ledger; None: no bookie answered.
    """

    metadata: LedgerMetadata
    entries: int | None


class ReplicationSnapshot(NamedTuple):
    """The replication of a topic, or partition, to another cluster, according to the metadata and the stored cursor.

    Attributes:
        topic: as in rows.
        partition: as in rows.
        target: name of the cluster.
        state: sending, paused, detached, failed, or unknown.
        stored: offset below which the target has stored all messages, according to the stored cursor; None: the target
            was never reached.
        end: end of the topic.
        unsent_messages: messages between `stored` and `end`.
        unsent_bytes: bytes of these messages.
        oldest_us: append time of the first of them; None: there is none, or it is not known.
        alarm: what an operator has to decide or do; "": nothing.
    """

    topic: str
    partition: int
    target: str
    state: str
    stored: int | None
    end: int
    unsent_messages: int
    unsent_bytes: int
    oldest_us: int | None
    alarm: str


class ReadinessSnapshot(NamedTuple):
    """The effect of a fail-over of a replicated subscription to another cluster, as the owner of its topic tells.

    Attributes:
        topic: as in rows.
        partition: as in rows.
        subscription: name of the subscription.
        target: name of the cluster.
        readiness: the owner's answer; None: no server that answered owns the topic.
    """

    topic: str
    partition: int
    subscription: str
    target: str
    readiness: SubscriptionReadiness | None


class UnknownState(NamedTuple):
    """A topic or subscription whose state is unknown, so that it is missing from the snapshot.

    Attributes:
        on: name of the topic.
        subscription: its name; None: the topic with all its subscriptions.
        why: the error, in one line.
    """

    on: str
    subscription: str | None
    why: str

    def __str__(self) -> str:
        of = "" if self.subscription is None else f"subscription {self.subscription} of "
        return f"could not ask: {of}topic {self.on}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Facts about logs, topics and ledgers at one moment, gathered without reading whole logs; made by `gather`.

    Attributes:
        as_of_us: the moment, microseconds since 1970-01-01 UTC.
        window_ms: milliseconds over which current rates are measured.
        topics: the topics, in order.
        subscriptions: their subscriptions, in order.
        ledgers: the ledgers, cursor ledgers included, by id.
        logs: logs that belong to no cluster.
        replications: of the topics to other clusters.
        readiness: of replicated subscriptions for a fail-over to other clusters.
        readiness_notes: servers that did not tell it, and why; one line each.
        clusters: id, as 32 hexadecimal digits, and name of each other cluster that was added.
        unknown: topics and subscriptions whose bookies did not answer.
        partitions: of topics of partitions, as the brokers of a cluster tell.
        brokers: of partitions.
        groups: Kafka's consumer groups.
        partition_notes: what brokers did not tell of these three, and why; one line each.
        recovery: auto-recovery of a cluster whose bookies are reached over TCP; None: of others, or of a part of one.

    Raises:
        InvalidArgumentError: `window_ms` is outside its bounds.
    """

    as_of_us: int
    window_ms: int = 300_000
    topics: tuple[TopicSnapshot, ...] = ()
    subscriptions: tuple[SubscriptionSnapshot, ...] = ()
    ledgers: tuple[LedgerSnapshot, ...] = ()
    logs: tuple[TopicSnapshot, ...] = ()
    replications: tuple[ReplicationSnapshot, ...] = ()
    readiness: tuple[ReadinessSnapshot, ...] = ()
    readiness_notes: tuple[str, ...] = ()
    clusters: tuple[tuple[str, str], ...] = ()
    unknown: tuple[UnknownState, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    partition_notes: tuple[str, ...] = ()
    recovery: RecoveryOverview | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.window_ms <= WINDOW_MAX_MS:
            raise InvalidArgumentError(f"window_ms: expected 1 to {WINDOW_MAX_MS:,}, found {self.window_ms}")

    @property
    def since_us(self) -> int:
        """Beginning of the window, microseconds since 1970-01-01 UTC."""
        return self.as_of_us - self.window_ms * 1000

    @property
    def readers(self) -> list[SubscriptionSnapshot]:
        """The subscriptions that users made."""
        return [subscription for subscription in self.subscriptions if not subscription.is_system]
