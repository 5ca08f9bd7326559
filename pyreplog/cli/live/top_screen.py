"""The screen of `pyreplog top`: a frame as a heading and tables."""

from __future__ import annotations

from pyreplog.cli.live.top_view import (
    GROUP,
    BookieRow,
    FindingRow,
    Frame,
    LedgerRow,
    OrderRow,
    RecoveryRow,
    ReplicationRow,
    SubscriptionRow,
    TopicRow,
)
from pyreplog.cli.shared.output import amount, counted, duration, moment
from pyreplog.cli.shared.tables import Table
from pyreplog.partition.partition_status import BrokerStatus, PartitionCounts, PartitionStatus

PARTITIONS_SHOWN = 40
"""Rows of partitions on the screen, at most; those that need attention come first."""

_TOPICS = (
    "topic", "owner, type", "consumers", "in/s", "out/s", "backlog", "size", "unacked", "delayed", "oldest",
    "drained in", "state",
)  # fmt: skip


def heading(frame: Frame) -> list[str]:
    """Return the lines above the tables."""
    subscriptions = sum(len(topic.subscriptions) for topic in frame.topics if topic.partitions is None)
    rate_in = sum(topic.rate_published for topic in frame.topics)
    rate_out = sum(topic.rate_delivered for topic in frame.topics)
    line = f"{moment(frame.at_us)[:19]}Z  {counted(len(frame.topics), 'topic')}, "
    groups = f"{counted(len(frame.groups), 'consumer group')}, " if frame.groups else ""
    line += f"{counted(subscriptions, 'subscription')}, {groups}{_rate(rate_in)}/s in, {_rate(rate_out)}/s out"
    partitions = [_partition_counts(frame)] if frame.brokers else []
    recovery = [] if frame.recovery is None else [_recovery(frame.recovery)]
    replication = [_replication(frame.replications)] if frame.replications else []
    return [line, *partitions, *recovery, *replication, *frame.notes]


def _partition_counts(frame: Frame) -> str:
    """Return the partitions and brokers in one line."""
    counts = PartitionCounts.of(frame.partitions)
    dead = sum(broker.state == "dead" for broker in frame.brokers)
    parts = [f"{counted(len(frame.brokers), 'broker')}", f"{counted(counts.partitions, 'partition')}"]
    parts += [
        f"{count:,} {text}"
        for count, text in (
            (dead, "dead"), (counts.without_leader, "without a leader"), (counts.under_min_isr, "under min ISR"),
            (counts.under_replicated, "under-replicated"), (counts.not_preferred, "not led by the preferred leader"),
        )
        if count
    ]  # fmt: skip
    return ", ".join(parts)


def _replication(rows: tuple[ReplicationRow, ...]) -> str:
    """Return the replication to other clusters in one line."""
    alarms = sum(bool(row.alarm) for row in rows)
    line = f"geo-replication: {counted(len({row.target for row in rows}), 'target')}, "
    line += f"{counted(sum(row.unsent for row in rows), 'message')} unsent"
    return f"{line}, {counted(alarms, 'alarm')}" if alarms else line


def _recovery(row: RecoveryRow) -> str:
    """Return health and copies in one line."""
    reason = f" ({row.findings[0].code})" if row.findings else ""
    parts = [
        f"cluster {row.colour}{reason}",
        f"{counted(row.one_copy_entries, 'entry')} at one copy",
        f"{counted(row.lost_entries, 'entry')} lost",
        f"{counted(row.rack_violations, 'ledger')} in one rack",
    ]
    if row.hold is not None:
        parts.append(f"on hold for {_span(row.hold_s)}: {row.hold}")
    return ", ".join(parts)


def tables(frame: Frame) -> list[Table]:
    """Return the tables of topics with their subscriptions and consumer groups, of partitions, brokers, ledgers,
    bookies, auto-recovery and geo-replication."""
    rows: list[tuple[str, ...]] = []
    marked = set()
    for topic in frame.topics:
        for cells, states in (_topic(topic), *map(_subscription, topic.subscriptions)):
            if states:
                marked.add(len(rows))
            rows.append((*cells, ", ".join(states)))
    shown = [Table(_TOPICS, rows, frozenset(marked))]
    if frame.brokers:
        shown += [_partitions(frame.partitions), _brokers(frame.brokers)]
    shown += [_ledgers(frame.ledgers), _bookies(frame.bookies)]
    if frame.recovery is not None:
        shown += [_orders(frame.recovery.orders), _findings(frame.recovery.findings)]
    if frame.replications:
        shown.append(_replications(frame.replications))
    return shown


def subscriptions(rows: tuple[SubscriptionRow, ...]) -> Table:
    """Return the table of the subscriptions of one topic."""
    cells = [_subscription(row)[0] for row in rows]
    shown = [(row.name, *cell[1:3], *cell[4:], ", ".join(row.states)) for row, cell in zip(rows, cells, strict=True)]
    marked = frozenset(place for place, row in enumerate(rows) if row.states)
    return Table(("subscription", "type", _TOPICS[2], *_TOPICS[4:]), shown, marked)


