"""Copies that bookies lack of the ledgers that are assigned to them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyreplog.reports.copies.copies import MissingCopies, OnCopies
from pyreplog.reports.copies.intervals import Intervals, cut
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot

MISSING, UNKNOWN = "missing", "unknown"


class ReplicaHoles(OnCopies):
    """Missing and unknown copies by ledger and bookie."""

    name = "replica_holes"
    title = "Copies that bookies lack"
    definition = (
        "Entries that the ensemble and the write quorum of a ledger assign to a bookie, and of which the bookie has no "
        "intact copy. Entries that follow each other among those of the bookie share a row. Only confirmed entries "
        "count; copies for an open ledger may be on their way."
    )
    figures = (
        ReportColumn("ledger_id", pa.int64(), "id of the ledger"),
        ReportColumn("bookie", pa.string(), "bookie that should have them"),
        ReportColumn("first_missing", pa.int64(), "first entry that it lacks"),
        ReportColumn("last_missing", pa.int64(), "last entry that it lacks"),
        ReportColumn("missing", pa.int64(), "number of these entries; entries of other bookies may lie in between"),
        ReportColumn("status", pa.string(), "missing; unknown: the bookie was away, or did not know"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        lacking = self.lacking(partials, snapshot)
        tables = [self._rows(lacking, lacking.missing, MISSING), self._rows(lacking, lacking.unknown, UNKNOWN)]
        keys = ["ledger_id", "bookie", "first_missing"]
        return pa.concat_tables(tables).sort_by([(key, "ascending") for key in keys]).combine_chunks()

    def _rows(self, lacking: MissingCopies, slots: Intervals, status: str) -> pa.Table:
        slots = cut(slots, lacking.slots.borders)
        rows = lacking.slots.row(slots[:, 0])
        return self.table(
            {
                "ledger_id": lacking.slots.ledger[rows],
                "bookie": lacking.names(lacking.slots.bookie[rows]),
                "first_missing": lacking.slots.entry(slots[:, 0]),
                "last_missing": lacking.slots.entry(slots[:, 1] - 1),
                "missing": np.diff(slots, axis=1).ravel(),
                "status": pa.repeat(pa.scalar(status), len(slots)),
            }
        )
