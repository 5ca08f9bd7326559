"""Findings of the report on geo-replication, in sentences."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import amount, duration, printable
from pyreplog.reports.page.names import topic_of
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
