"""Metrics of a Kafka listener, for `pyreplog.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from pyreplog._native.system.histogram import Histogram
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.group_requests import GroupState, GroupType, ListedGroup
from pyreplog.kafka.server import KafkaServer
from pyreplog.metrics import Labels, Metric
from pyreplog.partition.broker import Broker
from pyreplog.partition.topic_partition import TopicPartition

_Samples = list[tuple[Labels, float | Histogram]]
_WAIT_S = 1.0
"""A group that is busy for longer is left out of one scrape."""


def kafka_metrics(server: KafkaServer) -> Iterator[Metric]:
    """Return the metrics of a listener and of the groups that its broker coordinates. Any thread; may block shortly.

    The sum over all brokers counts each group once. The lag of a partition is known where its coordinator has a replica
    of it.
    """
    labels = {"broker": server.broker.name}
    connections = list(server.connections)
    inflight, queued = sum(each.requests for each in connections), sum(each.queued_bytes for each in connections)
    for kind, text, value in (
        ("connections", "connections of Kafka clients", len(connections)),
        ("inflight_requests", "requests of Kafka clients without an answer", inflight),
        ("queued_bytes", "bytes of answers that clients did not take", queued),
    ):
        yield Metric(f"pyreplog_kafka_{kind}", "gauge", text, [(labels, float(value))])

    groups = server.groups
    listed: tuple[ListedGroup, ...] = ()
    with suppress(TimeoutError):
        listed = groups.list_groups().result(_WAIT_S).groups
    states = Counter(group.state for group in listed)
    yield Metric(
        "pyreplog_kafka_groups", "gauge", "groups that this broker coordinates, by state",
        [({**labels, "state": state.value}, float(states[state])) for state in GroupState],
    )  # fmt: skip
    members, offsets, lags = _Samples(), _Samples(), _Samples()
    for group in listed:
        of_group = {**labels, "group": group.group_id}
        with suppress(TimeoutError):
            members.append((of_group, float(_count_members(groups, group))))
            for name, offset in _committed_offsets(groups, group.group_id).items():
                where = {**of_group, "topic": name.topic, "partition": str(name.partition)}
                offsets.append((where, float(offset)))
                lag = _lag(server.broker, name, offset)
                if lag is not None:
                    lags.append((where, float(lag)))
    yield Metric("pyreplog_kafka_group_members", "gauge", "members of a group", members)
    yield Metric("pyreplog_kafka_group_offset", "gauge", "committed offset of a group", offsets)
    yield Metric("pyreplog_kafka_group_lag", "gauge", "offsets from the committed one to the high watermark", lags)


def _count_members(groups: GroupCoordinator, group: ListedGroup) -> int:
    if group.group_type is GroupType.CONSUMER:
        return len(groups.describe_consumer_group(group.group_id).result(_WAIT_S).members)
    return len(groups.describe_group(group.group_id).result(_WAIT_S).members)


def _committed_offsets(groups: GroupCoordinator, group_id: str) -> dict[TopicPartition, int]:
    fetched = groups.fetch_offsets(group_id).result(_WAIT_S)
    return {name: each.offset for name, each in fetched.offsets.items() if each.offset >= 0}


def _lag(broker: Broker, name: TopicPartition, offset: int) -> int | None:
    """Return how many offsets lie between a committed one and the high watermark; None: there is no replica here."""
    partition = broker.partition(name.topic, name.partition)
    return None if partition is None else max(partition.high_watermark.entry - offset, 0)
