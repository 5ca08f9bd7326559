"""Partitions, replicas and brokers: leaders, in-sync replicas, committed offsets, and the lag of replicas."""

from __future__ import annotations

import pyarrow as pa

from pyreplog.partition.partition_status import PartitionStatus
from pyreplog.reports.records.streams import PARTITION, TOPIC
from pyreplog.reports.report import ReportColumn, SnapshotReport
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.subscribing import table_of

BROKER = ReportColumn("broker", pa.string(), "name of the broker")


class PartitionStates(SnapshotReport):
    """Partitions of a cluster, from the snapshot alone."""

    name = "partition_state"
    title = "Partitions"
    definition = (
        "For each partition of each topic of partitions: leader and in-sync replicas (ISR) as the metadata store has "
        "them, offsets as the leader reports them; these are null if it did not answer. With fewer in-sync replicas "
        "than min_isr, appends with acks=-1 are refused. Consumers see the log up to the high watermark; those of "
        "committed data, up to the last stable offset, before which no transaction is open."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("leader", pa.string(), "broker that leads; null: none does"),
        ReportColumn("preferred_leader", pa.string(), "broker that should lead"),
        ReportColumn("leader_epoch", pa.int64(), "number of the newest leader epoch"),
        ReportColumn("isr", pa.string(), "in-sync replicas"),
        ReportColumn("not_in_sync", pa.string(), "the other replicas; null: there are none"),
        ReportColumn("min_isr", pa.int64(), "in-sync replicas that an append with acks=-1 needs"),
        ReportColumn("state", pa.string(), "what needs attention; null: nothing"),
        ReportColumn("target", pa.string(), "replicas after the reassignment under way; null: there is none"),
        ReportColumn("log_start_offset", pa.int64(), "offset of the first record"),
        ReportColumn("high_watermark", pa.int64(), "offset up to which it is committed"),
        ReportColumn("last_stable_offset", pa.int64(), "offset before which no transaction is open"),
        ReportColumn("log_end_offset", pa.int64(), "offset after the last record of the leader"),
        ReportColumn("uncommitted", pa.int64(), "offsets from the high watermark to log_end_offset"),
        ReportColumn("replica_lag", pa.int64(), "messages that the slowest replica lacks whose lag is known"),
        ReportColumn("replica_behind_s", pa.float64(), "longest time for which a replica has not been caught up"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [_state(partition) for partition in snapshot.partitions])


def _state(row: PartitionStatus) -> tuple[object, ...]:
    return (
        row.topic, row.partition, row.leader, row.preferred, row.epoch, ", ".join(row.isr),
        ", ".join(row.out_of_sync) or None, row.min_isr, ", ".join(row.states) or None, ", ".join(row.target) or None,
        row.start, row.high_watermark, row.last_stable, row.end, row.uncommitted, row.replica_lag,
        row.replica_behind_s,
    )  # fmt: skip


class ReplicaLag(SnapshotReport):
    """Replicas of partitions, from the snapshot alone."""

    name = "replica_lag"
    title = "Replicas of partitions"
    definition = (
        "For each replica of each partition: the messages that the leader has and it lacks, and how long it has not "
        "been caught up, both as the leader knows. A follower that is behind for longer than the setting lag_ms of its "
        "leader leaves the in-sync replicas. Null: the leader did not answer, or the follower has not fetched in its "
        "epoch."
    )
    figures = (
        TOPIC,
        PARTITION,
        BROKER,
        ReportColumn("role", pa.string(), "leader or follower"),
        ReportColumn("in_sync", pa.bool_(), "it is an in-sync replica"),
        ReportColumn("alive", pa.bool_(), "its broker is alive"),
        ReportColumn("end_offset", pa.int64(), "offset after its last record"),
        ReportColumn("lag", pa.int64(), "messages that it lacks"),
        ReportColumn("behind_s", pa.float64(), "seconds for which it has not been caught up"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        rows = [
            (
                row.topic, row.partition, each.broker, "leader" if each.is_leader else "follower", each.is_in_sync,
                each.is_alive, each.end, each.lag, each.behind_s,
            )
            for row in snapshot.partitions
            for each in row.replicas
        ]  # fmt: skip
        return table_of(self, rows)


class LeaderSkew(SnapshotReport):
    """Brokers and the number of partitions that they lead, from the snapshot alone."""

    name = "leader_skew"
    title = "How evenly brokers lead"
    definition = (
        "For each broker: the partitions of all topics that it leads, those of which it is the preferred leader, and "
        "its replicas. The ratio is that of what it leads to the mean of the brokers that are alive."
    )
    figures = (
        BROKER,
        ReportColumn("state", pa.string(), "alive, stopping or dead"),
        ReportColumn("leads", pa.int64(), "partitions that it leads"),
        ReportColumn("preferred", pa.int64(), "partitions of which it is the preferred leader"),
        ReportColumn("replicas", pa.int64(), "replicas on it"),
        ReportColumn("ratio_to_mean", pa.float64(), "leads over the mean of brokers that are alive"),
    )

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        return table_of(self, [tuple(broker) for broker in snapshot.brokers])
