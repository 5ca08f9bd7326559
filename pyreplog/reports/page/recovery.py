"""Findings of reports on auto-recovery, in sentences. Each function reads the table of one report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import amount, duration, moment, printable
from pyreplog.reports.page.names import rows
from pyreplog.reports.page.sentences import Found, State, each

_DAY_S = 86_400.0
_SCRUB_LATE_S = 28 * _DAY_S
"""Twice the default of `scrub_interval_ms`."""


def health(table: pa.Table) -> Found:
    """Yield the reasons why the cluster is not green."""
    for row in rows(table):
        state: State = "bad" if row["health"] == "red" else "hot"
        yield state, f"{printable(row['found'])}. Next: {printable(row['next_step'])}."
    if not len(table):
        yield "fine", "The cluster is green: every entry has all its copies."


def state(table: pa.Table) -> Found:
    """Yield findings of recovery_state: entries at one copy, copies in one rack."""
    for row in rows(table):
        if row["one_copy_entries"]:
            yield "bad", f"{counted(row['one_copy_entries'], 'entry')} with at most one copy on a bookie that runs."
        if row["one_rack_ledgers"]:
            yield "hot", f"{counted(row['one_rack_ledgers'], 'ledger')} with all copies of entries in one rack."


def orders(table: pa.Table) -> Found:
    """Yield findings of recovery_orders: bookies whose copies are made again, and how long that takes."""
    yield from each(table, "hot", _order, "more bookies whose copies are made again")


def _order(row: dict[str, Any]) -> str:
    left = f"{counted(row['ledgers_left'], 'ledger')} and {amount(row['left_bytes'])} are left"
    end = ", and nothing is copied" if row["left_s"] is None else f", about {duration(row['left_s'])}"
    return f"Copies of bookie {printable(row['bookie'])} are made again: {left}{end if row['ledgers_left'] else ''}."


def progress(table: pa.Table) -> Found:
    """Yield the finding of recovery_progress: when the last recovery ended."""
    if len(table) > 1 and table["ledgers_left"][-1].as_py() == 0:
        points = [*rows(table)]
        began = next((at for at in range(len(points) - 2, 0, -1) if not points[at - 1]["ledgers_left"]), 0)
        most = max(point["ledgers_left"] for point in points[began:])
        took = duration((points[-1]["from_ts"] - points[began]["from_ts"]) / 1e6)
        text = f"The last copies of {counted(most, 'ledger')} were made again within {took}"
        yield "fine", f"{text}, until {moment(points[-1]['from_ts'])}."


def disks(table: pa.Table) -> Found:
    """Yield findings of bookie_disks: bookies that take no entries, and disks that were not verified for long."""
    full = table.filter(pc.match_substring(pc.fill_null(table["state"], ""), "read-only"))
    yield from each(full, "hot", lambda row: f"Bookie {printable(row['bookie'])} is read-only.", "more are read-only")
    late = table.filter(pc.greater(pc.fill_null(table["verified_s"], 0.0), _SCRUB_LATE_S))
    yield from each(late, "hot", _late, "more bookies whose disks were not verified for as long")


def _late(row: dict[str, Any]) -> str:
    return f"Bookie {printable(row['bookie'])} has segments that were not verified for {duration(row['verified_s'])}."
