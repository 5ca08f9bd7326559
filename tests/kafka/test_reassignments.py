"""Replicas are moved by clients: reassignments are begun, listed and cancelled, and what cannot be moved is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyreplog.kafka.wire.messages import (
    AlterPartitionReassignmentsReassignablePartition,
    AlterPartitionReassignmentsReassignableTopic,
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.metadata.partition_changes import list_reassignments, read_states, reassign_partitions
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.waiting import until

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        for name in ("1", "2"):
            cluster.start(name)
        cluster.create(partitions=2, assignment={0: ["1"], 1: ["1"]})
        yield cluster


@pytest.fixture
def client(brokers: KafkaBrokers) -> Iterator[RawClient]:
    with RawClient(brokers.servers["1"]) as client:
        yield client


def alter(client: RawClient, targets: dict[int, Sequence[int] | None], topic: str = "events") -> dict[int, int]:
    partitions = [AlterPartitionReassignmentsReassignablePartition(*item) for item in targets.items()]
    topics = (AlterPartitionReassignmentsReassignableTopic(topic, partitions),)
    response = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, AlterPartitionReassignmentsRequest(60_000, topics))
    assert response.error_code == 0 and [each.name for each in response.responses] == [topic]
    return {each.partition_index: each.error_code for each in response.responses[0].partitions}


def listed(client: RawClient, *topics: ListPartitionReassignmentsTopics) -> Any:
    request = ListPartitionReassignmentsRequest(60_000, topics or None)
    response = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request)
    assert response.error_code == 0
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    }


def test_a_reassignment_moves_replicas(brokers: KafkaBrokers, client: RawClient) -> None:
    assert alter(client, {0: [2], 1: [1]}) == {0: 0, 1: 0}

    def replicas() -> list[tuple[str, ...]]:
        return [state.replicas for _, state in read_states(brokers.store, ["events"]) if not state.target]

    until(lambda: replicas() == [("2",), ("1",)])
    until(lambda: brokers.leader("events") == "2")
    assert listed(client) == {}


def test_reassignment_that_cannot_end_is_listed_and_cancelled(brokers: KafkaBrokers, client: RawClient) -> None:
    brokers.stop("2")
    assert alter(client, {0: [2], 1: [2, 1]}) == {0: 0, 1: 0}
    moved, grown = ((2, 1), (2,), (1,)), ((2, 1), (2,), ())
    assert listed(client) == {("events", 0): moved, ("events", 1): grown}
    assert listed(client, ListPartitionReassignmentsTopics("events", (1, 7))) == {("events", 1): grown}
    assert listed(client, ListPartitionReassignmentsTopics("none", (0,))) == {}
    assert alter(client, {0: None, 1: None}) == {0: 0, 1: 0} and listed(client) == {}
    assert list_reassignments(brokers.store) == {}
    assert alter(client, {0: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


def test_last_of_two_targets_for_one_partition_counts(brokers: KafkaBrokers, client: RawClient) -> None:
    twice = [AlterPartitionReassignmentsReassignablePartition(0, replicas) for replicas in ((2,), (9,))]
    topics = (AlterPartitionReassignmentsReassignableTopic("events", twice),)
    response = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, AlterPartitionReassignmentsRequest(60_000, topics))
    (only,) = response.responses[0].partitions
    assert only.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert [state.replicas for _, state in read_states(brokers.store, ["events"])] == [("1",), ("1",)]


def test_invalid_reassignments_are_refused(brokers: KafkaBrokers, client: RawClient) -> None:
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert alter(client, {0: [9], 1: []}) == {0: refused, 1: refused}
    assert alter(client, {0: [1, 1], 7: [1]}) == {0: refused, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert alter(client, {0: [1]}, "none") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert reassign_partitions(brokers.store, {EVENTS: ["1"]})[EVENTS].code is ErrorCode.NONE
