"""The page of the step with two regions: what became of each acknowledgement when one of them was killed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from standby import wait
from verification import Mismatch

from pyreplog.reports import gathering, local_engine, suite
from pyreplog.reports.atomic_files import replacing
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page.page import About, page
from pyreplog.reports.report import ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions

REPORTS = ("backlog_by_subscription", "origins", "geo_replication", "geo_readiness")
Row = tuple[str, str, int, str]


@dataclass(frozen=True)
class RegionFailOver(SnapshotReport):
    """rows: those of the table."""

    rows: Sequence[Row] = ()

    name = "region_fail_over"
    title = "A region was killed: acknowledged, repeated, lost"
    definition = (
        "Flights of the topic, by what happened to them. The regions exchange acknowledgements every 0.2 s; what was "
        "acknowledged after the last exchange that arrived comes again in the other region, and nothing else does."
    )
    figures = (
        ReportColumn("where", pa.string(), "region, and when"),
        ReportColumn("what", pa.string(), "what happened to the flights"),
        ReportColumn("flights", pa.int64(), "how many"),
        ReportColumn("promised", pa.string(), "what the guide promises of this number; empty: nothing"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))


def fail_over_rows(
    flights: int, known: Sequence[int], late: Sequence[int], west: Sequence[int], left: set[int], again: Sequence[int]
) -> list[Row]:
    """Return the rows of the table, from numbers of flights.

    Args:
        flights: how many there are in the end.
        known: acknowledged in the east, and known to the west by its readiness.
        late: acknowledged in the east after that, in this order.
        west: delivered in the west after the east was killed.
        left: of these, not acknowledged there.
        again: delivered in the east after it came back.

    Raises:
        Mismatch: a number is not as promised.
    """
    acknowledged = {*known, *late}
    repeated = acknowledged & {*west}
    newest = {*late[len(late) - len(repeated) :]} if len(repeated) <= len(late) else set()
    done = acknowledged | ({*west} - left)
    lost = {*range(flights)} - acknowledged - {*west} - {*again}
    before, meanwhile, afterwards = "east, before it was killed", "west, meanwhile", "east, after it came back"
    rows = [
        (before, "acknowledged", len(acknowledged), ""),
        (before, "of these, reported as confirmed by the west (geo readiness)", len({*known}), ""),
        (meanwhile, "of the acknowledged ones, known here", len(acknowledged - repeated), f"{len(known):,} or more"),
        (meanwhile, "delivered", len(west), ""),
        (meanwhile, "of these, acknowledged in the east, and so repeated", len(repeated), f"{len(late):,} or less"),
        (meanwhile, "of these, acknowledged after the last exchange", len(repeated & newest), "all of them"),
        (meanwhile, "acknowledged", len({*west} - left), ""),
        (afterwards, "delivered", len(again), ""),
        (afterwards, "of these, acknowledged in the east or the west before", len(done & {*again}), "none"),
        ("anywhere", "never delivered: neither acknowledged before, nor delivered after", len(lost), "none"),
    ]
    if repeated != newest or done & {*again} or lost:
        raise Mismatch(f"a fail-over did not keep its promise: {rows}")
    return rows


def taken(given: Mapping[str, str]) -> Snapshot:
    return gathering.gather(ReadOptions.of(given), time.time_ns() // 1000)


def is_sent(snapshot: Snapshot) -> bool:
    """Whether the stored cursors tell so, which owners store a moment later."""
    return not any(row.unsent_messages for row in snapshot.replications)


def write_page(path: Path, directory: Path, rows: Sequence[Row]) -> None:
    """Write the table, and reports on the region in a directory, which runs. Mismatch: the reports say otherwise."""
    given = {"path": str(directory)}
    wait(lambda: is_sent(taken(given)), "the region never stored that the other one has all flights")
    snapshot = taken(given)
    outcomes = [
        Outcome(RegionFailOver, local_engine.run(RegionFailOver(rows), given, snapshot)),
        *suite.outcomes(suite.chosen(REPORTS), given, snapshot, local_engine.run),
    ]
    tables: dict[str, Any] = {each.report.name: each.table for each in outcomes}
    failed = {each.report.name: each.error or each.left_out for each in outcomes if each.table is None}
    if failed or tables["geo_readiness"]["fail_over"].to_pylist() != ["ready"]:
        raise Mismatch(f"the page fails, or does not call the subscription ready: {failed}, {snapshot.readiness}")
    about = About(
        "A region was killed, and came back",
        [("as of", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())), ("source", str(directory))],
        "Made by the demo. The reports are on the region that was killed, after it came back.",
    )
    with replacing(path) as draft:
        draft.write_text(page(about, outcomes), encoding="utf-8")
