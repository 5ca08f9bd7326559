"""What bookies lack of the ledgers that they are to have copies of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyreplog.reports.copies.copies import MissingCopies, OnCopies
from pyreplog.reports.copies.intervals import Intervals, cut
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

MISSING, UNKNOWN = "missing", "unknown"


class ReplicaHoles(OnCopies):
    """By ledger and bookie: what is missing, and what nobody can tell of."""

    name = "replica_holes"
    title = "Copies that bookies lack"
    definition = (
        "Entries that the ensemble and the write quorum of a ledger assign to a bookie, and of which it has no intact "
        "copy: one row for those that follow each other among its own. A ledger counts as far as it is confirmed; "
        "copies of an open one may be on their way."
    )
    figures = (
        ReportColumn("ledger_id", pa.int64(), "ledger"),
        ReportColumn("bookie", pa.string(), "who is to have them"),
        ReportColumn("first_missing", pa.int64(), "first entry that it lacks"),
        ReportColumn("last_missing", pa.int64(), "last entry that it lacks"),
        ReportColumn("missing", pa.int64(), "how many of its entries these are; others in between are not its own"),
        ReportColumn("status", pa.string(), "missing; unknown: it was away, or could not tell"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        found = self.lacking(partials, snapshot)
        tables = [self._rows(found, found.missing, MISSING), self._rows(found, found.unknown, UNKNOWN)]
        keys = ["ledger_id", "bookie", "first_missing"]
        return pa.concat_tables(tables).sort_by([(key, "ascending") for key in keys]).combine_chunks()

    def _rows(self, found: MissingCopies, slots: Intervals, status: str) -> pa.Table:
        slots = cut(slots, found.slots.borders)
        rows = found.slots.row(slots[:, 0])
        return self.table(
            {
                "ledger_id": found.slots.ledger[rows],
                "bookie": found.names(found.slots.bookie[rows]),
                "first_missing": found.slots.entry(slots[:, 0]),
                "last_missing": found.slots.entry(slots[:, 1] - 1),
                "missing": np.diff(slots, axis=1).ravel(),
                "status": pa.repeat(pa.scalar(status), len(slots)),
            }
        )
