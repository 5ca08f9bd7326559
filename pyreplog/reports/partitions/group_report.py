"""The lag of consumer groups."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus
from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import TIME, ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.subscribing import table_of


class GroupLag(SnapshotReport):
    """Lag by consumer group and partition, from the snapshot alone."""

    name = "group_lag"
    title = "Lag of consumer groups"
    definition = (
        "For each partition for which a Kafka consumer group has committed an offset: the messages from there to the "
        "high watermark, without those that were removed, and the age of the oldest of them by its append time. Rates "
        "are those over the window W before the moment of the report: messages appended per second, and messages that "
        "the committed offset passed per second; its place at the start of W comes from stored records. The lag is "
        "gone after lag / (out - in) seconds. Status: done, there is no lag; stalled, the offset did not move; "
        "growing, it was not faster than new messages; otherwise draining; null, not known."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("group", pa.string(), "name of the consumer group"),
        ReportColumn("state", pa.string(), "Stable: it has members; Empty: it has none; null: not known"),
        ReportColumn("members", pa.int64(), "members of the group; null: not known"),
        ReportColumn("committed_offset", pa.int64(), "offset of the next record to consume"),
        ReportColumn("high_watermark", pa.int64(), "offset up to which the partition is committed; null: not known"),
        ReportColumn("lag", pa.int64(), "messages that were not consumed"),
        ReportColumn("lag_s", pa.float64(), "age of the oldest of them, in seconds"),
        ReportColumn("in_rate", pa.float64(), "messages appended per second; null: not known"),
        ReportColumn("out_rate", pa.float64(), "messages that the offset passed per second; null: not known"),
        ReportColumn(
            "drain_s", pa.float64(), "seconds until the lag is gone; null: never at these rates, or not known"
        ),
        ReportColumn("status", pa.string(), "done, stalled, growing, draining; null: not known"),
        ReportColumn("last_move_ts", TIME, "when the offset last moved, or was first committed"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_row(group, each) for group in snapshot.groups for each in group.partitions])


def _row(group: GroupStatus, each: GroupPartitionStatus) -> tuple[object, ...]:
    return (
        each.topic, each.partition, group.group, group.state, group.members, each.offset, each.end, each.lag,
        each.lag_s, each.rate_in, each.rate_out, each.drain_s, each.status, each.moved_us,
    )  # fmt: skip
