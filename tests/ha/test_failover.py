"""Automatic failover of nodes that share a metadata store, in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.errors import OutcomeUnknownError, ReplicationError
from pyreplog.ha.failover import Failover
from pyreplog.ha.node import Node
from pyreplog.metadata import open_store
from tests.ha.nodes import Lab, assert_same_files, level, until, values
from tests.metadata.conftest import shared_url, sqlite_url

__all__ = ["shared_url", "sqlite_url"]  # these are fixtures

LEASE_S = 6.0


class Group(Lab):
    """Nodes that each have a metadata store of their own, with the same URL."""

    def __init__(self, folder: Path, stack: ExitStack, url: str) -> None:
        super().__init__(folder, stack)
        self.url = url
        self.keepers: dict[str, ExitStack] = {}

    def keep(self, node: Node) -> None:
        """Run failover for a node until it is closed. A master has its lease before the next node looks for one."""
        keeper = self._stack.enter_context(ExitStack())
        store = keeper.enter_context(open_store(self.url))
        keeper.enter_context(Failover(node, store, "orders", lease_ms=round(LEASE_S * 1000)))
        self.keepers[node.name] = keeper
        if node.role == "master":
            until(lambda: (held := store.get("/ha/orders/master")) and json.loads(held.value)[0] == node.name)

    def stop(self, node: Node) -> None:
        """Stop a node as if its process had died: the lease ends by itself, or with the session."""
        self.keepers.pop(node.name).close()
        self.close(node)

    def master_now(self) -> Node | None:
        masters = [node for node in self.nodes.values() if node.role == "master"]
        return masters[0] if len(masters) == 1 else None

    def await_master(self) -> Node:
        """Wait for a master; return it."""
        nodes: list[Node] = []

        def elected() -> bool:
            master = self.master_now()
            nodes.extend([] if master is None else [master])
            return bool(nodes)

        until(elected)
        return nodes[0]


@pytest.fixture
def group(tmp_path: Path, shared_url: str) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(tmp_path, stack, shared_url)


def append(group: Group, value: bytes) -> None:
    """Append at the master, as soon as there is one that has replicas."""

    def appended() -> bool:
        master = group.master_now()
        if master is None:
            return False
        try:
            master.append(value)
        except OutcomeUnknownError:
            raise
        except ReplicationError:
            return False
        return True

    until(appended)


def test_another_node_takes_over_and_the_old_one_follows(group: Group) -> None:
    settings = {"election_timeout_ms": 1000}
    a = group.master(**settings)
    nodes = [a, *(group.replica(name, **settings) for name in "bc")]
    for node in nodes:
        group.keep(node)
    until(lambda: a.role == "master" and len(a.replication().replicas) == 2)
    append(group, b"of a")
    level(a, *nodes[1:])
    group.stop(a)
    heir = group.await_master()
    assert heir.name in "bc"
    append(group, b"of its heir")
    back = group.replica("a", **settings)
    group.keep(back)
    level(heir, *group.nodes.values())
    for node in group.nodes.values():
        assert values(node) == [b"of a", b"of its heir"]
        assert_same_files(heir, node)


def test_master_that_loses_its_lease_becomes_a_replica(group: Group) -> None:
    settings = {"election_timeout_ms": 1000}
    a = group.master(**settings)
    b = group.replica("b", **settings)
    c = group.replica("c", **settings)
    for node in (a, b, c):
        group.keep(node)
    until(lambda: a.role == "master" and len(a.replication().replicas) == 2)
    append(group, b"one")
    level(a, b, c)
    group.keepers.pop("a").close()  # the node goes on running, and its lease is not renewed
    until(lambda: a.role == "replica")
    heir = group.await_master()
    append(group, b"two")
    level(heir, b, c)
    assert values(heir) == [b"one", b"two"]