def _topic(row: TopicRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    owner = row.owner if row.partitions is None else counted(row.partitions, "partition")
    if row.messages is None:
        return (row.name, owner, *[""] * (len(_TOPICS) - 3)), row.states
    cells = (
        row.name, owner, "", _rate(row.rate_published), _rate(row.rate_delivered), f"{row.backlog:,}",
        "" if row.partitions is not None else amount(row.backlog_bytes), "", "", duration(row.oldest_s), "",
    )  # fmt: skip
    return cells, row.states


def _subscription(row: SubscriptionRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    is_group, rate = row.type == GROUP, row.rate_delivered
    cells = (
        f"  {row.name}", row.type, _count(row.consumers), "", "-" if rate is None else _rate(rate),
        _count(row.backlog), "" if row.backlog_bytes is None else amount(row.backlog_bytes),
        "" if is_group else _count(row.unacked), "" if is_group else _count(row.delayed), _span(row.lag_s),
        _span(row.drain_s),
    )  # fmt: skip
    return cells, row.states


def _partitions(rows: tuple[PartitionStatus, ...]) -> Table:
    shown = rows[:PARTITIONS_SHOWN]
    cells = []
    for row in shown:
        lags = [f"{each.broker}:{each.lag:,}" for each in row.replicas if each.lag]
        behind = [each.behind_s for each in row.replicas if each.behind_s]
        cells.append(
            (
                row.topic, str(row.partition), row.leader or "-", ",".join(row.isr) or "-", str(row.min_isr),
                ",".join(row.out_of_sync) or "-", _count(row.high_watermark), _count(row.last_stable),
                ",".join(lags) or "-", _span(max(behind, default=None)), ", ".join(row.states),
            )
        )  # fmt: skip
    header = (
        "partition of", "number", "leader", "ISR", "min", "not in sync", "high watermark", "last stable", "replica lag",
        "behind", "state",
    )  # fmt: skip
    return Table(header, cells, frozenset(place for place, row in enumerate(shown) if row.states))


def _brokers(rows: tuple[BrokerStatus, ...]) -> Table:
    cells = [
        (
            row.broker, "" if row.state == "alive" else row.state, str(row.leads), str(row.preferred),
            str(row.replicas), "-" if row.ratio_to_mean is None else f"{row.ratio_to_mean:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    header = ("broker", "state", "leads", "preferred for", "replicas", "of the mean")
    return Table(header, cells, frozenset(place for place, row in enumerate(rows) if row.state != "alive"))


def _ledgers(rows: tuple[LedgerRow, ...]) -> Table:
    cells = [(str(row.ledger), row.state, str(row.confirmed), str(row.behind), str(row.missing)) for row in rows]
    marked = frozenset(place for place, row in enumerate(rows) if row.missing)
    return Table(("ledger", "state", "LAC", "LAP-LAC", "missing copies"), cells, marked)


def _bookies(rows: tuple[BookieRow, ...]) -> Table:
    cells = [
        (
            row.bookie, row.address, amount(row.free_bytes) if row.address or row.free_bytes else "",
            "" if row.verified_s is None else age(row.verified_s), row.state,
        )
        for row in rows
    ]  # fmt: skip
    marked = frozenset(place for place, row in enumerate(rows) if row.state)
    return Table(("bookie", "address", "free", "verified within", "state"), cells, marked)


def _orders(rows: tuple[OrderRow, ...]) -> Table:
    cells = [
        (
            row.bookie, str(row.ledgers_left), amount(row.bytes_left), f"{amount(row.bytes_per_s)}/s", _span(row.eta_s),
            moment(row.since_us)[:19] + "Z" if row.since_us else "-", row.why,
        )
        for row in rows
    ]  # fmt: skip
    header = ("copied again", "ledgers left", "bytes left", "rate", "time left", "since", "why")
    return Table(header, cells, frozenset(place for place, row in enumerate(rows) if not row.bytes_per_s))


def _findings(rows: tuple[FindingRow, ...]) -> Table:
    cells = [(row.colour, row.code, row.text, row.next_step) for row in rows]
    marked = frozenset(place for place, row in enumerate(rows) if row.colour == "red")
    return Table(("health", "reason", "what", "next step"), cells, marked)


def _replications(rows: tuple[ReplicationRow, ...]) -> Table:
    cells = [
        (row.topic, row.target, row.state, f"{row.unsent:,}", amount(row.unsent_bytes), _span(row.age_s),
         row.alarm or row.error)
        for row in rows
    ]  # fmt: skip
    header = ("replicated", "target", "state", "unsent", "bytes", "age", "alarm or error")
    return Table(header, cells, frozenset(place for place, row in enumerate(rows) if row.alarm))


def age(seconds: float) -> str:
    """Format a time for which nobody needs seconds."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _count(messages: int | None) -> str:
    return "-" if messages is None else f"{messages:,}"


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
