"""The messages that other clusters lack of the topics that are replicated to them."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import ReplicationSnapshot, Snapshot
from pyreplog.reports.subscriptions.subscribing import table_of


class GeoReplicationReport(SnapshotReport):
    """Replications of topics to other clusters, from the snapshot alone."""

    name = "geo_replication"
    title = "Replication to other clusters"
    definition = (
        "For each topic partition and each cluster that its policy has it sent to: what lies between the stored cursor "
        "of the target and the end of the topic, so never less than what the target lacks. State and alarms are those "
        "of the metadata and the stored cursor; those of the connection, and of histories that differ, `pyreplog geo "
        "status` tells."
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
        ReportColumn("alarm", pa.string(), "what somebody has to decide or do; null: nothing"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_row(replication, snapshot) for replication in snapshot.replications])


def _row(each: ReplicationSnapshot, snapshot: Snapshot) -> tuple[object, ...]:
    age_s = None if each.oldest_us is None else max(snapshot.as_of_us - each.oldest_us, 0) / 1e6
    return (
        each.topic, each.partition, each.target, each.state, each.stored, each.end, each.unsent_messages,
        each.unsent_bytes, each.oldest_us, age_s, each.alarm or None,
    )  # fmt: skip
