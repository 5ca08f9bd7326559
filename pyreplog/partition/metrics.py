"""Metrics of a broker of partitions, for `pyreplog.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from pyreplog._native.system.histogram import Histogram
from pyreplog.metrics import Labels, Metric
from pyreplog.partition.broker import Broker
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.partition import Partition
from pyreplog.partition.partition_status import PartitionCounts, PartitionStatus, partition_status
from pyreplog.partition.requests import PartitionQuery

_Sample = tuple[Labels, float | Histogram]


def broker_metrics(broker: Broker) -> Iterator[Metric]:
    """Return the metrics of a broker. Any thread.

    Metrics about ISRs are read from the metadata store, for the partitions that this broker leads, so that the sum over
    all brokers counts each partition once.
    """
    labels = {"broker": broker.name}
    roles, led = Counter[str](), []
    for partition in broker.replicas:
        if partition.failure is not None:
            roles["offline"] += 1
        elif partition.is_leader:
            roles["leader"] += 1
            led.append(partition)
        else:
            roles["follower"] += 1
    yield Metric(
        "pyreplog_broker_replicas", "gauge", "Replicas of this broker, by role.",
        [({**labels, "role": role}, float(roles[role])) for role in ("leader", "follower", "offline")],
    )  # fmt: skip

    rows = _rows(broker, led)
    counts = PartitionCounts.of(rows)
    for metric, text, count in (
        ("under_replicated", "that this broker leads, with a replica that is not in the ISR.", counts.under_replicated),
        (
            "under_min_isr",
            "that this broker leads, with an ISR so small that appends with acks=-1 are refused.",
            counts.under_min_isr,
        ),
        (
            "not_preferred_leader",
            "that this broker leads although another replica is the preferred leader.",
            counts.not_preferred,
        ),
    ):
        yield Metric(f"pyreplog_broker_partitions_{metric}", "gauge", f"Partitions {text}", [(labels, float(count))])
    yield from _partition_metrics(labels, rows)
    cleaner = broker.cleaner
    yield Metric(
        "pyreplog_broker_cleanings", "counter", "Compactions of partitions that were completed.",
        [(labels, float(cleaner.cleanings))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_cleaned_bytes", "counter", "Bytes of records that compaction has removed.",
        [(labels, float(cleaner.bytes_removed))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_copied_segments", "counter", "Compacted segments that this broker has copied from leaders.",
        [(labels, float(cleaner.segments_copied))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_partitions_uncleanable", "gauge",
        "Partitions that cannot be compacted, because a batch cannot be read.",
        [(labels, float(len(cleaner.uncleanable)))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_replicas_without_producers", "gauge",
        "Replicas that have lost their producer snapshots and ask other replicas for theirs.",
        [(labels, float(sum(partition.lacks_producers for partition in broker.replicas)))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_partitions_producers_lost", "gauge",
        "Replicas that lack producers of removed records, because no replica had a snapshot of them.",
        [(labels, float(sum(partition.has_lost_producers for partition in broker.replicas)))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_registered", "gauge",
        "1 if the broker is registered, so that other brokers take it for alive.",
        [(labels, float(broker.is_registered))],
    )  # fmt: skip


def _rows(broker: Broker, led: Iterable[Partition]) -> list[PartitionStatus]:
    """Return the partitions that a broker leads, as rows for `top` and reports."""
    topics, brokers, rows = broker.metadata.topics(), broker.metadata.brokers(), []
    for partition in led:
        topic = topics.get(partition.name.topic)
        number = partition.name.partition
        stored = None if topic is None else broker.metadata.state(PartitionId(topic.topic_id, number))
        if stored is not None:
            described = partition.describe(PartitionQuery())
            rows.append(partition_status(partition.name, stored[1], described, brokers))
    return rows


def _partition_metrics(labels: Labels, rows: list[PartitionStatus]) -> Iterator[Metric]:
    of_partitions = [({**labels, "topic": row.topic, "partition": str(row.partition)}, row) for row in rows]
    columns: tuple[tuple[str, str, Callable[[PartitionStatus], int | None]], ...] = (
        ("log_start", "Offset at which the log of the leader begins.", lambda row: row.start),
        ("high_watermark", "Offset of the high watermark, as the leader knows it.", lambda row: row.high_watermark),
        ("last_stable", "Last stable offset: no transaction is open before it.", lambda row: row.last_stable),
        ("log_end", "Offset at which the log of the leader ends.", lambda row: row.end),
        ("isr", "In-sync replicas, the leader included.", lambda row: len(row.isr)),
        (
            "under_min_isr", "1 if the ISR is so small that appends with acks=-1 are refused.",
            lambda row: int(row.is_under_min_isr),
        ),
    )  # fmt: skip
    for name, text, read in columns:
        values = [(where, read(row)) for where, row in of_partitions]
        samples: list[_Sample] = [(where, float(value)) for where, value in values if value is not None]
        yield Metric(f"pyreplog_partition_{name}", "gauge", text, samples)
    lags, behind = list[_Sample](), list[_Sample]()
    for where, row in of_partitions:
        for replica in row.replicas:
            follower = {**where, "follower": replica.broker}
            if replica.lag is not None and not replica.is_leader:
                lags.append((follower, float(replica.lag)))
            if replica.behind_s is not None and not replica.is_leader:
                behind.append((follower, replica.behind_s))
    yield Metric("pyreplog_replica_lag", "gauge", "Messages of the leader that the follower lacks.", lags)
    yield Metric(
        "pyreplog_replica_behind_seconds", "gauge",
        "Time for which the follower has not been caught up with the leader.",
        behind,
    )  # fmt: skip
