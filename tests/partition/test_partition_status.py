"""Partitions, replicas and brokers as rows: from the machine of the leader to the overview of a client, and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metrics import broker_metrics
from pyreplog.partition.partition_status import (
    PartitionCounts,
    PartitionStatus,
    broker_statuses,
    by_attention,
    partition_status,
)
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.isr import FollowerProgress
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member
from pyreplog.partition.requests import PartitionDescription, PartitionOffsets, PartitionQuery
from pyreplog.partition.topic_partition import TopicPartition
from tests.partition.replicas import Leader, state
from tests.partition.settled import until_settled

NAME = TopicPartition("flights", 0)
OFFSETS = PartitionOffsets(ErrorCode.NONE, start=5, end=100, high_watermark=90, last_stable=80)
BROKERS = {"a": BrokerRegistration(1), "b": BrokerRegistration(1, is_stopping=True), "c": BrokerRegistration(2, True)}


def row(isr: str = "abc", *, leader: str = "a", min_isr: int = 2, answers: bool = True) -> PartitionStatus:
    followers = (FollowerProgress(Member("b", 1), 90, 0), FollowerProgress(Member("c", 1), -1, 7_000_000))
    described = PartitionDescription(OFFSETS, followers) if answers else None
    return partition_status(NAME, state(isr, leader=leader, min_isr=min_isr), described, BROKERS)


# ---- the machine ------------------------------------------------------------------------------------------------


def test_progress_shows_ends_and_lag_of_followers() -> None:
    leader = Leader("abc")
    leader.append(10, now_us=1_000)
    assert [(each.member.broker, each.end) for each in leader.machine.progress(1_000)] == [("b", -1), ("c", -1)]
    leader.fetch("b", 11, now_us=2_000)
    leader.fetch("c", 4, now_us=3_000)
    assert leader.machine.progress(8_000) == [
        FollowerProgress(Member("b", 1), 11, 0), FollowerProgress(Member("c", 1), 4, 8_000),
    ]  # fmt: skip
    leader.append(5, now_us=9_000)
    assert leader.machine.progress(9_500)[0] == FollowerProgress(Member("b", 1), 11, 7_500)


def test_a_follower_without_a_record_of_this_epoch_has_no_end() -> None:
    """Its log may differ from the leader's (KIP-320)."""
    leader = Leader("abc", before=6)
    leader.fetch("b", 6, last_epoch=LeaderEpoch(1, "b"))
    assert [each.end for each in leader.machine.progress(0)] == [-1, -1]


def test_progress_is_of_the_newest_incarnation_of_a_broker() -> None:
    leader = Leader("abc")
    leader.fetch("b", 1)
    leader.fetch("b", 0, incarnation=2)
    assert [each.member for each in leader.machine.progress(0)] == [Member("b", 2), Member("c", 1)]


def test_progress_with_requires_sync_is_the_synced_end() -> None:
    leader = Leader("ab", requires_sync=True)
    leader.append(9)
    leader.fetch("b", 10, synced=3)
    assert leader.machine.progress(0)[0].end == 3


# ---- rows -------------------------------------------------------------------------------------------------------


def test_a_partition_as_a_row() -> None:
    partition = row()
    assert (partition.leader, partition.preferred, partition.isr, partition.min_isr) == ("a", "a", ("a", "b", "c"), 2)
    assert (partition.start, partition.high_watermark, partition.last_stable, partition.end) == (5, 90, 80, 100)
    assert partition.uncommitted == 10 and partition.states == ()
    assert [tuple(each)[1:] for each in partition.replicas] == [
        (True, True, True, 100, 0, 0.0), (False, True, True, 90, 10, 0.0), (False, True, False, None, None, 7.0),
    ]  # fmt: skip
    assert (partition.replica_lag, partition.replica_behind_s) == (10, 7.0)
    assert partition.to_dict()["replica_lag"] == {"a": 0, "b": 10, "c": None}


