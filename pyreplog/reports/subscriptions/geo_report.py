"""The messages that other clusters lack of replicated topics, and what a fail-over of subscriptions would do."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import ReadinessSnapshot, ReplicationSnapshot, Snapshot
from pyreplog.reports.subscriptions.subscribing import SUBSCRIPTION, table_of


class GeoReplicationReport(SnapshotReport):
    """Replications of topics to other clusters, from the snapshot alone."""

    name = "geo_replication"
    title = "Replication to other clusters"
    definition = (
        "For each topic partition and each cluster that its policy has it sent to: what lies between the stored cursor "
        "of the target and the end of the topic, so never less than what the target lacks. State and alarms are those "
        "of the metadata and the stored cursor; those of the connection, and of histories that differ, `pyreplog geo "
        "status` shows."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("target", pa.string(), "name of the other cluster"),
        ReportColumn("state", pa.string(), "sending, paused, detached, failed, or unknown"),
        ReportColumn("stored_offset", pa.int64(), "the target has everything below it; null: it was never reached"),
        ReportColumn("log_end_offset", pa.int64(), "offset after the last message of the topic"),
        ReportColumn("unsent_messages", pa.int64(), "messages between the two"),
        ReportColumn("unsent_bytes", pa.int64(), "bytes of the entries that hold them"),
        ReportColumn("oldest_ts", TIME, "append time of the first of them; null: there is none, or it is not known"),
        ReportColumn("age_s", pa.float64(), "its age, in seconds"),
        ReportColumn("alarm", pa.string(), "what an operator has to decide or do; null: nothing"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_row(replication, snapshot) for replication in snapshot.replications])


def _row(each: ReplicationSnapshot, snapshot: Snapshot) -> tuple[object, ...]:
    age_s = None if each.oldest_us is None else max(snapshot.as_of_us - each.oldest_us, 0) / 1e6
    return (
        each.topic, each.partition, each.target, each.state, each.stored, each.end, each.unsent_messages,
        each.unsent_bytes, each.oldest_us, age_s, each.alarm or None,
    )  # fmt: skip


NOT_ASKED = "no server that answered has the topic open"


class GeoReadinessReport(SnapshotReport):
    """Readiness of replicated subscriptions for a fail-over, from the snapshot alone."""

    name = "geo_readiness"
    title = "What a fail-over would lose or repeat"
    definition = (
        "For each replicated subscription of each topic partition and each cluster that its policy names: the effect "
        "of a fail-over of its consumers at the moment of the report, as `pyreplog geo readiness` shows it. Messages "
        "and acknowledgements in flight count as missing there, so these are the most. The metadata do not have this: "
        "the server that has the topic open is asked, and where it does not answer, nothing is known."
    )
    figures = (
        TOPIC,
        PARTITION,
        SUBSCRIPTION,
        ReportColumn("target", pa.string(), "name of the other cluster"),
        ReportColumn(
            "fail_over", pa.string(), "ready, not ready, before the seek (the target does not know it), or unknown"
        ),
        ReportColumn("lost", pa.int64(), "messages to be delivered that the target does not have; null: not known"),
        ReportColumn("unreachable", pa.int64(), "of these, those that only other clusters can send to the target"),
        ReportColumn("repeated", pa.int64(), "acknowledged messages that the target would deliver; null: not known"),
        ReportColumn(
            "expired", pa.int64(), "messages that expired here and that the target would deliver; null: not known"
        ),
        ReportColumn("home", pa.string(), "only cluster that delivers, or (this cluster); null: all clusters do"),
        ReportColumn("reason", pa.string(), "why the target is not connected, or not known; null: it is connected"),
        ReportColumn("alarm", pa.string(), "what an operator has to decide or do; null: nothing"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_readiness(each) for each in snapshot.readiness])


def _readiness(each: ReadinessSnapshot) -> tuple[object, ...]:
    names, status = (each.topic, each.partition, each.subscription, each.target), each.readiness
    if status is None:
        return (*names, "unknown", None, None, None, None, None, NOT_ASKED, None)
    counts = (status.lost, status.unreachable, status.repeated, status.revived) if status.is_known else (None,) * 4
    home = "(this cluster)" if status.home == "" else status.home
    return (*names, status.state, *counts, home, status.error or None, status.alarm or None)
