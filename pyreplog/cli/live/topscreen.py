"""The screen of `pyreplog top`: a frame as a heading and tables."""

from __future__ import annotations

from pyreplog.cli.live.topview import BookieRow, Frame, LedgerRow, SubscriptionRow, TopicRow
from pyreplog.cli.shared.output import amount, counted, duration, moment
from pyreplog.cli.shared.tables import Table

_TOPICS = (
    "topic", "owner, type", "consumers", "in/s", "out/s", "backlog", "size", "unacked", "delayed", "oldest",
    "drained in", "state",
)  # fmt: skip


def heading(frame: Frame) -> list[str]:
    """Return the lines above the tables."""
    subscriptions = sum(len(topic.subscriptions) for topic in frame.topics)
    rate_in = sum(topic.rate_published for topic in frame.topics)
    rate_out = sum(topic.rate_delivered for topic in frame.topics)
    line = f"{moment(frame.at_us)[:19]}Z  {counted(len(frame.topics), 'topic')}, "
    line += f"{counted(subscriptions, 'subscription')}, {_rate(rate_in)}/s in, {_rate(rate_out)}/s out"
    return [line, *frame.notes]


def tables(frame: Frame) -> list[Table]:
    """Return the tables of topics with their subscriptions, of ledgers, and of bookies."""
    rows: list[tuple[str, ...]] = []
    marked = set()
    for topic in frame.topics:
        for cells, states in (_topic(topic), *map(_subscription, topic.subscriptions)):
            if states:
                marked.add(len(rows))
            rows.append((*cells, ", ".join(states)))
    return [Table(_TOPICS, rows, frozenset(marked)), _ledgers(frame.ledgers), _bookies(frame.bookies)]


def subscriptions(rows: tuple[SubscriptionRow, ...]) -> Table:
    """Return the table of the subscriptions of one topic."""
    cells = [_subscription(row)[0] for row in rows]
    shown = [(row.name, *cell[1:3], *cell[4:], ", ".join(row.states)) for row, cell in zip(rows, cells, strict=True)]
    marked = frozenset(place for place, row in enumerate(rows) if row.states)
    return Table(("subscription", "type", _TOPICS[2], *_TOPICS[4:]), shown, marked)


def _topic(row: TopicRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if row.messages is None:
        return (row.name, row.owner, *[""] * (len(_TOPICS) - 3)), row.states
    cells = (
        row.name, row.owner, "", _rate(row.rate_published), _rate(row.rate_delivered), f"{row.backlog:,}",
        amount(row.backlog_bytes), "", "", duration(row.oldest_s), "",
    )  # fmt: skip
    return cells, row.states


def _subscription(row: SubscriptionRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    cells = (
        f"  {row.name}", row.type, str(row.consumers), "", _rate(row.rate_delivered), f"{row.backlog:,}",
        amount(row.backlog_bytes), f"{row.unacked:,}", _count(row.delayed), _span(row.lag_s), _span(row.drain_s),
    )  # fmt: skip
    return cells, row.states


def _ledgers(rows: tuple[LedgerRow, ...]) -> Table:
    cells = [(str(row.ledger), row.state, str(row.confirmed), str(row.behind), str(row.missing)) for row in rows]
    marked = frozenset(place for place, row in enumerate(rows) if row.missing)
    return Table(("ledger", "state", "LAC", "LAP-LAC", "missing copies"), cells, marked)


def _bookies(rows: tuple[BookieRow, ...]) -> Table:
    cells = [
        (row.bookie, row.address, "" if row.state == "missing" else amount(row.free_bytes), row.state) for row in rows
    ]
    marked = frozenset(place for place, row in enumerate(rows) if row.state)
    return Table(("bookie", "address", "free", "state"), cells, marked)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _count(messages: int | None) -> str:
    return "-" if messages is None else f"{messages:,}"


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
