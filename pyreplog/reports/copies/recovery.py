"""Reports on auto-recovery: the health of a cluster, and the progress of making copies again."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.autorecovery.overview import RecoveryOverview
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.subscribing import table_of


class ClusterHealthReport(SnapshotReport):
    """Reasons why a cluster is not green."""

    name = "cluster_health"
    title = "Health of the cluster"
    definition = (
        "Each reason why the cluster is not green, red ones first: red, entries are lost; amber, something needs time "
        "or an operator. As `pyreplog cluster health`, without the question which ledgers are in limbo."
    )
    figures = (
        ReportColumn("health", pa.string(), "amber or red"),
        ReportColumn("reason", pa.string(), "code of the reason"),
        ReportColumn("found", pa.string(), "what was found"),
        ReportColumn("next_step", pa.string(), "what to do"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        overview = snapshot.recovery
        findings = () if overview is None else overview.health.findings
        return table_of(self, [(str(each.colour), each.code, each.text, each.next_step) for each in findings])


class RecoveryState(SnapshotReport):
    """Numbers of auto-recovery, in one row."""

    name = "recovery_state"
    title = "Auto-recovery"
    definition = (
        "The state of auto-recovery, from the metadata. Entries of ledgers that are not closed count up to their last "
        "fragment. Entries at one copy should have more, and at most one of their copies lies on a bookie that runs."
    )
    figures = (
        ReportColumn("health", pa.string(), "green, amber or red"),
        ReportColumn("auditor", pa.string(), "process that decides what is copied; null: none runs"),
        ReportColumn("bookies", pa.int64(), "bookies that run"),
        ReportColumn("ledgers", pa.int64(), "ledgers whose metadata can be read"),
        ReportColumn("missing_copies", pa.int64(), "copies on bookies that do not run"),
        ReportColumn("one_copy_entries", pa.int64(), "entries at one copy"),
        ReportColumn("lost_entries", pa.int64(), "entries that are listed as lost"),
        ReportColumn("one_rack_ledgers", pa.int64(), "ledgers with all copies of entries in one of several racks"),
        ReportColumn("hold", pa.string(), "why auto-recovery is suspended; null: it is not"),
        ReportColumn("hold_s", pa.float64(), "for how long; null: it is not, or that is not known"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        overview = snapshot.recovery
        return table_of(self, [] if overview is None else [_state(overview)])


def _state(overview: RecoveryOverview) -> tuple[object, ...]:
    health, hold = overview.health, overview.hold
    return (
        str(health.colour), health.auditor, health.bookies, health.ledgers, health.missing_copies,
        overview.one_copy_entries, overview.lost_entries, overview.rack_violations,
        None if hold is None else hold.reason,
        None if hold is None or not hold.since_us else (overview.at_us - hold.since_us) / 1e6,
    )  # fmt: skip


class RecoveryOrders(SnapshotReport):
    """Bookies whose copies are made again."""

    name = "recovery_orders"
    title = "Copies that are made again"
    definition = (
        "Each bookie whose copies are made again on others. Ledgers are left as long as their metadata name it. "
        "Rate and time are those of the workers that run, whose rate is shared out by the bytes that are left."
    )
    figures = (
        ReportColumn("bookie", pa.string(), "bookie that is replaced"),
        ReportColumn("phase", pa.string(), "away, lost or draining; empty: none of these now"),
        ReportColumn("reason", pa.string(), "why its copies are made again"),
        ReportColumn("since_ts", TIME, "since when; null: not known"),
        ReportColumn("ledgers_left", pa.int64(), "ledgers that name it"),
        ReportColumn("left_bytes", pa.int64(), "bytes of its copies, of closed ledgers"),
        ReportColumn("rate_bytes", pa.float64(), "bytes that are copied in a second"),
        ReportColumn("left_s", pa.float64(), "seconds that are left at this rate; null: not known"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        overview = snapshot.recovery
        rows = [
            (
                each.bookie, each.phase, each.reason, each.since_us or None, each.ledgers_left, each.bytes_left,
                each.bytes_per_s, each.eta_s,
            )
            for each in (() if overview is None else overview.orders)
        ]  # fmt: skip
        return table_of(self, rows)


class RecoveryProgress(SnapshotReport):
    """The number of remaining ledgers over time."""

    name = "recovery_progress"
    title = "Copies left over time"
    definition = (
        "How many ledgers still had copies on bookies that are replaced, as the auditor noted it, over the last "
        "recoveries; a ledger counts for each such bookie. Each row holds until the next one begins, or until the "
        "moment of the report."
    )
    figures = (
        ReportColumn("from_ts", TIME, "beginning of the time"),
        ReportColumn("until_ts", TIME, "its end"),
        ReportColumn("ledgers_left", pa.int64(), "ledgers that were left"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        overview = snapshot.recovery
        points = [] if overview is None else [*overview.progress]
        ends = [at_us for at_us, _ in points[1:]] + [max(snapshot.as_of_us, points[-1][0]) if points else 0]
        return table_of(self, [(at_us, end_us, left) for (at_us, left), end_us in zip(points, ends, strict=False)])


class BookieDisks(SnapshotReport):
    """Bookies and their disks."""

    name = "bookie_disks"
    title = "Bookies and their disks"
    definition = (
        "Each bookie that runs, with its free space, and since when all segments of its log were verified on the disk "
        "(scrubbed); a segment that is new counts from its beginning. Times are rounded to hours."
    )
    figures = (
        ReportColumn("bookie", pa.string(), "bookie"),
        ReportColumn("rack", pa.string(), "its rack; null: not known"),
        ReportColumn("state", pa.string(), "draining, lost, read-only; null: an ordinary member"),
        ReportColumn("free_bytes", pa.int64(), "free space, rounded"),
        ReportColumn("verified_ts", TIME, "every segment was verified, or began, after this; null: not known"),
        ReportColumn("verified_s", pa.float64(), "how long ago that was"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        overview = snapshot.recovery
        rows = []
        for each in () if overview is None else overview.bookies:
            state = ", ".join(filter(None, (each.phase or "", "read-only" if each.read_only else "")))
            since_us = each.verified_since_us or None
            age_s = None if since_us is None else max(snapshot.as_of_us - since_us, 0) / 1e6
            rows.append((each.bookie, each.rack or None, state or None, each.free_bytes, since_us, age_s))
        return table_of(self, rows)
