"""Topics in clusters with fewer bookies than the default ensemble: the default settings there, and settings that are
refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.cluster import Cluster
from pyreplog.errors import NoSuchTopicError, NotEnoughBookiesError
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.waiting import until

SEGMENT_BYTES = 1 << 20


def embedded(folder: Path, bookies: int) -> Cluster:
    return Cluster.embedded(folder, bookies=bookies, segment_bytes=SEGMENT_BYTES)


def receive_one(cluster: Cluster, name: str, value: bytes) -> None:
    """Publish, receive and acknowledge a message."""
    topic = cluster.topic(name)
    with topic.subscribe("s", start="earliest") as consumer:
        topic.publish(value)
        message = consumer.receive(timeout=30)
        assert message is not None and message.value == value
        consumer.acknowledge(message)
        consumer.flush()


@pytest.mark.parametrize(("bookies", "ensemble"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_default_is_no_larger_than_the_cluster(tmp_path: Path, bookies: int, ensemble: int) -> None:
    """This holds for the ledgers of messages and for those of cursors."""
    with embedded(tmp_path, bookies) as cluster:
        receive_one(cluster, "t", b"value")
        assert cluster.topic("t").config.ensemble == ensemble
        ensemble_sizes = [cluster.ledger_metadata(ledger).ensemble_size for ledger in cluster.ledgers()]
        assert len(ensemble_sizes) >= 2 and set(ensemble_sizes) == {ensemble}


def test_settings_that_are_given_stay(tmp_path: Path) -> None:
    with embedded(tmp_path, 4) as cluster:
        assert cluster.topic("wide", ensemble=4, write_quorum=2, ack_quorum=1).config.ensemble == 4
        assert cluster.topic("narrow", ensemble=1).config.ensemble == 1
        assert cluster.topic("copies", write_quorum=2).config.ensemble == 3


def test_settings_that_need_more_bookies_raise_not_enough_bookies_error(tmp_path: Path) -> None:
    """The error says what to do, and no topic is created."""
    with embedded(tmp_path, 2) as cluster:
        for settings in ({"ensemble": 3}, {"write_quorum": 3}, {"partitions": 4, "ensemble": 3}):
            with pytest.raises(
                NotEnoughBookiesError, match=r"3 bookies, and the cluster has 2: add bookies, .*ensemble=2"
            ):
                cluster.topic("t", **settings)
            with pytest.raises(NoSuchTopicError):
                cluster.topic("t", create=False)
        assert cluster.topics.names() == cluster.topics.partitioned.names() == []
        cluster.topic("t")
        with pytest.raises(NotEnoughBookiesError):
            cluster.topic("t", ensemble=3)
        assert cluster.topic("t").config.ensemble == 2


def test_publish_to_a_topic_with_too_large_an_ensemble_raises_at_once(tmp_path: Path) -> None:
    """Such a topic was created earlier or elsewhere. It can be read, and can get another ensemble."""
    with embedded(tmp_path, 1) as cluster:
        ManagedLedger.open(cluster, "t", config=TopicConfig()).close()
        topic = cluster.topic("t")
        for _ in range(3):
            with pytest.raises(
                NotEnoughBookiesError, match=r"3 bookies, and the cluster has 1: .*configure\(ensemble=1\)"
            ):
                topic.publish(b"value")
        topic.configure(ensemble=1)
        assert topic.publish(b"value") == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[BookieNode]]:
    with SQLiteStore(tmp_path / "metadata") as store:
        config = BookieConfig(segment_bytes=8 << 20)
        bookie_nodes = [
            BookieNode(tmp_path / name, name, store, config, ledgers=StoredLedgers(store))
            for name in ("b0", "b1", "b2")
        ]
        yield bookie_nodes
        for node in bookie_nodes:
            node.close()


def test_nothing_shrinks_because_bookies_are_away(tmp_path: Path, nodes: list[BookieNode]) -> None:
    """The metadata name all bookies, so that the size of the cluster is known although only one of three runs."""
    nodes[0].close()
    nodes[1].close()
    with Cluster.connect(f"sqlite:{tmp_path / 'metadata'}") as cluster:
        until(lambda: len(cluster.status().bookies) == 1)
        assert cluster.bookie_count() == 3 and cluster.topic("t").config.ensemble == 3
        with pytest.raises(NotEnoughBookiesError, match="4 bookies, and the cluster has 3"):
            cluster.topic("more", ensemble=4)


def test_cursors_have_all_their_copies_though_a_bookie_is_away(tmp_path: Path, nodes: list[BookieNode]) -> None:
    nodes[2].close()
    with Cluster.connect(f"sqlite:{tmp_path / 'metadata'}") as cluster:
        until(lambda: len(cluster.status().bookies) == 2)
        receive_one(cluster, "t", b"value")
        ensemble_sizes = [cluster.ledger_metadata(ledger).ensemble_size for ledger in cluster.ledgers()]
        assert len(ensemble_sizes) >= 2 and set(ensemble_sizes) == {3}
        assert len(cluster.degraded) >= 1
