"""Findings of reports on partitions and consumer groups, in sentences. Each function reads the table of one report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import duration, number, printable, shortened
from pyreplog.reports.page.findings import LAG_S, UNEVEN_TIMES
from pyreplog.reports.page.names import rows, topic_of
from pyreplog.reports.page.sentences import MOST, Found, each

LATE_S = 10.0
"""A replica lags if it has not been caught up for so many seconds; a third of the default of `lag_ms`."""


def states(table: pa.Table) -> Found:
    """Yield findings of partition_state: partitions without a leader, that refuse appends, or that lack replicas."""
    state = pc.fill_null(table["state"], "")
    has_no_leader = pc.is_null(table["leader"])
    yield from each(table.filter(has_no_leader), "bad", _leaderless, "more partitions have no leader")
    is_short = pc.and_(pc.match_substring(state, "under min ISR"), pc.invert(has_no_leader))
    yield from each(table.filter(is_short), "bad", _refusing, "more partitions refuse appends")
    is_thin = pc.and_(pc.is_valid(table["not_in_sync"]), pc.invert(pc.or_(has_no_leader, is_short)))
    yield from each(table.filter(is_thin), "hot", _thin, "more partitions are under-replicated")
    fine = len(table) - sum(pc.sum(flags).as_py() or 0 for flags in (has_no_leader, is_short, is_thin))
    if fine:
        yield "fine", f"Led, with all replicas in sync: {counted(fine, 'partition')}."


def _leaderless(row: dict[str, Any]) -> str:
    return f"{topic_of(row)} has no leader: nothing can be appended or read."


def _refusing(row: dict[str, Any]) -> str:
    count = len(row["isr"].split(", "))
    return f"{topic_of(row)} has {counted(count, 'in-sync replica')} of {row['min_isr']}: it refuses acks=-1."


def _thin(row: dict[str, Any]) -> str:
    return f"{topic_of(row)} is under-replicated: not in sync is {printable(row['not_in_sync'])}."


def replicas(table: pa.Table) -> Found:
    """Yield findings of replica_lag: replicas of live brokers that have been behind for long."""
    is_late = pc.and_(pc.greater_equal(table["behind_s"], LATE_S), pc.fill_null(table["alive"], True))
    late = table.filter(is_late).sort_by([("behind_s", "descending"), ("lag", "descending")])
    yield from each(late, "hot", _late, "more replicas lag")
    if not len(late):
        yield "fine", "No replica of a broker that lives lags."


def _late(row: dict[str, Any]) -> str:
    lacks = "" if row["lag"] is None else f" by {counted(row['lag'], 'message')}"
    where = f"The replica of {topic_of(row)} on broker {printable(row['broker'])}"
    return f"{where} lags{lacks}: it has not been caught up for {duration(row['behind_s'])}."


def skew(table: pa.Table) -> Found:
    """Yield findings of leader_skew: dead brokers, and brokers that lead many more partitions than others."""
    dead = table.filter(pc.and_(pc.equal(table["state"], "dead"), pc.greater(table["replicas"], 0)))
    yield from each(dead, "bad", _dead, "more brokers are dead")
    is_uneven = pc.and_(pc.greater_equal(table["ratio_to_mean"], UNEVEN_TIMES), pc.greater(table["leads"], 1))
    uneven = table.filter(is_uneven)
    yield from each(uneven, "hot", _uneven, "more brokers lead too much")
    if not len(dead) and not len(uneven):
        alive = len(table.filter(pc.not_equal(table["state"], "dead")))
        yield "fine", f"Partitions are spread evenly over {counted(alive, 'broker')}."


def _dead(row: dict[str, Any]) -> str:
    return f"Broker {printable(row['broker'])} is dead, with {counted(row['replicas'], 'replica')}."


def _uneven(row: dict[str, Any]) -> str:
    times = f"{number(row['ratio_to_mean'])} times the partitions of the mean broker"
    return f"Broker {printable(row['broker'])} leads {times}; it is preferred for {row['preferred']} of {row['leads']}."


# ---- consumer groups -------------------------------------------------------------------------------------------


def groups(table: pa.Table) -> Found:
    """Yield findings of group_lag: groups that lag, longest first, whether they catch up, and groups without a lag."""
    behind = table.filter(pc.greater(table["lag"], 0)).sort_by([("lag_s", "descending"), ("lag", "descending")])
    is_late = pc.greater_equal(behind["lag_s"], LAG_S)
    yield from each(behind.filter(is_late), "bad", _lag, "more partitions lag in a consumer group")
    yield from each(behind.filter(pc.is_null(is_late)), "unknown", _lag, "more partitions have a lag")
    yield from each(behind.filter(pc.invert(is_late)), "fine", _lag, "more partitions are just behind")
    unknown = table.filter(pc.is_null(table["lag"]))
    yield from each(unknown, "unknown", _unknown, "more lags of consumer groups are not known")
    up = table.filter(pc.equal(table["lag"], 0))
    if len(up):
        names = ", ".join(_group_of(row) for row in rows(up.slice(0, MOST)))
        yield "fine", f"Without a lag: {names}{'' if len(up) <= MOST else f', and {len(up) - MOST:,} more'}."


def _group_of(row: dict[str, Any]) -> str:
    return f"group {_name(row)}"


def _name(row: dict[str, Any]) -> str:
    return f"“{shortened(printable(row['group']))}” of {topic_of(row)}"


def _lag(row: dict[str, Any]) -> str:
    return f"Group {_name(row)} lags by {counted(row['lag'], 'message')}{_age(row)}{_outlook(row)}."


def _age(row: dict[str, Any]) -> str:
    return "" if row["lag_s"] is None else f"; the oldest has waited for {duration(row['lag_s'])}"


def _outlook(row: dict[str, Any]) -> str:
    if row["status"] == "draining":
        return f"; at the current rate it is gone in {duration(row['drain_s'])}"
    return {"growing": "; messages come faster than it reads them", "stalled": "; it does not shrink"}.get(
        row["status"] or "", ""
    )


def _unknown(row: dict[str, Any]) -> str:
    return f"It is not known how far {_group_of(row)} is behind: the leader did not answer."
