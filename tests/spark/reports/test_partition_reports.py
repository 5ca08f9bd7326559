"""Reports on partitions and consumer groups: rows, sentences, and a cluster of brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog import reports
from pyreplog.kafka import EmbeddedKafka
from pyreplog.kafka.groups.group_requests import OffsetCommitRequest, OffsetToCommit
from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus, ReplicaStatus
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.reports import suite
from pyreplog.reports.gathering import gather
from pyreplog.reports.page.summary import questions
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions
from tests.partition.settled import until_settled
from tests.spark.reports.pages import NOON_US, outcome
from tests.waiting import PATIENCE_S, until

SECOND = 1_000_000
LAGS, LED = "Which subscription or consumer group lags", "Are partitions led"


def partition(number: int, isr: str = "abc", *, leader: str | None = "a", lag: int | None = 0) -> PartitionStatus:
    replicas = tuple(
        ReplicaStatus(name, name == leader, name in isr, True, 100 - (lag or 0), lag, 0.0 if not lag else 12.0)
        for name in "abc"
    )
    return PartitionStatus(
        topic="orders", partition=number, leader=leader, epoch=7, isr=tuple(isr), min_isr=2, replicas=replicas,
        start=5, high_watermark=90, last_stable=80, end=100,
    )  # fmt: skip


def group(name: str, offset: int, **settings: Any) -> GroupStatus:
    place = GroupPartitionStatus.of("orders", 0, offset, now_us=NOON_US, **settings)
    return GroupStatus(group=name, state="Stable", members=2, partitions=(place,))


def rows(name: str, **snapshot: Any) -> list[dict[str, Any]]:
    taken = Snapshot(as_of_us=NOON_US, **snapshot)
    return list(reports.run(name, "nowhere", snapshot=taken).to_pylist())


def findings_of(name: str, values: list[dict[str, Any]], about: str) -> list[tuple[str, str]]:
    (question,) = [each for each in questions({name: outcome(name, values)}) if each.title.startswith(about)]
    return [(finding.state, finding.text) for finding in question.findings]


# ---- rows and sentences -----------------------------------------------------------------------------------------


def test_partitions_and_what_is_wrong_with_them() -> None:
    values = rows(
        "partition_state", partitions=(partition(0), partition(1, "ab"), partition(2, "a"), partition(3, leader=None))
    )
    first, thin = values[:2]
    assert (first["leader"], first["isr"], first["not_in_sync"], first["state"]) == ("a", "a, b, c", None, None)
    assert [first[name] for name in ("log_start_offset", "high_watermark", "last_stable_offset", "log_end_offset")] == [
        5, 90, 80, 100,
    ]  # fmt: skip
    assert (first["uncommitted"], thin["not_in_sync"], thin["state"]) == (10, "c", "under-replicated")
    assert findings_of("partition_state", values, LED) == [
        ("bad", "orders, partition 3 has no leader: nothing can be appended or read."),
        ("bad", "orders, partition 2 has 1 in-sync replica of 2: it refuses acks=-1."),
        ("hot", "orders, partition 1 is under-replicated: not in sync is c."),
        ("fine", "Led, with all replicas in sync: 1 partition."),
    ]  # fmt: skip


def test_replica_lag_names_replicas_that_lag() -> None:
    values = rows("replica_lag", partitions=(partition(0), partition(1, lag=1200)))
    assert [(row["broker"], row["role"], row["lag"]) for row in values[:2]] == [
        ("a", "leader", 0),
        ("b", "follower", 0),
    ]
    fine = [("fine", "No replica of a broker that lives lags.")]
    assert findings_of("replica_lag", values[:3], LED) == fine
    assert findings_of("replica_lag", values[4:5], LED) == [
        (
            "hot",
            "The replica of orders, partition 1 on broker b lags by 1,200 messages: it has not been caught up for 12 s.",
        )
    ]
    dead = [{**values[4], "alive": False}]
    assert findings_of("replica_lag", dead, LED) == fine, "leader_skew names the broker"


def test_leader_skew_names_brokers_that_lead_too_little() -> None:
    brokers = (BrokerStatus("a", "alive", 6, 2, 6, 2.0), BrokerStatus("b", "alive", 0, 4, 6, 0.0),
               BrokerStatus("c", "dead", 0, 0, 6, 0.0), BrokerStatus("d", "dead", 0, 0, 0, 0.0))  # fmt: skip
    values = rows("leader_skew", brokers=brokers)
    assert findings_of("leader_skew", values, LED) == [
        ("bad", "Broker c is dead, with 6 replicas."),
        ("hot", "Broker a leads 2 times the partitions of the mean broker; it is preferred for 2 of 6."),
    ]
    even = [("fine", "Partitions are spread evenly over 1 broker.")]
    assert findings_of("leader_skew", rows("leader_skew", brokers=(brokers[1], brokers[3])), LED) == even


def test_consumer_lag_names_groups_that_lag() -> None:
    settings = {"end": 100, "start": 0, "oldest_us": NOON_US - 90 * SECOND, "moved_us": NOON_US - 5 * SECOND}
    groups = (
        group("billing", 60, rate_in=2.0, rate_out=6.0, **settings), group("audit", 50, rate_in=2.0, rate_out=0.0, **settings),
        group("done", 100, end=100), group("unknown", 7),
    )  # fmt: skip
    values = rows("group_lag", groups=groups)
    first = values[0]
    assert (first["group"], first["members"], first["lag"], first["lag_s"]) == ("billing", 2, 40, 90.0)
    assert (first["drain_s"], first["status"], first["committed_offset"]) == (10.0, "draining", 60)
    name = "of orders, partition 0"
    assert findings_of("group_lag", values, LAGS) == [
        ("bad", f"Group “audit” {name} lags by 50 messages; the oldest has waited for 1 min 30 s; it does not shrink."),
        ("bad", f"Group “billing” {name} lags by 40 messages; the oldest has waited for 1 min 30 s; at the current rate "
         "it is gone in 10 s."),
        ("unknown", f"It is not known how far group “unknown” {name} is behind: the leader did not answer."),
        ("fine", f"Without a lag: group “done” {name}."),
    ]  # fmt: skip


def test_source_without_brokers_leaves_out_partition_reports() -> None:
    nothing = Snapshot(as_of_us=NOON_US)
    for name in ("partition_state", "replica_lag", "leader_skew"):
        assert suite.left_out(name, nothing) == "the source is not a cluster with topics of partitions"
    assert suite.left_out("group_lag", nothing) == "the source has no Kafka consumer groups"
    unknown = Snapshot(as_of_us=NOON_US, partition_notes=("could not ask: broker a: gone",))
    assert suite.left_out("group_lag", unknown) == "" and suite.unknown_to("group_lag", unknown)


# ---- a cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        create_topic(kafka.store, "orders", partitions=2, replication_factor=1, now_us=time.time_ns() // 1000)
        kafka.servers["1"].create_offsets_topic()
        with PartitionClient.connect(kafka.metadata_url) as client:
            client.topic("orders")[1].append_batch([b"%d" % number for number in range(10)])
            until_settled(client, "orders", "__consumer_offsets")
        place = TopicPartition("orders", 1)
        request = OffsetCommitRequest("", -1, {place: OffsetToCommit(4)})
        groups = kafka.servers["1"].groups
        until(lambda: groups.commit_offsets("billing", request).result(PATIENCE_S)[place] == 0)
        yield kafka


def test_topics_are_chosen_by_name_and_by_pattern(kafka: EmbeddedKafka) -> None:
    def topics(**options: str) -> set[str]:
        snapshot = gather(ReadOptions.of({"cluster": kafka.metadata_url, **options}), NOON_US)
        return {row.topic for row in snapshot.partitions}

    assert topics() == {"orders", "__consumer_offsets"}
    assert topics(topics="orders") == topics(topicsPattern="or.*") == {"orders"}
    assert topics(ledgers="1-5") == set()


def test_unreachable_brokers_are_noted_in_reports(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the metadata store has is reported all the same."""
    monkeypatch.setattr("pyreplog.reports.cluster_partitions.TIMEOUT_S", 0.5)
    options = ReadOptions.of({"cluster": kafka.metadata_url, "secret": "not the secret of the brokers"})
    snapshot = gather(options, NOON_US)
    assert {row.leader for row in snapshot.partitions} == {"1"} and {row.end for row in snapshot.partitions} == {None}
    assert any("broker 1:" in note for note in snapshot.partition_notes)
    (told,) = suite.outcomes(["group_lag"], {}, snapshot, lambda report, *_: report.table(
        {name: [] for name in report.schema().names}
    ))  # fmt: skip
    assert told.warnings == snapshot.partition_notes