def test_a_leader_that_does_not_answer() -> None:
    partition = row(answers=False)
    assert (partition.start, partition.high_watermark, partition.end, partition.uncommitted) == (None,) * 4
    assert partition.replica_lag is None and partition.replica_behind_s is None
    refused = PartitionDescription(PartitionOffsets(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert partition_status(NAME, state("abc"), refused).end is None


@pytest.mark.parametrize(
    ("isr", "leader", "min_isr", "states"),
    [
        ("abc", "a", 2, ()),
        ("ab", "a", 2, ("under-replicated",)),
        ("a", "a", 2, ("under min ISR", "under-replicated")),
        ("bc", "b", 2, ("under-replicated", "not led by the preferred leader")),
        ("abc", "", 2, ("no leader",)),
        ("abc", "b", 9, ("not led by the preferred leader",)),
    ],
)
def test_a_partition_row_lists_states_that_need_attention(
    isr: str, leader: str, min_isr: int, states: tuple[str, ...]
) -> None:
    """A min ISR above the number of replicas demands all of them."""
    assert row(isr, leader=leader, min_isr=min_isr).states == states


def test_counts_and_the_order_of_attention() -> None:
    rows = [row(), row("ab"), row("a"), row("bc", leader="b"), row(leader=""), row(leader="b")]
    assert PartitionCounts.of(rows) == PartitionCounts(6, 1, 1, 3, 2)
    assert [each.states[:1] for each in by_attention(rows)] == [
        ("no leader",), ("under min ISR",), ("under-replicated",), ("under-replicated",),
        ("not led by the preferred leader",), (),
    ]  # fmt: skip


def test_leader_skew_counts_living_brokers_only() -> None:
    """A dead broker leads nothing, and does not count for the mean."""
    rows = broker_statuses([row(), row(), row(leader="b"), row(leader="")], {**BROKERS, "d": BrokerRegistration(1)})
    assert [tuple(each) for each in rows] == [
        ("a", "alive", 2, 4, 4, 2.0), ("b", "stopping", 1, 0, 4, 1.0), ("c", "dead", 0, 0, 4, 0.0),
        ("d", "alive", 0, 0, 0, 0.0),
    ]  # fmt: skip
    assert broker_statuses([], {})[:1] == ()


# ---- brokers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartitionClient]:
    with PartitionClient.embedded(
        tmp_path_factory.mktemp("brokers"), config=ProducerConfig(timeout_s=30.0),
        broker_config=BrokerConfig(segment_bytes=1 << 20),
    ) as client:  # fmt: skip
        yield client


def test_the_overview_of_a_client_has_brokers_and_partitions(client: PartitionClient) -> None:
    topic = client.create_topic("flights", partitions=2, min_isr=2)
    before_us = time.time_ns() // 1000
    topic[0].append_batch([b"a", b"b", b"c"])
    until_settled(client, "flights")
    queries = {TopicPartition("flights", 0): PartitionQuery(0, (0, 2, 3))}
    overview = client.overview(["flights"], queries=queries)
    assert not overview.notes and [each.partition for each in overview.partitions] == [0, 1]
    first = overview.partitions[0]
    assert (first.start, first.high_watermark, first.last_stable, first.end) == (0, 3, 3, 3)
    assert {each.end for each in first.replicas} == {3} and {each.is_alive for each in first.replicas} == {True}
    described = overview.descriptions[TopicPartition("flights", 0)]
    assert described.offsets.at_time == 0
    assert described.times_us[0] >= before_us and described.times_us[1] >= described.times_us[0]
    assert described.times_us[2] == -1
    assert sum(each.leads for each in overview.brokers) == 2 and {each.replicas for each in overview.brokers} == {2}
    unasked = client.overview(["flights"], asks_leaders=False)
    assert [each.end for each in unasked.partitions] == [None, None] and not unasked.descriptions
    assert client.overview(["no such topic"]).partitions == ()


def test_metrics_of_partitions_agree_with_their_rows(client: PartitionClient) -> None:
    topic = client.create_topic("gates", replication_factor=3)
    topic[0].append_batch([b"a", b"b"])
    until_settled(client, "gates")
    (status,) = client.overview(["gates"]).partitions
    assert status.leader is not None
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in broker_metrics(client.brokers[status.leader]):
        for labels, value in metric.samples:
            if labels.get("topic") == "gates":
                assert isinstance(value, float)
                found.setdefault(metric.name, []).append((dict(labels), value))
    where = {"broker": status.leader, "topic": "gates", "partition": "0"}
    numbers = {name: [value for _, value in samples] for name, samples in found.items() if "replica" not in name}
    assert numbers == {
        "pyreplog_partition_log_start": [0.0], "pyreplog_partition_high_watermark": [2.0],
        "pyreplog_partition_last_stable": [2.0], "pyreplog_partition_log_end": [2.0], "pyreplog_partition_isr": [3.0],
        "pyreplog_partition_under_min_isr": [0.0],
    }  # fmt: skip
    followers = {name for name in client.brokers if name != status.leader}
    lags = {labels["follower"]: (labels, lag) for labels, lag in found["pyreplog_replica_lag"]}
    assert lags == {name: ({**where, "follower": name}, 0.0) for name in followers}
    assert {labels["follower"] for labels, _ in found["pyreplog_replica_behind_seconds"]} == followers
