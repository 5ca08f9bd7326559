"""Managed ledgers over TCP: two processes' worth of clusters, bookies that go away and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.errors import TopicFencedError
from pyreplog.ledger.cluster import Cluster
from pyreplog.ledger.stored import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.topic.managed.managedledger import ManagedLedger
from tests.topic.owners import config, publish, read_all, result, until

NAMES = ("b0", "b1", "b2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as store:
        yield store


@pytest.fixture
def nodes(store: SQLiteStore) -> Iterator[dict[str, BookieNode]]:
    made = {name: node(store, name) for name in NAMES}
    yield made
    for one in made.values():
        one.close()


def node(store: SQLiteStore, name: str) -> BookieNode:
    folder = store.path.parent / name
    return BookieNode(folder, name, store, BookieConfig(segment_bytes=8 << 20), ledgers=StoredLedgers(store))


def test_one_owner_after_the_other(store: SQLiteStore, nodes: dict[str, BookieNode]) -> None:
    url = f"sqlite:{store.path}"
    with (
        Cluster.connect(url, request_timeout_s=30.0) as there,
        Cluster.connect(url, request_timeout_s=30.0) as here,
    ):
        settings = config(ensemble=3, roll_entries=3)
        with ManagedLedger.open(there, "t", config=settings) as one:
            acks = [publish(one, [b"%d" % number, b"x"]) for number in range(20)]
            assert [result(ack).start for ack in acks] == list(range(0, 40, 2))
            with ManagedLedger.open(here, "t") as two:
                with pytest.raises(TopicFencedError):
                    result(publish(one, [b"late"]))
                found = read_all(two)
                assert len(found) == 40 and found[38] == b"19"
                assert result(publish(two, [b"more"])) == range(40, 41)
                assert [result(two.locate(offset)).first for offset in (0, 1, 39, 40)] == [0, 0, 38, 40]


def test_bookies_that_go_and_come_back(store: SQLiteStore, nodes: dict[str, BookieNode]) -> None:
    """With too few of them what is published waits; nothing fails."""
    with (
        Cluster.connect(f"sqlite:{store.path}") as cluster,
        ManagedLedger.open(cluster, "t", config=config(ensemble=3)) as topic,
    ):
        acks = [publish(topic, [b"%d" % number]) for number in range(4)]
        assert [result(ack).start for ack in acks] == list(range(4))
        nodes["b1"].close()
        acks = [publish(topic, [b"%d" % number]) for number in range(4, 9)]
        until(lambda: topic.stats().state == "idle" or topic.stats().failures)
        nodes["b1"] = node(store, "b1")
        assert [result(ack).start for ack in acks] == list(range(4, 9))
        assert read_all(topic) == {number: b"%d" % number for number in range(9)}
