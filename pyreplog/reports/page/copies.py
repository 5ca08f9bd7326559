"""What reports on copies find, in sentences: each function reads the table of one report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.cells import amount, duration, printable
from pyreplog.reports.page.sentences import Found, counted, each, ledgers, total


def under_replicated(table: pa.Table) -> Found:
    """Of under_replicated: what is lost, what has too few copies, what is unknown."""
    if not len(table):
        yield "fine", "Every entry has as many intact copies as its ledger demands."
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
        yield "unknown", f"How many copies there are of {text}: a bookie was away, or could not tell."


def holes(table: pa.Table) -> Found:
    """Of replica_holes: bookies that lack copies, and those that could not be asked."""
    yield from _lacking(table, "missing")
    yield from _lacking(table, "unknown")
    if not len(table):
        yield "fine", "No bookie lacks a copy that it is to have."


def _lacking(table: pa.Table, status: str) -> Found:
    mine = table.filter(pc.equal(table["status"], status))
    bookies = mine.group_by(["bookie"]).aggregate([("missing", "sum"), ("ledger_id", "count_distinct")])
    bookies = bookies.sort_by([("missing_sum", "descending")])
    if status == "missing":
        yield from each(bookies, "bad", lambda row: f"{_of_bookie(row, 'lacks')} that it is to have.", "more bookies")
    else:
        yield from each(bookies, "unknown", lambda row: f"{_of_bookie(row, 'was away or could not tell of')}.", "more")


def _of_bookie(row: dict[str, Any], verb: str) -> str:
    copies, there = counted(row["missing_sum"], "copy"), counted(row["ledger_id_count_distinct"], "ledger")
    return f"Bookie {printable(row['bookie'])} {verb} {copies} of {there}"


def damaged(table: pa.Table) -> Found:
    """Of crc_audit: files with damage, and what could not be checked."""
    bad = table.filter(pc.greater(table["bad_records"], 0)).sort_by([("bad_records", "descending")])
    yield from each(bad, "bad", _damage, "more files have damaged records")
    away = table.filter(pc.invert(table["complete"]))
    yield from each(away, "unknown", _unchecked, "more could not be checked as a whole")
    if not len(bad) and (total(table, "records") or not len(away)):
        text = f"{counted(total(table, 'records'), 'record')}, {amount(total(table, 'bytes_checked'))}"
        yield "fine", f"Checked {text}: all are as they were written."


def _unchecked(row: dict[str, Any]) -> str:
    return f"Not all of bookie {printable(row['bookie'] or '')} could be checked: it was away, or could not tell."


def _damage(row: dict[str, Any]) -> str:
    whose = f" of bookie {printable(row['bookie'])}" if row["bookie"] is not None else ""
    where = "" if row["first_bad_position"] is None else f", the first at byte {row['first_bad_position']:,}"
    what = printable(row["segment"] or "what is stored")
    return f"{what}{whose}: {counted(row['bad_records'], 'damaged record')}{where}."


def diverging(table: pa.Table) -> Found:
    """Of replica_divergence."""
    if len(table):
        yield "bad", f"Copies of {counted(len(table), 'entry')} differ, in {ledgers(table)}."
    else:
        yield "fine", "Copies of an entry are the same, all that could be read."


def replication_lag(table: pa.Table) -> Found:
    """Of replication_lag: what is behind, and how much is not."""
    behind = table.filter(pc.greater(table["missing_entries"], 0)).sort_by([("missing_entries", "descending")])
    yield from each(behind, "bad", _behind, "more are behind")
    if len(table) > len(behind):
        yield "fine", f"Up to date: {counted(len(table) - len(behind), 'topic or log')}."


def _behind(row: dict[str, Any]) -> str:
    pair = f"{printable(row['to_cluster'])} is behind {printable(row['from_cluster'])}"
    lag = "" if row["lag_s"] is None else f", {duration(row['lag_s'])}"
    return f"{pair} by {counted(row['missing_entries'], 'entry')}, {amount(row['missing_bytes'] or 0)}{lag}."
