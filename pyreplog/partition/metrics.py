"""Metrics of a broker of partitions, for `pyreplog.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyreplog._native.system.histogram import Histogram
from pyreplog.metrics import Labels, Metric
from pyreplog.partition.broker import Broker
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.protocol.partition_state import PartitionState


def broker_metrics(broker: Broker) -> Iterator[Metric]:
    """Return the metrics of a broker. Any thread.

    What it says of ISRs is what the metadata store says of the partitions that this broker leads, so that the sum over
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
        "pyreplog_broker_replicas", "gauge", "replicas of this broker, by role",
        [({**labels, "role": role}, float(roles[role])) for role in ("leader", "follower", "offline")],
    )  # fmt: skip

    topics = broker.metadata.topics()
    states: list[tuple[dict[str, str], PartitionState]] = []
    marks: list[tuple[Labels, float | Histogram]] = []
    for partition in led:
        name = partition.name
        where = {**labels, "topic": name.topic, "partition": str(name.partition)}
        marks.append((where, float(partition.high_watermark.entry)))
        topic = topics.get(name.topic)
        stored = None if topic is None else broker.metadata.state(PartitionId(topic.topic_id, name.partition))
        if stored is not None:
            states.append((where, stored[1]))
    under_replicated = sum(len(state.isr) < len(state.replicas) for _, state in states)
    under_min_isr = sum(len(state.isr) < state.effective_min_isr for _, state in states)
    not_preferred = sum(state.leader != state.replicas[0] for _, state in states)
    for metric, text, count in (
        ("under_replicated", "led here, with a replica that is not in the ISR", under_replicated),
        ("under_min_isr", "led here, with an ISR so small that appends with acks=-1 are refused", under_min_isr),
        ("not_preferred_leader", "led here, though another replica is the preferred leader", not_preferred),
    ):
        yield Metric(f"pyreplog_broker_partitions_{metric}", "gauge", f"partitions {text}", [(labels, float(count))])
    yield Metric("pyreplog_partition_high_watermark", "gauge", "offset of the high watermark, of its leader", marks)
    yield Metric(
        "pyreplog_partition_isr", "gauge", "in-sync replicas, of its leader",
        [(where, float(len(state.isr))) for where, state in states],
    )  # fmt: skip
    cleaner = broker.cleaner
    yield Metric(
        "pyreplog_broker_cleanings", "counter", "partitions that were compacted",
        [(labels, float(cleaner.cleanings))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_cleaned_bytes", "counter", "bytes of records that compaction has removed",
        [(labels, float(cleaner.bytes_removed))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_copied_segments", "counter", "compacted segments that were taken over from leaders",
        [(labels, float(cleaner.segments_copied))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_partitions_uncleanable", "gauge", "partitions with a batch that cannot be read",
        [(labels, float(len(cleaner.uncleanable)))],
    )  # fmt: skip
    yield Metric(
        "pyreplog_broker_registered", "gauge", "whether other brokers take this one for alive: 1 or 0",
        [(labels, float(broker.is_registered))],
    )  # fmt: skip
