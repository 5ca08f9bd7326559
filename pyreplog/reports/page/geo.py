"""Findings of the reports on geo-replication, in sentences."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import amount, duration, printable
from pyreplog.reports.page.names import subscription_of, topic_of
from pyreplog.reports.page.sentences import Found, each

LATE_S = 60.0
"""A target is late if the oldest message that it lacks is so many seconds old; younger ones are on their way."""


def replication(table: pa.Table) -> Found:
    """Yield findings of geo_replication: alarms, targets that lack messages, and those that are complete."""
    is_alarm = pc.is_valid(table["alarm"])
    yield from each(table.filter(is_alarm), "bad", _alarm, "more replications need a decision")
    fine = table.filter(pc.invert(is_alarm))
    behind = fine.filter(pc.greater(fine["unsent_messages"], 0)).sort_by(
        [("age_s", "descending"), ("unsent_messages", "descending")]
    )
    is_late = pc.greater_equal(behind["age_s"], LATE_S)
    yield from each(behind.filter(is_late), "hot", _lag, "more targets lack messages")
    yield from each(behind.filter(pc.is_null(is_late)), "unknown", _lag, "more targets lack messages")
    yield from each(behind.filter(pc.invert(is_late)), "fine", _lag, "more targets are just behind")
    complete = len(fine) - len(behind)
    if complete:
        yield "fine", f"Without a lag: {counted(complete, 'replication')}."


def _names(row: dict[str, Any]) -> str:
    return f"{topic_of(row)} to {printable(row['target'])}"


def _alarm(row: dict[str, Any]) -> str:
    return f"{_names(row)} is {row['state']}: {printable(row['alarm'])}."


def _lag(row: dict[str, Any]) -> str:
    since = "" if row["age_s"] is None else f", the oldest {duration(row['age_s'])} old"
    paused = ", and it is paused" if row["state"] == "paused" else ""
    lacks = f"{counted(row['unsent_messages'], 'message')} unsent ({amount(row['unsent_bytes'])})"
    return f"{_names(row)}: {lacks}{since}{paused}."


# ---- a fail-over -----------------------------------------------------------------------------------------------


def readiness(table: pa.Table) -> Found:
    """Yield findings of geo_readiness: alarms, inexact fail-overs, targets that do not know a seek, and the others."""
    is_alarm = pc.is_valid(table["alarm"])
    yield from each(table.filter(is_alarm), "bad", _readiness_alarm, "more subscriptions need a decision")
    quiet = table.filter(pc.invert(is_alarm))
    by_state = {state: quiet.filter(pc.equal(quiet["fail_over"], state)) for state in _STATES}
    inexact = by_state["not ready"].sort_by([("lost", "descending"), ("repeated", "descending")])
    yield from each(inexact, "hot", _inexact, "more fail-overs would lose or repeat messages")
    yield from each(by_state["before the seek"], "hot", _before_the_seek, "more targets do not know a seek")
    yield from each(by_state["unknown"], "unknown", _not_known, "more fail-overs are not known")
    if ready := len(by_state["ready"]):
        yield "fine", f"Nothing would be lost or repeated: {counted(ready, 'fail-over')} of a subscription."


_STATES = ("ready", "not ready", "before the seek", "unknown")


def _moved(row: dict[str, Any]) -> str:
    return f"{subscription_of(row)} to {printable(row['target'])}"


def _readiness_alarm(row: dict[str, Any]) -> str:
    return f"{_moved(row)}: {printable(row['alarm'])}."


def _inexact(row: dict[str, Any]) -> str:
    effects = [f"{verb} {counted(row[name], 'message')}" for verb, name in _EFFECTS if row[name]]
    return f"{_moved(row)}: a fail-over now would {' and '.join(effects)}, at most{_since(row)}."


_EFFECTS = (("lose", "lost"), ("repeat", "repeated"))


def _before_the_seek(row: dict[str, Any]) -> str:
    return f"{_moved(row)}: the target does not know the last seek, and would go on from before it{_since(row)}."


def _not_known(row: dict[str, Any]) -> str:
    return f"{_moved(row)}: it is not known what a fail-over would lose or repeat{_since(row)}."


def _since(row: dict[str, Any]) -> str:
    return "" if row["reason"] is None else f"; {printable(row['reason'])}"
