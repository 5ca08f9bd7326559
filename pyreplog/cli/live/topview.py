"""The rows of `pyreplog top`, made from statistics of topics and of the cluster. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyreplog.ledger.status import BookieStatus, ClusterStatus, LedgerStatus
from pyreplog.topic.model.stats import SubscriptionStats, TopicStats


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A subscription. Rates are messages per second; backlog counts messages.

    lag_s: age of the oldest message that is not acknowledged. drain_s: seconds until the backlog is empty; None: not
    known, or never. states: states that need attention: stalled, blocked.
    """

    name: str
    type: str
    consumers: int
    rate_delivered: float
    backlog: int
    backlog_bytes: int
    unacked: int
    delayed: int | None
    lag_s: float | None
    drain_s: float | None
    states: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    """A topic.

    owner: address of its server; "": this process or none. backlog: that of the slowest durable subscription. oldest_s:
    age of the oldest message that a durable subscription has not acknowledged. states: held, refused, quota; or why its
    state is unknown, and messages is None.
    """

    name: str
    owner: str = ""
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
    """A bookie. state: "", "read-only" or "missing"."""

    bookie: str
    address: str = ""
    free_bytes: int = 0
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The state at one moment. notes: errors of sources that did not answer."""

    at_us: int
    topics: tuple[TopicRow, ...] = ()
    ledgers: tuple[LedgerRow, ...] = ()
    bookies: tuple[BookieRow, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def failed(self, note: str) -> Frame:
        """Return the last known state with a note of an error."""
        return replace(self, notes=(note,))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def topic_row(stats: TopicStats) -> TopicRow:
    """Return the row of a topic whose owner has answered."""
    publishing = () if stats.publishing == "open" else (stats.publishing,)
    quota = tuple(f"quota of {kind}" for kind in stats.quota_exceeded)
    return TopicRow(
        name=stats.name,
        owner=stats.owner,
        messages=stats.end.offset - stats.start.offset,
        rate_published=stats.rate_published,
        rate_delivered=stats.rate_delivered,
        backlog=max((sub.backlog_messages for sub in stats.subscriptions if sub.durable), default=0),
        backlog_bytes=stats.backlog_bytes,
        oldest_s=0.0 if stats.oldest is None else stats.oldest[1],
        states=publishing + quota,
        subscriptions=tuple(map(subscription_row, sorted(stats.subscriptions, key=lambda sub: sub.name))),
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


def bookie_rows(running: Sequence[BookieStatus], known: Iterable[str]) -> tuple[BookieRow, ...]:
    """Return the rows of bookies.

    known: names, without incarnations, of all bookies in the metadata; one that does not run is missing.
    """
    running_names = {bookie.bookie.partition("@")[0] for bookie in running}
    rows = [
        BookieRow(
            bookie=bookie.bookie,
            address=bookie.address,
            free_bytes=bookie.free_bytes,
            state="read-only" if bookie.read_only else "",
        )
        for bookie in running
    ]
    rows += [BookieRow(bookie=name, state="missing") for name in known if name not in running_names]
    return tuple(sorted(rows, key=lambda row: row.bookie))
