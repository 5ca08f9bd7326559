"""Racks of bookies over TCP: a replacement is chosen with the racks of the remaining members in mind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore

RACKS = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}
LEDGERS = 8


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as store:
        yield store


@pytest.fixture
def nodes(store: SQLiteStore) -> Iterator[dict[str, BookieNode]]:
    nodes = {
        name: BookieNode(
            store.path.parent / name, name, store, BookieConfig(segment_bytes=1 << 20),
            ledgers=StoredLedgers(store), rack=rack,
        )
        for name, rack in RACKS.items()
    }  # fmt: skip
    yield nodes
    for node in nodes.values():
        node.close()


def racks_of(cluster: LedgerCluster, ledger: int) -> list[str]:
    return [RACKS[bookie.partition("@")[0]] for bookie in cluster.ledger_metadata(ledger).last_fragment.ensemble]


def test_a_replacement_comes_from_the_rack_that_the_members_that_stay_lack(
    store: SQLiteStore, nodes: dict[str, BookieNode]
) -> None:
    with LedgerCluster.connect(f"sqlite:{store.path}", request_timeout_ms=30_000) as cluster:
        ledgers = [cluster.create_ledger(2, 2, 2) for _ in range(LEDGERS)]
        for ledger in ledgers:
            assert sorted(racks_of(cluster, ledger.id)) == ["a", "b"]
        nodes["a0"].close()
        for ledger in ledgers:
            ledger.append(b"value")
            members = cluster.ledger_metadata(ledger.id).last_fragment.ensemble
            assert not any(bookie.startswith("a0@") for bookie in members)
            assert sorted(racks_of(cluster, ledger.id)) == ["a", "b"]
        for ledger in ledgers:
            ledger.close()
