"""Findings of reports on copies, in sentences. Each function reads the table of one report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.plurals import counted
from pyreplog.reports.page.cells import amount, duration, printable
from pyreplog.reports.page.sentences import Found, each, ledgers, total


def under_replicated(table: pa.Table) -> Found:
    """Yield findings of under_replicated: lost entries, entries with too few copies, unknown copies."""
    if not len(table):
        yield "fine", "Every entry has as many intact copies as its write quorum."
    lost = table.filter(table["lost"])
    if len(lost):
        yield "bad", f"Lost: {counted(total(lost, 'entries'), 'entry')} of {ledgers(lost)}. No bookie has a copy."
    short = table.filter(pc.less(pc.add(table["found"], table["unknown"]), table["expected"]))
    if len(short):
        least = counted(pc.min(short["found"]).as_py(), "copy")
        text = f"{counted(total(short, 'entries'), 'entry')} of {ledgers(short)} with too few copies"
        yield "bad", f"{text}, some with only {least}."
    unknown = table.filter(pc.greater(table["unknown"], 0))
    if len(unknown):
        text = f"{counted(total(unknown, 'entries'), 'entry')} of {ledgers(unknown)}"
        yield "unknown", f"Number of copies not known: {text}. A bookie was away, or did not know."


def holes(table: pa.Table) -> Found:
    """Yield findings of replica_holes: bookies that lack copies, and bookies that did not answer."""
    yield from _lacking(table, "missing")
    yield from _lacking(table, "unknown")
    if not len(table):
        yield "fine", "No bookie lacks a copy that it should have."


def _lacking(table: pa.Table, status: str) -> Found:
    mine = table.filter(pc.equal(table["status"], status))
    bookies = mine.group_by(["bookie"]).aggregate([("missing", "sum"), ("ledger_id", "count_distinct")])
    bookies = bookies.sort_by([("missing_sum", "descending")])
    if status == "missing":
        yield from each(
            bookies, "bad", lambda row: f"{_of_bookie(row, 'lacks')} that it should have.", "more bookies lack copies"
        )
    else:
        yield from each(
            bookies, "unknown", lambda row: f"{_of_bookie(row, 'was away, or did not know about')}.", "more bookies"
        )


def _of_bookie(row: dict[str, Any], verb: str) -> str:
    copies, in_ledgers = counted(row["missing_sum"], "copy"), counted(row["ledger_id_count_distinct"], "ledger")
    return f"Bookie {printable(row['bookie'])} {verb} {copies} of {in_ledgers}"


def damaged(table: pa.Table) -> Found:
    """Yield findings of crc_audit: files with damage, and bookies that were not checked completely."""
    bad = table.filter(pc.greater(table["bad_records"], 0)).sort_by([("bad_records", "descending")])
    yield from each(bad, "bad", _damage, "more files have damaged records")
    away = table.filter(pc.invert(table["complete"]))
    yield from each(away, "unknown", _unchecked, "more bookies could not be checked completely")
    if not len(bad) and (total(table, "records") or not len(away)):
        text = f"{counted(total(table, 'records'), 'record')}, {amount(total(table, 'bytes_checked'))}"
        yield "fine", f"Checked {text}: all are intact."


def _unchecked(row: dict[str, Any]) -> str:
    return f"Bookie {printable(row['bookie'] or '')} could not be checked completely: it was away, or did not know."


def _damage(row: dict[str, Any]) -> str:
    owner = f" of bookie {printable(row['bookie'])}" if row["bookie"] is not None else ""
    first_damage = "" if row["first_bad_position"] is None else f", the first at byte {row['first_bad_position']:,}"
    place = printable(row["segment"] or "stored records")
    return f"{place}{owner}: {counted(row['bad_records'], 'damaged record')}{first_damage}."


def diverging(table: pa.Table) -> Found:
    """Yield the finding of replica_divergence."""
    if len(table):
        yield "bad", f"Copies of {counted(len(table), 'entry')} differ, in {ledgers(table)}."
    else:
        yield "fine", "All copies of an entry that could be read are the same."


def replication_lag(table: pa.Table) -> Found:
    """Yield findings of replication_lag: copies that are behind, and the number of copies that are up to date."""
    behind = table.filter(pc.greater(table["missing_entries"], 0)).sort_by([("missing_entries", "descending")])
    yield from each(behind, "bad", _behind, "more are behind")
    if len(table) > len(behind):
        yield "fine", f"Up to date: {counted(len(table) - len(behind), 'topic or log')}."


def _behind(row: dict[str, Any]) -> str:
    pair = f"{printable(row['to_cluster'])} is behind {printable(row['from_cluster'])}"
    lag = "" if row["lag_s"] is None else f", {duration(row['lag_s'])}"
    return f"{pair} by {counted(row['missing_entries'], 'entry')}, {amount(row['missing_bytes'] or 0)}{lag}."
