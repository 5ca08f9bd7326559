"""`pyreplog topic stats`, `topic stats-internal` and `subscription stats`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from pyreplog.cli.live.topscreen import subscriptions
from pyreplog.cli.live.topview import topic_row
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
        found = topic.stats()
    if arguments.json:
        print_json(found.to_dict())
        return 0
    stats = found.total if isinstance(found, PartitionedStats) else found
    print_fields(_partitioned(found) if isinstance(found, PartitionedStats) else _topic(stats))
    parts = [_partitions(found.parts)] if isinstance(found, PartitionedStats) else []
    print_tables([*parts, subscriptions(topic_row(stats).subscriptions), _consumers(stats.subscriptions)])
    return 0


def run_internal(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        found = topic.internal_stats()
    if arguments.json:
        print_json(found.to_dict())
        return 0
    parts = list(found.parts.values()) if isinstance(found, PartitionedInternalStats) else [found]
    for place, stats in enumerate(parts):
        if place:
            say()
        print_fields(_internal(stats))
        print_tables([_ledgers(stats.ledgers), _cursors(stats.cursors)])
    return 0


def run_subscription(arguments: argparse.Namespace) -> int:
    with targets.topic(arguments) as topic:
        of_topic = topic.stats()
    stats = of_topic.total if isinstance(of_topic, PartitionedStats) else of_topic
    found = {subscription.name: subscription for subscription in stats.subscriptions}.get(arguments.subscription)
    if found is None:
        raise NoSuchSubscriptionError(arguments.topic, f"there is no subscription {arguments.subscription}")
    if arguments.json:
        print_json(found.to_dict())
        return 0
    print_fields(_subscription(found))
    print_tables([_consumers((found,))])
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
        ("publishing", ", ".join([stats.publishing, *(f"quota of {what} used up" for what in stats.quota_exceeded)])),
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
    """Of all together: they have neither one owner nor one offset."""
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
    delayed = "not known how many" if stats.delayed is None else f"{stats.delayed:,}"
    return [
        ("subscription", stats.name),
        ("type", f"{stats.type or 'not known'}{'' if stats.durable else ', ends with its last consumer'}"),
        ("mark", f"{stats.mark.offset:,}, and {counted(stats.ack_ranges, 'range')} acknowledged behind it"),
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
    rows = [(subscription.name, one) for subscription in stats for one in subscription.consumers]
    return Table(
        ("consumer", "of", "address", "permits", "unacked", "delivered", "acknowledged", "state"),
        [
            (one.name, name, one.address, f"{one.permits:,}", f"{one.unacked:,}", f"{one.delivered_messages:,}",
             f"{one.acked_messages:,}", _consumer_state(one))
            for name, one in rows
        ],
        frozenset(place for place, (_, one) in enumerate(rows) if one.blocked),
    )  # fmt: skip


def _consumer_state(one: ConsumerStats) -> str:
    return "blocked" if one.blocked else "active" if one.active else "standby"


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
        ("ledger", "from offset", "messages", "entries", "size", "made", "closed"),
        [
            (str(one.ledger), f"{one.start.offset:,}", f"{one.messages:,}", *_counts(one), moment(one.created_us),
             "" if one.closed_us is None else moment(one.closed_us))
            for one in ledgers
        ],
    )  # fmt: skip


def _counts(one: LedgerStats) -> tuple[str, str]:
    """Entries and size, which are not known of a ledger that is written to."""
    return ("-", "-") if one.closed_us is None else (f"{one.entries:,}", amount(one.size))


def _cursors(cursors: tuple[CursorStats, ...]) -> Table:
    return Table(
        ("cursor", "mark", "stored", "read up to", "acked behind", "ranges", "reads", "to replay", "ledger", "state"),
        [
            (one.name, f"{one.mark.offset:,}", f"{one.durable_mark.offset:,}", f"{one.read:,}",
             f"{one.acked_messages:,}", f"{one.ack_ranges:,}", str(one.reads_pending), str(one.replays_pending),
             str(one.cursor_ledger) if one.cursor_ledger >= 0 else "-", _cursor_state(one))
            for one in cursors
        ],
    )  # fmt: skip


def _cursor_state(one: CursorStats) -> str:
    flags = ((one.state, True), ("waiting", one.waiting), ("not stored yet", one.dirty))
    return ", ".join(name for name, is_so in flags if is_so)
