"""Entries with fewer copies than the write quorum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pyreplog.reports.copies.copies import MissingCopies, OnCopies
from pyreplog.reports.copies.intervals import Intervals, cut
from pyreplog.reports.records.slots import Column, Slots
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot


class UnderReplicated(OnCopies):
    """Under-replicated entries by ledger; entries with equally many copies share a row."""

    name = "under_replicated"
    title = "Entries with too few copies"
    definition = (
        "Entries of which fewer bookies of their write set than the write quorum have an intact copy. The entries of a "
        "row have equally many copies, and are at most the size of the ensemble apart; entries in between have another "
        "row, or all their copies. lost: no bookie has a copy; below_ack: fewer bookies than the ack quorum have one; "
        "both are true only if no copy is unknown that could change them."
    )
    figures = (
        ReportColumn("ledger_id", pa.int64(), "id of the ledger"),
        ReportColumn("first_entry", pa.int64(), "first of the entries"),
        ReportColumn("last_entry", pa.int64(), "last of the entries"),
        ReportColumn("entries", pa.int64(), "number of the entries"),
        ReportColumn("expected", pa.int64(), "copies that each should have: the write quorum"),
        ReportColumn("found", pa.int64(), "intact copies that each has"),
        ReportColumn("unknown", pa.int64(), "unknown copies of each: a bookie was away, or did not know"),
        ReportColumn("lost", pa.bool_(), "no copy exists: found + unknown = 0"),
        ReportColumn("below_ack", pa.bool_(), "found + unknown < ack quorum"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        ledgers = np.array([each.metadata.ledger for each in snapshot.ledgers], np.int64)
        quorums = np.array(
            [(each.metadata.write_quorum, each.metadata.ack_quorum) for each in snapshot.ledgers], np.int64
        )
        rows = _rows(_progressions(self.lacking(partials, snapshot)))
        order = np.argsort(ledgers)
        at = order[np.searchsorted(ledgers, rows["ledger"], sorter=order)]
        write, ack = quorums.reshape(-1, 2)[at].T
        intact, unknown = write - rows["missing"] - rows["unknown"], rows["unknown"]
        table = self.table(
            {
                "ledger_id": rows["ledger"], "first_entry": rows["first"], "last_entry": rows["last"],
                "entries": rows["entries"], "expected": write, "found": intact, "unknown": unknown,
                "lost": intact + unknown == 0, "below_ack": intact + unknown < ack,
            }
        )  # fmt: skip
        return table.sort_by([(name, "ascending") for name in ("ledger_id", "first_entry", "found", "unknown")])


# ---- entries of one write set, at a distance of the ensemble size E --------------------------------------------

_EVENT = np.dtype(
    [("ledger", "i8"), ("size", "i8"), ("rest", "i8"), ("turn", "i8"), ("missing", "i8"), ("unknown", "i8")]
)
"""A change at entry rest + turn * size: entries with that rest lack so many copies more from there on, or fewer."""

_ROW = np.dtype([(name, "i8") for name in ("ledger", "size", "first", "last", "entries", "missing", "unknown")])

Records = np.ndarray[tuple[int], np.dtype[Any]]


def _progressions(lacking: MissingCopies) -> Records:
    """Return progressions of entries at a distance of E that lack equally many copies."""
    events = np.concatenate(
        [*_events(lacking.slots, lacking.missing, "missing"), *_events(lacking.slots, lacking.unknown, "unknown")]
    )
    events = events[np.lexsort([events[name] for name in ("turn", "rest", "ledger")])]
    alike = (events["ledger"][1:] == events["ledger"][:-1]) & (events["rest"][1:] == events["rest"][:-1])
    missing, unknown = np.cumsum(events["missing"]), np.cumsum(events["unknown"])  # 0 at the start of each rest
    turns = np.diff(events["turn"])
    keep = np.flatnonzero(alike & (turns > 0) & (missing[:-1] + unknown[:-1] > 0))
    progressions = np.zeros(len(keep), _ROW)
    start = events[keep]
    progressions["ledger"], progressions["size"] = start["ledger"], start["size"]
    progressions["first"] = start["rest"] + start["turn"] * start["size"]
    progressions["entries"] = turns[keep]
    progressions["last"] = progressions["first"] + (progressions["entries"] - 1) * start["size"]
    progressions["missing"], progressions["unknown"] = missing[keep], unknown[keep]
    return progressions


def _events(slots: Slots, lacking: Intervals, kind: str) -> list[Records]:
    """Return the events for missing or unknown slots; each row of slots by itself."""
    parts = cut(lacking, slots.offset)
    at = slots.row(parts[:, 0])
    quorum = slots.quorum[at]
    base = slots.turn(at) - slots.offset[at]
    events = [np.zeros(0, _EVENT)]
    for place in range(int(quorum.max(initial=0))):
        is_there = quorum > place
        for side, change in ((0, 1), (1, -1)):
            turns = -(-(base + parts[:, side] - place) // quorum)
            events.append(_of_place(slots, at, turns, place, (kind, change))[is_there])
    return events


def _of_place(slots: Slots, at: Column, turns: Column, place: int, change: tuple[str, int]) -> Records:
    """Return events for the entries at one place of their runs: the start or the end of a range of slots."""
    events = np.zeros(len(at), _EVENT)
    start = slots.phase[at] + place
    events["ledger"], events["size"] = slots.ledger[at], slots.size[at]
    events["rest"] = start % slots.size[at]
    events["turn"] = turns + start // slots.size[at]
    events[change[0]] = change[1]
    return events


# ---- rows ------------------------------------------------------------------------------------------------------


def _rows(progressions: Records) -> Records:
    """Join progressions that lack equally many copies, and overlap or are at most E apart."""
    order = np.lexsort([progressions[name] for name in ("first", "unknown", "missing", "ledger")])
    rows = progressions[order]
    if len(rows) < 2:
        return rows
    alike = np.ones(len(rows) - 1, np.bool_)
    for name in ("ledger", "missing", "unknown"):
        alike &= rows[name][1:] == rows[name][:-1]
    far = rows["first"][1:] - _running_max(rows["last"], ~alike)[:-1] > rows["size"][1:]
    starts = np.flatnonzero(np.concatenate(([True], ~alike | far)))
    joined = rows[starts]
    joined["last"] = np.maximum.reduceat(rows["last"], starts)
    joined["entries"] = np.add.reduceat(rows["entries"], starts)
    return joined


def _running_max(values: Column, begins: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Column:
    """Return the running maximum of each group. begins: for each value but the first, whether it begins a group."""
    known, ranks = np.unique(values, return_inverse=True)
    base = np.concatenate(([0], np.cumsum(begins))) * len(known)
    highest: Column = known[np.maximum.accumulate(base + ranks) - base]
    return highest
