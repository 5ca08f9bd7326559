"""Metrics of a Kafka listener, for `pyreplog.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from pyreplog._native.system.histogram import Histogram
from pyreplog.clock import SystemClock
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.group_requests import (
    DescribedConsumerGroup,
    DescribedGroup,
    GroupState,
    GroupType,
    ListedGroup,
)
from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus
from pyreplog.kafka.groups.group_trends import Place
from pyreplog.kafka.ledgers.requests import LedgerPosition
from pyreplog.kafka.quotas.client_quotas import QUOTAS
from pyreplog.kafka.server import KafkaServer
from pyreplog.metrics import Labels, Metric
from pyreplog.partition.topic_partition import TopicPartition

_Sample = tuple[Labels, float | Histogram]
_CLOCK = SystemClock()
_WAIT_S = 1.0
"""Seconds to wait for one group; a group that does not answer in time is left out of the scrape."""


def kafka_metrics(server: KafkaServer) -> Iterator[Metric]:
    """Return the metrics of a listener and of the groups that its broker coordinates.

    Any thread may call it. It waits up to a second for each group. The sum over all brokers counts each group once. The
    lag in a partition is known only if the broker that coordinates the group has a replica of the partition.
    """
    labels = {"broker": server.broker.name}
    connections = list(server.connections)
    inflight, queued = sum(each.requests for each in connections), sum(each.queued_bytes for each in connections)
    incomplete = server.receive_budget.used_bytes
    for kind, text, value in (
        ("connections", "Open connections of Kafka clients.", len(connections)),
        ("inflight_requests", "Requests of Kafka clients that have no answer yet.", inflight),
        ("queued_bytes", "Bytes of answers that Kafka clients have not received yet.", queued),
        ("incomplete_request_bytes", "Bytes of memory for requests that have not arrived whole.", incomplete),
    ):
        yield Metric(f"pyreplog_kafka_{kind}", "gauge", text, [(labels, float(value))])
    throttles = {kind: server.quotas.throttles[kind] for kind in QUOTAS}
    yield Metric(
        "pyreplog_kafka_throttles", "counter", "Answers to clients that were above a quota, by kind of quota.",
        [({**labels, "quota": kind}, float(each.answers)) for kind, each in throttles.items()],
    )  # fmt: skip
    yield Metric(
        "pyreplog_kafka_throttle_seconds", "counter",
        "Time for which clients above a quota were throttled, by kind of quota.",
        [({**labels, "quota": kind}, each.total_ms / 1000) for kind, each in throttles.items()],
    )  # fmt: skip

    yield Metric(
        "pyreplog_kafka_unanswered_failures", "counter",
        "Produce requests with acks=0 whose records were refused, and whose connection was closed for it.",
        [(labels, float(server.unanswered_failures))],
    )  # fmt: skip

    groups = server.groups
    listed: tuple[ListedGroup, ...] = ()
    with suppress(TimeoutError):
        listed = groups.list_groups().result(_WAIT_S).groups
    states = Counter(group.state for group in listed)
    yield Metric(
        "pyreplog_kafka_groups", "gauge", "Groups that this broker coordinates, by state.",
        [({**labels, "state": state.value}, float(states[state])) for state in GroupState],
    )  # fmt: skip
    rows = _group_statuses(server, listed)
    members: list[_Sample] = [
        ({**labels, "group": row.group}, float(row.members)) for row in rows if row.members is not None
    ]
    yield Metric("pyreplog_kafka_group_members", "gauge", "Members of the group.", members)
    for kind, text, read in _COLUMNS:
        values = [
            ({**labels, "group": row.group, "topic": each.topic, "partition": str(each.partition)}, read(each))
            for row in rows
            for each in row.partitions
        ]
        samples: list[_Sample] = [(where, float(value)) for where, value in values if value is not None]
        yield Metric(f"pyreplog_kafka_group_{kind}", "gauge", text, samples)


_COLUMNS: tuple[tuple[str, str, Callable[[GroupPartitionStatus], float | None]], ...] = (
    ("offset", "Committed offset of the group in the partition.", lambda row: row.offset),
    ("lag", "Messages from the committed offset to the high watermark.", lambda row: row.lag),
    (
        "lag_seconds", "Age of the oldest message that the group has not consumed; 0 if there is none.",
        lambda row: row.lag_s,
    ),
    (
        "drain_seconds", "Time until the lag is gone, at the present rates; missing if it grows, or is not known.",
        lambda row: row.drain_s,
    ),
    (
        "stalled", "1 if the committed offset does not move although there are messages to consume.",
        lambda row: row.is_stalled,
    ),
)  # fmt: skip


def _group_statuses(server: KafkaServer, listed: Iterable[ListedGroup]) -> list[GroupStatus]:
    """Return the status of the groups that a broker coordinates, as in `top` and reports."""
    rows = []
    places: set[Place] = set()
    deadline_us = _CLOCK.monotonic_us() + round(_WAIT_S * 1e6)
    for group in listed:
        with suppress(TimeoutError):
            described = _describe(server.groups, group)
            offsets = _committed_offsets(server.groups, group.group_id)
            found = _positions(server, offsets, deadline_us)
            partitions = tuple(
                _partition_status(server, group.group_id, name, offsets[name], found.get(name))
                for name in sorted(offsets)
            )
            places |= {(group.group_id, name) for name in offsets}
            state, count = described.state.value, len(described.members)
            rows.append(GroupStatus(group=group.group_id, state=state, members=count, partitions=partitions))
    server.group_trends.keep(places)
    return rows


def _positions(
    server: KafkaServer, offsets: Mapping[TopicPartition, int], deadline_us: int
) -> dict[TopicPartition, LedgerPosition]:  # fmt: skip
    """Return the places of a group in topics on ledgers, as far as their owners answer in time."""
    served = {name: server.ledger_topics_of(name.topic) for name in offsets}
    asked = {name: offset for name, offset in offsets.items() if served[name] is not None}
    topics = next((topics for topics in served.values() if topics is not None), None)
    if topics is None:
        return {}
    left_s = max(deadline_us - _CLOCK.monotonic_us(), 0) / 1e6
    return topics.positions(asked, left_s).result(left_s + _WAIT_S)


def _describe(groups: GroupCoordinator, group: ListedGroup) -> DescribedGroup | DescribedConsumerGroup:
    if group.group_type is GroupType.CONSUMER:
        return groups.describe_consumer_group(group.group_id).result(_WAIT_S)
    return groups.describe_group(group.group_id).result(_WAIT_S)


def _committed_offsets(groups: GroupCoordinator, group_id: str) -> dict[TopicPartition, int]:
    fetched = groups.fetch_offsets(group_id).result(_WAIT_S)
    return {name: each.offset for name, each in fetched.offsets.items() if each.offset >= 0}


def _partition_status(
    server: KafkaServer, group_id: str, name: TopicPartition, offset: int, position: LedgerPosition | None
) -> GroupPartitionStatus:  # fmt: skip
    """Return the offset of a group in a partition, with the lag if this broker has a replica, or it is on ledgers."""
    now_us, partition = _CLOCK.now_us(), server.broker.partition(name.topic, name.partition)
    oldest_us: int | None
    if position is not None:
        start, end, oldest_us = position.offsets.start, position.offsets.stop, position.published_us
    elif partition is not None:
        start, end = partition.log_start, partition.high_watermark.entry
        first = max(offset, start)
        oldest_us = partition.append_time(first) if first < end else None
    else:
        return GroupPartitionStatus.of(*name, offset, now_us=now_us)
    lag = max(end - max(offset, start), 0)
    course = server.group_trends.add_sample((group_id, name), _CLOCK.monotonic_us(), end, offset, lag)
    return GroupPartitionStatus.of(
        *name, offset, now_us=now_us, start=start, end=end, oldest_us=oldest_us,
        moved_us=now_us - round(course.stalled_s * 1e6), rate_in=course.rate_in, rate_out=course.rate_out,
    )  # fmt: skip
