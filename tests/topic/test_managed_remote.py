"""Managed ledgers over TCP: clusters of two processes, and bookies that go down and come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.errors import NotEnoughBookiesError, TopicFencedError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.topic.owner.managed import chain_writer
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.ports import free_ports
from tests.topic.owners import config, publish, read_all, result, until

NAMES = ("b0", "b1", "b2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as store:
        yield store


@pytest.fixture
def nodes(store: SQLiteStore) -> Iterator[dict[str, BookieNode]]:
    nodes_by_name = {name: node(store, name) for name in NAMES}
    yield nodes_by_name
    for item in nodes_by_name.values():
        item.close()


def node(store: SQLiteStore, name: str) -> BookieNode:
    folder = store.path.parent / name
    return BookieNode(folder, name, store, BookieConfig(segment_bytes=8 << 20), ledgers=StoredLedgers(store))


def test_new_owner_fences_the_former_one_over_tcp(store: SQLiteStore, nodes: dict[str, BookieNode]) -> None:
    url = f"sqlite:{store.path}"
    with (
        LedgerCluster.connect(url, request_timeout_ms=30_000) as ledger_cluster,
        LedgerCluster.connect(url, request_timeout_ms=30_000) as here,
    ):
        settings = config(ensemble=3, roll_entries=3)
        with ManagedLedger.open(ledger_cluster, "t", config=settings) as managed_ledger:
            futures = [publish(managed_ledger, [b"%d" % number, b"x"]) for number in range(20)]
            assert [result(future).start for future in futures] == list(range(0, 40, 2))
            with ManagedLedger.open(here, "t") as two:
                with pytest.raises(TopicFencedError):
                    result(publish(managed_ledger, [b"late"]))
                records = read_all(two)
                assert len(records) == 40 and records[38] == b"19"
                assert result(publish(two, [b"more"])) == range(40, 41)
                assert [result(two.locate(offset)).first for offset in (0, 1, 39, 40)] == [0, 0, 38, 40]


def test_publishing_continues_without_one_of_three_bookies(store: SQLiteStore, nodes: dict[str, BookieNode]) -> None:
    """Publishing goes on, in the open ledger and in later ones, and at the next owner, which recovers the ledger."""
    url = f"sqlite:{store.path}"
    with LedgerCluster.connect(url) as cluster, LedgerCluster.connect(url) as other:
        topic = ManagedLedger.open(cluster, "t", config=config(ensemble=3))
        assert result(publish(topic, [b"0"])).start == 0
        away = nodes["b1"].identity.id
        nodes["b1"].close()
        futures = [publish(topic, [b"%d" % number]) for number in range(1, 8)]
        assert [result(future).start for future in futures] == list(range(1, 8))
        until(lambda: away not in [bookie.bookie for bookie in other.status().bookies])
        futures = [publish(topic, [b"%d" % number]) for number in range(8, 12)]
        assert [result(future).start for future in futures] == list(range(8, 12)) and topic.stats().failures == 0
        with ManagedLedger.open(other, "t") as successor:
            assert read_all(successor) == {number: b"%d" % number for number in range(12)}
            assert result(publish(successor, [b"12"])).start == 12
        topic.close()
        assert {repair.bookie for repair in other.status().repairs} == {away}


def refusing(store: SQLiteStore, name: str) -> BookieNode:
    """A bookie that is registered at an address where no process listens."""
    folder, (port,) = store.path.parent / name, free_ports(1)
    return BookieNode(
        folder, name, store, BookieConfig(segment_bytes=8 << 20), ledgers=StoredLedgers(store),
        advertise=f"127.0.0.1:{port}",
    )  # fmt: skip


def test_bookies_that_refuse_make_no_storm_of_ledgers(
    store: SQLiteStore, nodes: dict[str, BookieNode], caplog: pytest.LogCaptureFixture
) -> None:
    """These bookies are registered, and there are no others, so that each ledger fails. Between ledgers there is a
    growing delay, and the log has few lines."""
    caplog.set_level(logging.WARNING, "pyreplog.topic")
    for name in ("b1", "b2"):
        nodes[name].close()
        nodes[name] = refusing(store, name)
    with (
        LedgerCluster.connect(f"sqlite:{store.path}") as cluster,
        ManagedLedger.open(cluster, "t", config=config(ensemble=3)) as topic,
    ):
        future = publish(topic, [b"0"])
        until(lambda: topic.stats().failures)
        begin = time.monotonic()
        until(lambda: topic.stats().failures >= 5)
        assert time.monotonic() - begin >= 0.05 + 0.1 + 0.2 + 0.4, "half of each delay is left to chance"
        assert len([record for record in caplog.records if "its ledger failed" in record.getMessage()]) == 1
        for name in ("b1", "b2"):
            nodes[name].close()
            nodes[name] = node(store, name)
        assert result(future).start == 0


def test_publish_fails_while_bookies_stay_away_and_succeeds_afterwards(
    store: SQLiteStore, nodes: dict[str, BookieNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message was stored. Messages that are published when the bookies are back get no error."""
    monkeypatch.setattr(chain_writer, "STUCK_S", 0.2)
    with (
        LedgerCluster.connect(f"sqlite:{store.path}") as cluster,
        ManagedLedger.open(cluster, "t", config=config(ensemble=3)) as topic,
    ):
        for name in ("b1", "b2"):
            nodes[name].close()
        futures = [publish(topic, [b"lost"]) for _ in range(3)]
        for future in futures:
            with pytest.raises(NotEnoughBookiesError):
                result(future)
        for name in ("b1", "b2"):
            nodes[name] = node(store, name)
        until(lambda: len(cluster.status().bookies) == 3)
        monkeypatch.setattr(chain_writer, "STUCK_S", 30.0)
        assert result(publish(topic, [b"kept"])).start == 0
        assert read_all(topic) == {0: b"kept"}


def test_closing_does_not_wait_for_bookies_that_stay_away(
    store: SQLiteStore, nodes: dict[str, BookieNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_writer, "CLOSING_STUCK_S", 0.0)
    with LedgerCluster.connect(f"sqlite:{store.path}") as cluster:
        topic = ManagedLedger.open(cluster, "t", config=config(ensemble=3))
        for name in ("b1", "b2"):
            nodes[name].close()
        future = publish(topic, [b"lost"])
        until(lambda: topic.stats().waits_for or topic.stats().failures)
        topic.close()
        with pytest.raises(NotEnoughBookiesError):
            result(future)


def test_bookies_that_go_and_come_back(store: SQLiteStore, nodes: dict[str, BookieNode]) -> None:
    """While too few bookies run, publishing waits, and no message fails."""
    with (
        LedgerCluster.connect(f"sqlite:{store.path}") as cluster,
        ManagedLedger.open(cluster, "t", config=config(ensemble=3)) as topic,
    ):
        futures = [publish(topic, [b"%d" % number]) for number in range(4)]
        assert [result(future).start for future in futures] == list(range(4))
        for name in ("b1", "b2"):
            nodes[name].close()
        futures = [publish(topic, [b"%d" % number]) for number in range(4, 9)]
        until(lambda: topic.stats().state == "idle" or topic.stats().failures)
        for name in ("b1", "b2"):
            nodes[name] = node(store, name)
        assert [result(future).start for future in futures] == list(range(4, 9))
        assert read_all(topic) == {number: b"%d" % number for number in range(9)}
