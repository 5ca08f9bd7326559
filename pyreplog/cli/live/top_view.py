"""The rows of `pyreplog top`, made from statistics of topics and of the cluster. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyreplog.autorecovery.overview import OrderOverview, RecoveryOverview
from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.kafka.groups.group_status import GroupStatus
from pyreplog.ledger.status import BookieStatus, ClusterStatus, LedgerStatus
from pyreplog.partition.partition_status import BrokerStatus, PartitionCounts, PartitionStatus
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition
from pyreplog.topic.model.stats import SubscriptionStats, TopicStats

GROUP = "consumer group"
"""Type of the row of a consumer group."""


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A subscription, or a Kafka consumer group (type GROUP). Rates are messages per second; backlog
    counts messages: of a group its lag.

    lag_s: age of the oldest message that is not acknowledged. drain_s: seconds until the backlog is empty; None: not
    known, or never. states: states that need attention: stalled, blocked, growing. None: not known; of a group, bytes,
    unacked and delayed do not exist.
    """

    name: str
    type: str
    consumers: int | None
    rate_delivered: float | None
    backlog: int | None
    backlog_bytes: int | None
    unacked: int | None
    delayed: int | None
    lag_s: float | None
    drain_s: float | None
    states: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    """A topic.

    owner: address of its server; "": this process or none. partitions: number of those of a topic of partitions; None:
    it is one of ledgers. backlog: that of the slowest durable subscription, or consumer group. oldest_s: age of the
    oldest message that a durable subscription has not acknowledged. states: held, refused, quota; how many partitions
    need attention; or why its state is unknown, and messages is None.
    """

    name: str
    owner: str = ""
    partitions: int | None = None
    messages: int | None = None
    rate_published: float = 0.0
    rate_delivered: float = 0.0
    backlog: int = 0
    backlog_bytes: int = 0
    oldest_s: float = 0.0
    states: tuple[str, ...] = ()
    subscriptions: tuple[SubscriptionRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """A ledger. confirmed: LAC. behind: LAP - LAC, entries on their way. missing: copies that cannot be reached."""

    ledger: int
    state: str
    confirmed: int
    behind: int
    missing: int


@dataclass(frozen=True, kw_only=True)
class BookieRow:
    """A bookie.

    state: "", read-only, away, lost or draining, or "missing": it does not run, and nobody has noted that. verified_s:
    longest time for which a segment was not verified on the disk; None: unknown.
    """

    bookie: str
    address: str = ""
    free_bytes: int = 0
    state: str = ""
    verified_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """A reason why the cluster is not green. next_step: what to do."""

    colour: str
    code: str
    text: str
    next_step: str


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """A bookie whose copies are made again. why: its phase and the reason; eta_s: seconds left, None: unknown."""

    bookie: str
    why: str
    since_us: int
    ledgers_left: int
    bytes_left: int
    bytes_per_s: float
    eta_s: float | None


@dataclass(frozen=True, kw_only=True)
class RecoveryRow:
    """Auto-recovery.

    auditor: the process that decides; None: none, or the cluster is embedded. one_copy_entries: entries with at most
    one copy on a bookie that runs. rack_violations: ledgers with all copies of entries in one rack. hold: why it is
    suspended, hold_s: for how long; None: it is not.
    """

    colour: str
    auditor: str | None
    one_copy_entries: int
    lost_entries: int
    rack_violations: int
    hold: str | None = None
    hold_s: float | None = None
    findings: tuple[FindingRow, ...] = ()
    orders: tuple[OrderRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReplicationRow:
    """The replication of a topic to another cluster.

    state: as of `geo status`. unsent: messages that the target lacks. age_s: age of the first of them; None: it lacks
    none, or that is not known. alarm: what people have to decide or do. error: the last one.
    """

    topic: str
    target: str
    state: str
    unsent: int
    unsent_bytes: int
    age_s: float | None
    alarm: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The state at one moment. recovery: None: a topic server was asked, which does not know it, or the cluster has no
    bookies. replications: to other clusters; of a topic server its own. partitions, brokers, groups: of a cluster with
    brokers, the partitions that need attention first. notes: errors of sources that did not answer."""

    at_us: int
    topics: tuple[TopicRow, ...] = ()
    ledgers: tuple[LedgerRow, ...] = ()
    bookies: tuple[BookieRow, ...] = ()
    recovery: RecoveryRow | None = None
    replications: tuple[ReplicationRow, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def failed(self, note: str) -> Frame:
        """Return the last known state with a note of an error."""
        return replace(self, notes=(note,))

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(replace(self, partitions=(), brokers=(), groups=())),
            "partitions": [partition.to_dict() for partition in self.partitions],
            "brokers": [broker._asdict() for broker in self.brokers],
            "groups": [group.to_dict() for group in self.groups],
        }


def topic_row(stats: TopicStats, groups: Sequence[GroupStatus] = ()) -> TopicRow:
    """Return the row of a topic whose owner has answered.

    groups: Kafka's consumer groups of the topic, with their places in it alone.
    """
    group_rows = tuple(map(group_row, groups))
    publishing = () if stats.publishing == "open" else (stats.publishing,)
    quota = tuple(f"quota of {kind}" for kind in stats.quota_exceeded)
    return TopicRow(
        name=stats.name,
        owner=stats.owner,
        messages=stats.end.offset - stats.start.offset,
        rate_published=stats.rate_published,
        rate_delivered=stats.rate_delivered + sum(row.rate_delivered or 0.0 for row in group_rows),
        backlog=max(
            (
                *(sub.backlog_messages for sub in stats.subscriptions if sub.durable),
                *(row.backlog or 0 for row in group_rows),
            ),
            default=0,
        ),
        backlog_bytes=stats.backlog_bytes,
        oldest_s=max(0.0 if stats.oldest is None else stats.oldest[1], *(row.lag_s or 0.0 for row in group_rows), 0.0),
        states=publishing + quota,
        subscriptions=(
            *map(subscription_row, sorted(stats.subscriptions, key=lambda sub: sub.name)),
            *group_rows,
        ),
    )


def subscription_row(stats: SubscriptionStats) -> SubscriptionRow:
    flags = (("stalled", stats.stalled), ("blocked", stats.blocked))
    return SubscriptionRow(
        name=stats.name,
        type=stats.type or "",
        consumers=len(stats.consumers),
        rate_delivered=stats.rate_delivered,
        backlog=stats.backlog_messages,
        backlog_bytes=stats.backlog_bytes,
        unacked=stats.unacked,
        delayed=stats.delayed,
        lag_s=stats.lag_s,
        drain_s=stats.drain_s,
        states=tuple(name for name, is_so in flags if is_so),
    )


def partition_topic_rows(
    partitions: Iterable[PartitionStatus], groups: Sequence[GroupStatus], rates: Mapping[TopicPartition, float]
) -> list[TopicRow]:
    """Return the rows of topics of partitions with their consumer groups. Kafka's internal topics are left out.

    rates: messages per second that were appended to each partition.
    """
    topics: dict[str, list[PartitionStatus]] = {}
    for partition in partitions:
        if partition.topic not in INTERNAL_TOPICS:
            topics.setdefault(partition.topic, []).append(partition)
    return [_partition_topic_row(name, rows, groups, rates) for name, rows in topics.items()]


def _partition_topic_row(
    name: str, partitions: Sequence[PartitionStatus], groups: Sequence[GroupStatus],
    rates: Mapping[TopicPartition, float],
) -> TopicRow:  # fmt: skip
    subscriptions = tuple(group_row(group.of_topic(name)) for group in groups if name in group.topics)
    kept = [0 if row.end is None or row.start is None else row.end - row.start for row in partitions]
    counts = PartitionCounts.of(partitions)
    problems = (
        ("without leader", counts.without_leader), ("under min ISR", counts.under_min_isr),
        ("under-replicated", counts.under_replicated),
    )  # fmt: skip
    return TopicRow(
        name=name,
        partitions=len(partitions),
        messages=sum(kept),
        rate_published=sum(rates.get(TopicPartition(name, row.partition), 0.0) for row in partitions),
        rate_delivered=sum(row.rate_delivered or 0.0 for row in subscriptions),
        backlog=max((row.backlog or 0 for row in subscriptions), default=0),
        oldest_s=max((row.lag_s or 0.0 for row in subscriptions), default=0.0),
        states=tuple(f"{count} {text}" for text, count in problems if count),
        subscriptions=subscriptions,
    )


def group_row(group: GroupStatus) -> SubscriptionRow:
    """Return a consumer group as a row, with the partitions that it has."""
    return SubscriptionRow(
        name=group.group,
        type=GROUP,
        consumers=group.members,
        rate_delivered=group.rate_out,
        backlog=group.lag,
        backlog_bytes=None,
        unacked=None,
        delayed=None,
        lag_s=group.lag_s,
        drain_s=group.drain_s,
        states=group.states,
    )


def by_backlog(rows: Iterable[TopicRow]) -> tuple[TopicRow, ...]:
    """Return rows that need attention first, then those with the longest backlog."""

    def rank(row: TopicRow) -> tuple[bool, int, str]:
        fine = not row.states and not any(sub.states for sub in row.subscriptions)
        return fine, -row.backlog, row.name

    return tuple(sorted(rows, key=rank))


def ledger_rows(status: ClusterStatus) -> tuple[LedgerRow, ...]:
    """Return the rows of ledgers that are open, or lack copies."""
    return tuple(map(_ledger_row, filter(_is_of_interest, status.ledgers)))


def _is_of_interest(ledger: LedgerStatus) -> bool:
    return str(ledger.state) != "closed" or ledger.below_write_quorum > 0


def _ledger_row(ledger: LedgerStatus) -> LedgerRow:
    return LedgerRow(
        ledger=ledger.ledger,
        state=str(ledger.state),
        confirmed=ledger.last_add_confirmed,
        behind=ledger.distance,
        missing=ledger.below_write_quorum,
    )


def recovery_row(overview: RecoveryOverview) -> RecoveryRow:
    """Return the row of auto-recovery, with its findings and orders."""
    hold = overview.hold
    return RecoveryRow(
        colour=str(overview.health.colour),
        auditor=overview.health.auditor,
        one_copy_entries=overview.one_copy_entries,
        lost_entries=overview.lost_entries,
        rack_violations=overview.rack_violations,
        hold=None if hold is None else hold.reason,
        hold_s=None if hold is None or not hold.since_us else (overview.at_us - hold.since_us) / 1e6,
        findings=tuple(
            FindingRow(colour=str(finding.colour), code=finding.code, text=finding.text, next_step=finding.next_step)
            for finding in overview.health.findings
        ),
        orders=tuple(map(_order_row, overview.orders)),
    )


def _order_row(order: OrderOverview) -> OrderRow:
    return OrderRow(
        bookie=order.bookie,
        why=": ".join(filter(None, (order.phase, order.reason))),
        since_us=order.since_us,
        ledgers_left=order.ledgers_left,
        bytes_left=order.bytes_left,
        bytes_per_s=order.bytes_per_s,
        eta_s=order.eta_s,
    )


def replication_rows(statuses: Iterable[ReplicatorStatus], now_us: int) -> tuple[ReplicationRow, ...]:
    """Return the rows of replications: alarms first, then those with the most unsent messages.

    now_us: for the age of what is not sent.
    """
    rows = [
        ReplicationRow(
            topic=status.topic,
            target=status.target,
            state=status.state,
            unsent=status.unsent_messages,
            unsent_bytes=status.unsent_bytes,
            age_s=None if status.oldest_unsent_us is None else max(now_us - status.oldest_unsent_us, 0) / 1e6,
            alarm=status.alarm,
            error=status.error,
        )
        for status in statuses
    ]
    return tuple(sorted(rows, key=lambda row: (not row.alarm, -row.unsent, row.topic, row.target)))


def bookie_rows(
    running: Sequence[BookieStatus], known: Iterable[str], now_us: int = 0, absent: Sequence[BookieStatus] = ()
) -> tuple[BookieRow, ...]:
    """Return the rows of bookies.

    known: names, without incarnations, of all bookies in the metadata; one that does not run is missing. now_us: for
    the age of what was verified on their disks. absent: bookies that do not run and have a state; retired ones are left
    out.
    """
    running_names = {bookie.bookie.partition("@")[0] for bookie in running}
    rows = [
        BookieRow(
            bookie=bookie.bookie,
            address=bookie.address,
            free_bytes=bookie.free_bytes,
            state=", ".join(filter(None, (bookie.phase or "", "read-only" if bookie.read_only else ""))),
            verified_s=max(now_us - bookie.verified_since_us, 0) / 1e6 if bookie.verified_since_us else None,
        )
        for bookie in running
    ]
    phases = {bookie.bookie.partition("@")[0]: str(bookie.phase) for bookie in absent}
    states = {name: phases.get(name, "missing") for name in known if name not in running_names}
    rows += [BookieRow(bookie=name, state=state) for name, state in states.items() if state != BookiePhase.RETIRED]
    return tuple(sorted(rows, key=lambda row: row.bookie))
