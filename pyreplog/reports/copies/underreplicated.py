"""Entries of which there are fewer copies than the write quorum."""

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
    """By ledger, in rows of entries that have equally many copies."""

    name = "under_replicated"
    title = "Entries with too few copies"
    definition = (
        "Entries of which fewer bookies of their write set have an intact copy than the write quorum. Those of a row "
        "have equally many, and are at most the size of the ensemble apart; others that lie in between have another "
        "row, or all their copies. lost: no bookie has a copy; below_ack: fewer than the ack quorum have one; both "
        "only where it is certain."
    )
    figures = (
        ReportColumn("ledger_id", pa.int64(), "ledger"),
        ReportColumn("first_entry", pa.int64(), "first of them"),
        ReportColumn("last_entry", pa.int64(), "last of them"),
        ReportColumn("entries", pa.int64(), "how many they are"),
        ReportColumn("expected", pa.int64(), "copies of each that there should be: the write quorum"),
        ReportColumn("found", pa.int64(), "intact copies of each"),
        ReportColumn(
            "unknown", pa.int64(), "copies of each of which nobody can tell: a bookie was away, or could not say"
        ),
        ReportColumn("lost", pa.bool_(), "there is no copy: found + unknown = 0"),
        ReportColumn("below_ack", pa.bool_(), "found + unknown < ack quorum"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        ledgers = np.array([one.metadata.ledger for one in snapshot.ledgers], np.int64)
        quorums = np.array([(one.metadata.write_quorum, one.metadata.ack_quorum) for one in snapshot.ledgers], np.int64)
        rows = _rows(_progressions(self.lacking(partials, snapshot)))
        order = np.argsort(ledgers)
        at = order[np.searchsorted(ledgers, rows["ledger"], sorter=order)]
        write, ack = quorums.reshape(-1, 2)[at].T
        found, unknown = write - rows["missing"] - rows["unknown"], rows["unknown"]
        table = self.table(
            {
                "ledger_id": rows["ledger"], "first_entry": rows["first"], "last_entry": rows["last"],
                "entries": rows["entries"], "expected": write, "found": found, "unknown": unknown,
                "lost": found + unknown == 0, "below_ack": found + unknown < ack,
            }
        )  # fmt: skip
        return table.sort_by([(name, "ascending") for name in ("ledger_id", "first_entry", "found", "unknown")])


# ---- entries of one write set, which are E apart ---------------------------------------------------------------

_EVENT = np.dtype(
    [("ledger", "i8"), ("size", "i8"), ("rest", "i8"), ("turn", "i8"), ("missing", "i8"), ("unknown", "i8")]
)
"""From entry rest + turn * size on, as far as entries of that rest go, so many copies more are lacking, or fewer."""

_ROW = np.dtype([(name, "i8") for name in ("ledger", "size", "first", "last", "entries", "missing", "unknown")])

Records = np.ndarray[tuple[int], np.dtype[Any]]


def _progressions(found: MissingCopies) -> Records:
    """Entries that are E apart, and lack as many copies."""
    events = np.concatenate(
        [*_events(found.slots, found.missing, "missing"), *_events(found.slots, found.unknown, "unknown")]
    )
    events = events[np.lexsort([events[name] for name in ("turn", "rest", "ledger")])]
    alike = (events["ledger"][1:] == events["ledger"][:-1]) & (events["rest"][1:] == events["rest"][:-1])
    missing, unknown = np.cumsum(events["missing"]), np.cumsum(events["unknown"])  # 0 where another rest begins
    turns = np.diff(events["turn"])
    keep = np.flatnonzero(alike & (turns > 0) & (missing[:-1] + unknown[:-1] > 0))
    made = np.zeros(len(keep), _ROW)
    start = events[keep]
    made["ledger"], made["size"] = start["ledger"], start["size"]
    made["first"] = start["rest"] + start["turn"] * start["size"]
    made["entries"] = turns[keep]
    made["last"] = made["first"] + (made["entries"] - 1) * start["size"]
    made["missing"], made["unknown"] = missing[keep], unknown[keep]
    return made


def _events(slots: Slots, lacking: Intervals, kind: str) -> list[Records]:
    """Slots that are lacking, as events; each row of slots by itself."""
    parts = cut(lacking, slots.offset)
    at = slots.row(parts[:, 0])
    quorum = slots.quorum[at]
    base = slots.turn(at) - slots.offset[at]
    found = [np.zeros(0, _EVENT)]
    for place in range(int(quorum.max(initial=0))):
        is_there = quorum > place
        for side, change in ((0, 1), (1, -1)):
            turns = -(-(base + parts[:, side] - place) // quorum)
            found.append(_of_place(slots, at, turns, place, (kind, change))[is_there])
    return found


def _of_place(slots: Slots, at: Column, turns: Column, place: int, change: tuple[str, int]) -> Records:
    """Of the entries at one place of their runs: where a stretch of these runs begins, or ends."""
    made = np.zeros(len(at), _EVENT)
    start = slots.phase[at] + place
    made["ledger"], made["size"] = slots.ledger[at], slots.size[at]
    made["rest"] = start % slots.size[at]
    made["turn"] = turns + start // slots.size[at]
    made[change[0]] = change[1]
    return made


# ---- rows ------------------------------------------------------------------------------------------------------


def _rows(progressions: Records) -> Records:
    """Progressions that lack as many copies, and overlap or are at most E apart, put together."""
    order = np.lexsort([progressions[name] for name in ("first", "unknown", "missing", "ledger")])
    rows = progressions[order]
    if len(rows) < 2:
        return rows
    alike = np.ones(len(rows) - 1, np.bool_)
    for name in ("ledger", "missing", "unknown"):
        alike &= rows[name][1:] == rows[name][:-1]
    far = rows["first"][1:] - _reach(rows["last"], ~alike)[:-1] > rows["size"][1:]
    starts = np.flatnonzero(np.concatenate(([True], ~alike | far)))
    made = rows[starts]
    made["last"] = np.maximum.reduceat(rows["last"], starts)
    made["entries"] = np.add.reduceat(rows["entries"], starts)
    return made


def _reach(values: Column, begins: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Column:
    """The highest so far, anew where a group begins."""
    known, ranks = np.unique(values, return_inverse=True)
    base = np.concatenate(([0], np.cumsum(begins))) * len(known)
    found: Column = known[np.maximum.accumulate(base + ranks) - base]
    return found
