"""`pyreplog top` of brokers: partitions, brokers, and consumer groups beside subscriptions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyreplog.cli import top
from pyreplog.cli.live import top_screen, top_view
from pyreplog.cli.live.top_view import Frame
from pyreplog.cluster import Cluster
from pyreplog.kafka.groups.group_requests import OffsetCommitRequest, OffsetToCommit
from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus, ReplicaStatus, by_attention
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.reports.gathering import gather
from pyreplog.tables.options import ReadOptions
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import Run
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.partition.settled import until_settled
from tests.spark.clusters import Nodes
from tests.waiting import PATIENCE_S, until

SECOND = 1_000_000
NOW_US = 1_800_000_000 * SECOND


def partition(number: int, isr: str = "abc", *, leader: str | None = "a", topic: str = "orders") -> PartitionStatus:
    replicas = tuple(
        ReplicaStatus(
            name, name == leader, name in isr, True, 100 if name == "a" else 60, 0 if name == "a" else 40, 2.0
        )
        for name in "abc"
    )
    return PartitionStatus(
        topic=topic, partition=number, leader=leader, epoch=7, isr=tuple(isr), min_isr=2, replicas=replicas, start=10,
        high_watermark=90, last_stable=80, end=100,
    )  # fmt: skip


def place(topic: str, offset: int, number: int = 0) -> GroupPartitionStatus:
    return GroupPartitionStatus.of(
        topic, number, offset, now_us=NOW_US, start=10, end=90, oldest_us=NOW_US - 90 * SECOND,
        moved_us=NOW_US - 80 * SECOND, rate_in=2.0, rate_out=6.0,
    )  # fmt: skip


BILLING = GroupStatus(
    group="billing",
    state="Stable",
    members=2,
    partitions=(place("gates", 10), place("orders", 50), place("orders", 90, 1)),
)
PARTITIONS = (
    partition(0), partition(1, "a"), partition(2, leader=None), partition(0, topic="__consumer_offsets"),
)  # fmt: skip
BROKERS = (BrokerStatus("a", "alive", 3, 1, 4, 1.5), BrokerStatus("c", "dead", 0, 1, 4, 0.0))


def frame() -> Frame:
    rates = {TopicPartition("orders", 0): 0.5, TopicPartition("orders", 1): 1.0}
    return Frame(
        at_us=NOW_US, topics=tuple(top_view.partition_topic_rows(PARTITIONS, [BILLING], rates)),
        partitions=tuple(by_attention(PARTITIONS)), brokers=BROKERS, groups=(BILLING,),
    )  # fmt: skip


def test_a_topic_of_partitions_with_a_group_as_rows() -> None:
    """A group is shown with its partitions of this topic; internal topics are not shown."""
    (row,) = frame().topics
    assert (row.name, row.partitions, row.messages, row.rate_published) == ("orders", 3, 270, 1.5)
    assert (row.backlog, row.oldest_s, row.rate_delivered) == (40, 90.0, 12.0)
    assert row.states == ("1 without leader", "1 under min ISR", "1 under-replicated")
    (group,) = row.subscriptions
    assert (group.name, group.type, group.consumers, group.backlog) == ("billing", "consumer group", 2, 40)
    assert (group.lag_s, group.drain_s, group.states) == (90.0, 10.0, ("stalled",))
    assert (group.backlog_bytes, group.unacked, group.delayed) == (None, None, None)


def test_top_prints_brokers_and_partitions_as_text() -> None:
    first, second = top_screen.heading(frame())
    assert first.endswith("1 topic, 0 subscriptions, 1 consumer group, 1.5/s in, 12/s out")
    assert second == ("2 brokers, 4 partitions, 1 dead, 1 without a leader, 1 under min ISR, 1 under-replicated")
    topics, partitions, brokers, *_ = top_screen.tables(frame())
    assert [re.split("  +", line.strip()) for line in topics.plain()[1:]] == [
        ["orders", "3 partitions", "1.5", "12", "40", "1:30", "1 without leader, 1 under min ISR, 1 under-replicated"],
        ["billing", "consumer group", "2", "12", "40", "1:30", "10.0 s", "stalled"],
    ]
    assert [re.split("  +", line.strip()) for line in partitions.plain()[1:]] == [
        ["orders", "2", "-", "a,b,c", "2", "-", "90", "80", "b:40,c:40", "2.0 s", "no leader"],
        ["orders", "1", "a", "a", "2", "b,c", "90", "80", "b:40,c:40", "2.0 s", "under min ISR, under-replicated"],
        ["orders", "0", "a", "a,b,c", "2", "-", "90", "80", "b:40,c:40", "2.0 s"],
        ["__consumer_offsets", "0", "a", "a,b,c", "2", "-", "90", "80", "b:40,c:40", "2.0 s"],
    ]
    assert partitions.marked == {0, 1}
    assert [line.split() for line in brokers.plain()[1:]] == [
        ["a", "3", "1", "4", "1.50"], ["c", "dead", "0", "1", "4", "0.00"],
    ]  # fmt: skip
    assert brokers.marked == {1}


def test_top_prints_brokers_and_partitions_as_json() -> None:
    values = json.loads(json.dumps(frame().to_dict()))
    assert values["partitions"][0]["states"] == ["no leader"] and values["brokers"][1]["state"] == "dead"
    assert values["groups"][0]["partitions"][0]["topic"] == "gates" and values["groups"][0]["lag"] == 120
    assert values["topics"][0]["subscriptions"][0]["lag_s"] == 90.0


def test_a_group_of_which_little_is_known() -> None:
    unknown = GroupStatus(group="g", partitions=(GroupPartitionStatus.of("orders", 0, 7, now_us=NOW_US),))
    (topic,) = top_view.partition_topic_rows(PARTITIONS[:1], [unknown], {})
    table = top_screen.tables(Frame(at_us=NOW_US, topics=(topic,)))[0]
    assert table.plain()[-1].split() == ["g", "consumer", "group", "-", "-", "-", "-", "-"]


# ---- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path, offsets_partitions=1, offsets_replication_factor=2) as brokers:
        yield brokers.start("1", "2")


def test_partitions_and_groups_of_brokers_of_which_one_ends(
    run: Run, brokers: KafkaBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, place = f"sqlite:{tmp_path / 'metadata'}", TopicPartition("orders", 0)
    create_topic(
        brokers.store, "orders", partitions=1, replication_factor=2, min_isr=2, now_us=time.time_ns() // 1000,
        assignment={0: ["1", "2"]},
    )  # fmt: skip
    with PartitionClient.connect(url) as client:
        topic = client.topic("orders")
        until(lambda: len(topic[0].isr) == 2)
        topic[0].append_batch([b"a", b"b", b"c"])
    brokers.servers["1"].create_offsets_topic()
    request = OffsetCommitRequest("", -1, {place: OffsetToCommit(1)})

    def is_committed() -> bool:
        outcomes = [
            each.groups.commit_offsets("billing", request).result(PATIENCE_S) for each in brokers.servers.values()
        ]
        return any(outcome[place] == 0 for outcome in outcomes)

    until(is_committed)
    with PartitionClient.connect(url) as client:
        until_settled(client, "orders", "__consumer_offsets")
    report = run("top", "--once", "--json", url).json
    (row,) = report["topics"]
    assert (row["name"], row["partitions"], row["messages"], row["states"]) == ("orders", 1, 3, [])
    assert [(group["name"], group["backlog"]) for group in row["subscriptions"]] == [("billing", 2)]
    assert {(each["topic"], each["leader"] is None) for each in report["partitions"]} == {
        ("orders", False), ("__consumer_offsets", False),
    }  # fmt: skip
    assert report["notes"] == [] and report["recovery"] is None
    done = run("top", "--once", url)
    assert "1 topic, 0 subscriptions, 1 consumer group" in done.out and "2 brokers, 2 partitions" in done.out

    frames: list[dict[str, Any]] = []

    def sleep(_: float) -> None:
        if frames[-1]["brokers"][1]["state"] == "dead":
            raise KeyboardInterrupt
        if "2" in brokers.brokers:
            brokers.stop("2")
        time.sleep(0.02)  # between two looks, which go on until the broker is dead

    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(top, "print_json", frames.append)
    assert run("top", "--json", url).code == 130
    assert [each["state"] for each in frames[0]["brokers"]] == ["alive", "alive"]
    assert frames[-1]["brokers"][0]["state"] == "alive"
    assert frames[-1]["topics"][0]["subscriptions"][0]["backlog"] in (2, None), "unknown until broker 1 leads"


def reported_place(topic: str, options: dict[str, str], now_us: int) -> GroupPartitionStatus:
    """Return the place of the only group in a topic, as reports show it."""
    (group,) = gather(ReadOptions.of(options), now_us).groups
    (place,) = [each for each in group.partitions if each.topic == topic]
    return place


def test_groups_of_topics_on_ledgers_in_top_and_in_reports(run: Run, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, ["b1"]))
        cluster = stack.enter_context(Cluster.connect(nodes.url))
        stack.enter_context(TopicServer(cluster))
        orders = cluster.topic("orders", ensemble=1, retention_ms=None, retention_bytes=None)
        gates = cluster.topic("gates", partitions=2, ensemble=1, retention_ms=None, retention_bytes=None)
        orders.publish_batch([b"x"] * 5)
        gates.partition(1).publish_batch([b"x"] * 3)
        orders.create_subscription("native", start="earliest")
        brokers = stack.enter_context(KafkaBrokers(tmp_path, offsets_partitions=1))
        brokers.start("1", topics=cluster.topics)
        brokers.servers["1"].create_offsets_topic()
        places = {TopicPartition("orders", 0): 2, TopicPartition("gates", 1): 1, TopicPartition("gates", 0): 0}
        request = OffsetCommitRequest("", -1, {place: OffsetToCommit(offset) for place, offset in places.items()})
        until(
            lambda: (
                set(brokers.servers["1"].groups.commit_offsets("billing", request).result(PATIENCE_S).values()) == {0}
            )
        )
        with PartitionClient.connect(nodes.url) as client:
            until_settled(client, "__consumer_offsets")

        report = run("top", "--once", "--json", nodes.url).json
        rows = {row["name"]: {each["name"]: each for each in row["subscriptions"]} for row in report["topics"]}
        assert {name: {key: row["backlog"] for key, row in each.items()} for name, each in rows.items()} == {
            "orders": {"native": 5, "billing": 3}, partition_name("gates", 0): {"billing": 0},
            partition_name("gates", 1): {"billing": 2},
        }  # fmt: skip
        assert rows["orders"]["billing"]["type"] == "consumer group" and 0 < rows["orders"]["billing"]["lag_s"] < 3600
        assert report["groups"][0]["lag"] == 5

        now_us = time.time_ns() // 1000 + SECOND
        # Readers learn of the last entry when the bookie has been told that it is confirmed.
        until(lambda: reported_place("orders", {"cluster": nodes.url}, now_us).end == 5)
        for options in ({}, {"topics": "orders"}):
            place = reported_place("orders", {"cluster": nodes.url, **options}, now_us)
            assert (place.offset, place.end, place.lag) == (2, 5, 3)
            assert place.lag_s is not None and 0 < place.lag_s < 3600 and place.rate_in == 5 / 300
