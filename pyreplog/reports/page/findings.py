"""Findings of reports on records and subscriptions, in sentences. Each function reads the table of one report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import amount, duration, moment, number, share
from pyreplog.reports.page.names import key_of, rows, subscription_of, topic_of
from pyreplog.reports.page.sentences import MOST, Found, each, total

HOT_TIMES = 10.0
"""A key is hot if it has so many times the records of the mean key."""
UNEVEN_TIMES = 2.0
"""A partition is hot if it has so many times the records of the mean one; likewise a minute."""
LAG_S = 60.0
"""A subscription lags if its oldest message has waited so many seconds; younger ones are on their way."""


# ---- subscriptions ---------------------------------------------------------------------------------------------


def lagging(table: pa.Table) -> Found:
    """Yield findings of backlog_by_subscription: subscriptions that lag, longest first, and those that do not."""
    behind = table.filter(pc.greater(table["backlog_entries"], 0)).sort_by(
        [("age_s", "descending"), ("backlog_entries", "descending")]
    )
    is_late = pc.greater_equal(behind["age_s"], LAG_S)
    yield from each(behind.filter(is_late), "bad", _lag, "more subscriptions lag")
    yield from each(behind.filter(pc.is_null(is_late)), "unknown", _lag, "more subscriptions have a backlog")
    yield from each(behind.filter(pc.invert(is_late)), "fine", _lag, "more subscriptions are just behind")
    up = table.filter(pc.equal(table["backlog_entries"], 0))
    if len(up):
        names = ", ".join(subscription_of(row) for row in rows(up.slice(0, MOST)))
        yield "fine", f"Without a backlog: {names}{'' if len(up) <= MOST else f', and {len(up) - MOST:,} more'}."
    if not len(table):
        yield "fine", "No topic has a subscription."


def _lag(row: dict[str, Any]) -> str:
    size = "" if row["backlog_bytes"] is None else f" ({amount(row['backlog_bytes'])})"
    text = f"{subscription_of(row)} lags by {counted(row['backlog_entries'], 'message')}{size}"
    if row["oldest_ts"] is None:
        return f"{text}; it is not known since when."
    return f"{text}; the oldest has waited since {moment(row['oldest_ts'])} UTC, {duration(row['age_s'])}."


def draining(table: pa.Table) -> Found:
    """Yield findings of drain_estimate: backlogs that grow, that stand still, and when others will be empty."""
    growing = table.filter(pc.equal(table["status"], "growing"))
    yield from each(growing, "bad", _growing, "more subscriptions fall further behind")
    stalled = table.filter(pc.equal(table["status"], "stalled"))
    yield from each(stalled, "bad", _stalled, "more subscriptions are stalled")
    unknown = table.filter(pc.and_(table["status"].is_null(), pc.greater(table["backlog_entries"], 0)))
    yield from each(unknown, "unknown", _undrained, "more subscriptions with unknown rates")
    drained = table.filter(pc.greater(table["drain_s"], 0)).sort_by([("drain_s", "descending")])
    yield from each(drained, "fine", _drained, "more subscriptions catch up")


def _growing(row: dict[str, Any]) -> str:
    return f"{subscription_of(row)} falls behind: messages come faster than it reads them."


def _stalled(row: dict[str, Any]) -> str:
    return f"{subscription_of(row)} has a backlog that does not shrink."


def _undrained(row: dict[str, Any]) -> str:
    return f"It is not known whether {subscription_of(row)} catches up: its earlier position is not stored."


def _drained(row: dict[str, Any]) -> str:
    return f"{subscription_of(row)} will be without a backlog in {duration(row['drain_s'])}, at the current rate."


def dead(table: pa.Table) -> Found:
    """Yield findings of dead_subscriptions."""
    yield from each(table, "bad", _dead, "more subscriptions look dead")


def _dead(row: dict[str, Any]) -> str:
    moved = row["last_cursor_move_ts"]
    since = "when it last moved is not known" if moved is None else f"it has not moved since {moment(moved)} UTC"
    return f"{subscription_of(row)} looks dead: {since}; it keeps {amount(row['backlog_bytes'] or 0)}."


def nothing(table: pa.Table) -> Found:
    """Yield no findings, for a report whose figures need no sentence."""
    yield from ()


# ---- hot keys, partitions and minutes --------------------------------------------------------------------------


def hot_keys(table: pa.Table) -> Found:
    """Yield findings of key_skew: the first key of each log or topic."""
    first = table.filter(pc.equal(table["rank"], 1))
    times = pa.array(_times_the_mean_key(table, first), pa.float64())
    first = first.append_column("times", times).sort_by([("share", "descending")])
    is_hot = pc.or_(pc.greater_equal(first["times"], HOT_TIMES), pc.equal(first["distinct_keys"], 1))
    hot, even = first.filter(is_hot), first.filter(pc.invert(is_hot))
    yield from each(hot, "hot", _hot_key, "more logs or topics have a hot key")
    yield from each(even, "fine", _even_keys, "more logs or topics have no hot key")
    if not len(first):
        yield "fine", "No record has a key."


def _times_the_mean_key(table: pa.Table, first: pa.Table) -> list[float]:
    """Divide the records of each first key by the mean over all keys of its partition.

    Records without a key do not count.
    """
    without_key = {
        (row["topic"], row["partition"]): row["share"] for row in rows(table.filter(table["rank"].is_null()))
    }
    return [
        row["share"] * row["distinct_keys"] / (1 - without_key.get((row["topic"], row["partition"]), 0.0))
        for row in rows(first)
    ]


def _hot_key(row: dict[str, Any]) -> str:
    if row["distinct_keys"] == 1:
        return f"{_first_key(row)}, and is the only key."
    keys = counted(row["distinct_keys"], "key")
    return f"{_first_key(row)}, {number(row['times'])} times those of the mean of {keys}."


def _even_keys(row: dict[str, Any]) -> str:
    return f"{_first_key(row)}, the most of {counted(row['distinct_keys'], 'key')}: none is hot."


def _first_key(row: dict[str, Any]) -> str:
    return f"{key_of(row['key'])} of {topic_of(row)} has {share(row['share'])} of the records"


def hot_partitions(table: pa.Table) -> Found:
    """Yield findings of partition_skew, for topics with partitions."""
    table = table.filter(pc.greater_equal(table["partition"], 0))
    hot = table.filter(pc.greater_equal(table["ratio_to_mean"], UNEVEN_TIMES)).sort_by(
        [("ratio_to_mean", "descending")]
    )
    yield from each(hot, "hot", _hot_partition, "more partitions are hot")
    if len(table) and not len(hot):
        most = pc.max(table["ratio_to_mean"]).as_py()
        yield "fine", f"Partitions are even: the largest has {number(most)} times the records of the mean one."


def _hot_partition(row: dict[str, Any]) -> str:
    return f"{topic_of(row)} has {number(row['ratio_to_mean'])} times the records of the mean partition."


def busiest(table: pa.Table) -> Found:
    """Yield the finding of rate_by_minute, for all logs and topics together."""
    if not len(table):
        yield "fine", "Nothing was appended."
        return
    minutes = table.group_by(["minute"]).aggregate([("entries", "sum"), ("bytes", "sum")])
    most = next(rows(minutes.sort_by([("entries_sum", "descending"), ("minute", "ascending")]).slice(0, 1)))
    figures = f"{counted(most['entries_sum'], 'record')}, {amount(most['bytes_sum'])}"
    times = most["entries_sum"] / pc.mean(minutes["entries_sum"]).as_py()
    if len(minutes) == 1:
        yield "fine", f"All was appended in the minute from {moment(most['minute'])} UTC: {figures}."
        return
    yield (
        "hot" if times >= UNEVEN_TIMES else "fine",
        f"The busiest minute began {moment(most['minute'])} UTC: {figures}, {number(times)} times those of the mean "
        f"of {counted(len(minutes), 'minute')} with records.",
    )


# ---- gaps, duplicates, order -----------------------------------------------------------------------------------


def gaps(table: pa.Table) -> Found:
    """Yield the finding of log_gaps."""
    if len(table):
        yield "bad", f"{counted(total(table, 'missing'), 'offset')} missing, in {counted(len(table), 'gap')}."
    else:
        yield "fine", "Offsets have no gap."


def sequence_gaps(table: pa.Table) -> Found:
    """Yield the finding of sequence_gaps."""
    if len(table):
        text = f"{counted(total(table, 'missing'), 'sequence number')} of producers missing"
        yield "bad", f"{text}, in {counted(len(table), 'gap')}."
    else:
        yield "fine", "Sequence numbers of producers have no gap."


def duplicates(table: pa.Table) -> Found:
    """Yield the finding of duplicates."""
    if len(table):
        more = total(table, "copies") - len(table)
        text = f"{counted(len(table), 'message')} of producers exist more than once"
        yield "bad", f"{text}: {counted(more, 'duplicate')}."
    else:
        yield "fine", "No producer's message exists twice."


def order(table: pa.Table) -> Found:
    """Yield findings of order_violations."""
    violating = table.filter(pc.greater(table["violations"], 0)).sort_by([("violations", "descending")])
    yield from each(violating, "bad", _backwards, "more logs or topics are out of order")
    if not len(violating):
        yield "fine", "Append times never go back."


def _backwards(row: dict[str, Any]) -> str:
    back = duration(row["max_backstep_ms"] / 1000)
    return f"{topic_of(row)}: append times go back {counted(row['violations'], 'time')}, by up to {back}."
