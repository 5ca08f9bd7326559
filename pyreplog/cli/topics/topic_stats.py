"""`pyreplog topic stats`, `topic stats-internal` and `subscription stats`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from pyreplog.cli.live.top_screen import subscriptions
from pyreplog.cli.live.top_view import topic_row
from pyreplog.cli.shared import targets
from pyreplog.cli.shared.output import amount, counted, duration, moment, print_fields, print_json, say
from pyreplog.cli.shared.tables import Table, print_tables
from pyreplog.errors import NoSuchSubscriptionError
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    PartitionedInternalStats,
    PartitionedStats,
    SubscriptionStats,
    TopicStats,
)


def run(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        answer = topic.stats()
    if arguments.json:
        print_json(answer.to_dict())
        return 0
    stats = answer.total if isinstance(answer, PartitionedStats) else answer
    print_fields(_partitioned(answer) if isinstance(answer, PartitionedStats) else _topic(stats))
    parts = [_partitions(answer.parts)] if isinstance(answer, PartitionedStats) else []
    print_tables([*parts, subscriptions(topic_row(stats).subscriptions), _consumers(stats.subscriptions)])
    return 0


def run_internal(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        answer = topic.internal_stats()
    if arguments.json:
        print_json(answer.to_dict())
        return 0
    parts = list(answer.parts.values()) if isinstance(answer, PartitionedInternalStats) else [answer]
    for place, stats in enumerate(parts):
        if place:
            say()
        print_fields(_internal(stats))
        print_tables([_ledgers(stats.ledgers), _cursors(stats.cursors)])
    return 0


def run_subscription(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        answer = topic.stats()
    stats = answer.total if isinstance(answer, PartitionedStats) else answer
    subscription_stats = {subscription.name: subscription for subscription in stats.subscriptions}.get(
        arguments.subscription
    )
    if subscription_stats is None:
        raise NoSuchSubscriptionError(arguments.topic, f"it has no subscription {arguments.subscription}")
    if arguments.json:
        print_json(subscription_stats.to_dict())
        return 0
    print_fields(_subscription(subscription_stats))
    print_tables([_consumers((subscription_stats,))])
    return 0


# ---- for people ------------------------------------------------------------------------------------------------


def _topic(stats: TopicStats) -> list[tuple[str, object]]:
    quotas = [] if stats.quota_bytes is None else [amount(stats.quota_bytes)]
    quotas += [] if stats.quota_ms is None else [duration(stats.quota_ms / 1000)]
    fields: list[tuple[str, object]] = [
        ("topic", stats.name),
        ("owner", f"{stats.owner or 'this process'}, epoch {stats.epoch}"),
        ("kept", f"{_range(stats.start, stats.end)}, {amount(stats.storage_bytes)}"),
        ("in", f"{stats.rate_published:,.1f}/s, {amount(stats.rate_published_bytes)}/s"),
        ("out", f"{stats.rate_delivered:,.1f}/s, {amount(stats.rate_delivered_bytes)}/s"),
        ("pending", f"{counted(stats.pending_entries, 'entry')}, {amount(stats.pending_bytes)}"),
        ("publishing", ", ".join([stats.publishing, *(f"quota of {kind} used up" for kind in stats.quota_exceeded)])),
        ("quota", " or ".join(quotas) or "none"),
        ("backlog", amount(stats.backlog_bytes)),
    ]
    if stats.waits_for:
        fields.append(("waits for", stats.waits_for))
    if stats.oldest is not None:
        fields.append(("oldest", f"{duration(stats.oldest[1])}, of {stats.oldest[0]}"))
    if stats.deduplicates:
        duplicates = f"{counted(stats.duplicates, 'duplicate')} dropped"
        fields.append(("producers", f"{counted(stats.producers, 'name')} known, {duplicates}"))
    return [*fields, *stats.properties.items()]


def _partitioned(stats: PartitionedStats) -> list[tuple[str, object]]:
    """Return the fields of all partitions together, which may have several owners and have no common offset."""
    owners = {part.owner or "this process" for part in stats.parts.values()}
    kept = stats.total.end.offset - stats.total.start.offset
    fields = dict(_topic(stats.total))
    fields["owner"] = ", ".join(sorted(owners))
    where = f"in {counted(stats.partitions, 'partition')}, {amount(stats.total.storage_bytes)}"
    fields["kept"] = f"{counted(kept, 'message')} {where}"
    return list(fields.items())


def _partitions(parts: Mapping[int, TopicStats]) -> Table:
    rows = [
        (str(at), part.owner or "this process", f"{part.start.offset:,}", f"{part.end.offset:,}",
         amount(part.storage_bytes), f"{part.rate_published:,.1f}", amount(part.backlog_bytes),
         part.publishing if part.publishing != "open" else "")
        for at, part in sorted(parts.items())
    ]  # fmt: skip
    header = ("partition", "owner", "from offset", "end", "kept", "in/s", "backlog", "state")
    return Table(header, rows, frozenset(place for place, row in enumerate(rows) if row[-1]))


def _range(start: TopicPosition, end: TopicPosition) -> str:
    count = end.offset - start.offset
    return counted(count, "message") + (f", offsets {start.offset:,} to {end.offset - 1:,}" if count else "")


def _subscription(stats: SubscriptionStats) -> list[tuple[str, object]]:
    drain = f", drained in {duration(stats.drain_s)}" if stats.drain_s else ""
    delayed = "an unknown number" if stats.delayed is None else f"{stats.delayed:,}"
    return [
        ("subscription", stats.name),
        ("type", f"{stats.type or 'not known'}{'' if stats.durable else ', ends with its last consumer'}"),
        ("mark", f"{stats.mark.offset:,}, and {counted(stats.ack_ranges, 'range')} acknowledged after it"),
        ("backlog", f"{counted(stats.backlog_messages, 'message')}, {amount(stats.backlog_bytes)}{drain}"),
        ("oldest", "not known" if stats.lag_s is None else duration(stats.lag_s)),
        ("unacked", f"{stats.unacked:,}{', blocked by them' if stats.blocked else ''}"),
        ("waiting", f"{delayed} delayed, {stats.replay:,} to be sent again"),
        ("delivered", f"{stats.delivered_messages:,}, {stats.redelivered_messages:,} of them again"),
        ("rates", f"{stats.rate_delivered:,.1f}/s delivered, {stats.rate_acked:,.1f}/s acknowledged"),
        ("stalled", "yes" if stats.stalled else "no"),
        *stats.properties.items(),
    ]


def _consumers(stats: tuple[SubscriptionStats, ...]) -> Table:
    rows = [(subscription.name, consumer) for subscription in stats for consumer in subscription.consumers]
    return Table(
        ("consumer", "of", "address", "permits", "unacked", "delivered", "acknowledged", "state"),
        [
            (consumer.name, name, consumer.address, f"{consumer.permits:,}", f"{consumer.unacked:,}",
             f"{consumer.delivered_messages:,}", f"{consumer.acked_messages:,}", _consumer_state(consumer))
            for name, consumer in rows
        ],
        frozenset(place for place, (_, consumer) in enumerate(rows) if consumer.blocked),
    )  # fmt: skip


def _consumer_state(consumer: ConsumerStats) -> str:
    return "blocked" if consumer.blocked else "active" if consumer.active else "standby"


def _internal(stats: InternalStats) -> list[tuple[str, object]]:
    return [
        ("topic", stats.name),
        ("state", f"{stats.state}, epoch {stats.epoch}"),
        ("kept", f"{_range(stats.start, stats.end)}, {counted(stats.entries, 'entry')}, {amount(stats.size)}"),
        ("pending", f"{counted(stats.pending_entries, 'entry')}, {amount(stats.pending_bytes)}"),
        ("cursors", f"{len(stats.cursors)}, {stats.waiting_cursors} of them wait for messages"),
    ]


def _ledgers(ledgers: tuple[LedgerStats, ...]) -> Table:
    return Table(
        ("ledger", "from offset", "messages", "entries", "size", "created", "closed"),
        [
            (str(ledger.ledger), f"{ledger.start.offset:,}", f"{ledger.messages:,}", *_counts(ledger),
             moment(ledger.created_us), "" if ledger.closed_us is None else moment(ledger.closed_us))
            for ledger in ledgers
        ],
    )  # fmt: skip


def _counts(ledger: LedgerStats) -> tuple[str, str]:
    """Return entries and size, which are unknown for an open ledger."""
    return ("-", "-") if ledger.closed_us is None else (f"{ledger.entries:,}", amount(ledger.size))


def _cursors(cursors: tuple[CursorStats, ...]) -> Table:
    return Table(
        ("cursor", "mark", "stored", "read up to", "acked after", "ranges", "reads", "to replay", "ledger", "state"),
        [
            (cursor.name, f"{cursor.mark.offset:,}", f"{cursor.durable_mark.offset:,}", f"{cursor.read:,}",
             f"{cursor.acked_messages:,}", f"{cursor.ack_ranges:,}", str(cursor.reads_pending),
             str(cursor.replays_pending), str(cursor.cursor_ledger) if cursor.cursor_ledger >= 0 else "-",
             _cursor_state(cursor))
            for cursor in cursors
        ],
    )  # fmt: skip


def _cursor_state(cursor: CursorStats) -> str:
    flags = ((cursor.state, True), ("waiting", cursor.waiting), ("not stored yet", cursor.dirty))
    return ", ".join(name for name, is_so in flags if is_so)
