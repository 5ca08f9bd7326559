"""`pyreplog report` of a cluster of brokers: partitions and consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.kafka import EmbeddedKafka
from pyreplog.kafka.groups.group_requests import OffsetCommitRequest, OffsetToCommit
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.topic_partition import TopicPartition
from tests.cli.support import Run
from tests.partition.settled import until_settled
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the metadata store of a broker with a consumer group."""
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
        yield kafka.metadata_url


def test_a_page_of_a_cluster_of_brokers(url: str, run: Run, tmp_path: Path) -> None:
    done = run("report", url, "-o", tmp_path / "page.html", "--json")
    assert done.code == 0, done.error
    made = done.json["reports"]
    assert made["partition_state"] == {"rows": 2 + 4} and made["replica_lag"] == {"rows": 6}
    assert made["leader_skew"] == made["group_lag"] == {"rows": 1}
    assert "records of partitions are read" in made["rate_by_minute"]["left_out"]
    assert "left_out" in made["cluster_health"], "there are no bookies"
    page = (tmp_path / "page.html").read_text()
    assert "Group “billing” of orders, partition 1 lags by 6 messages" in page
    assert "Led, with all replicas in sync: 6 partitions." in page


def test_topics_and_groups_that_are_chosen(url: str, run: Run, tmp_path: Path) -> None:
    done = run("report", url, "-o", tmp_path / "page.html", "--topic", "orders", "--subscription", "billing", "--json")
    assert done.code == 0, done.error
    made = done.json["reports"]
    assert made["partition_state"] == {"rows": 2} and made["group_lag"] == {"rows": 1}
    done = run("report", url, "-o", tmp_path / "page.html", "--subscription", "nobody")
    assert done.code != 0 and "expected one of billing, found 'nobody'" in done.error
