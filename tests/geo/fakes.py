"""Replicators that only note what they are told, and a cluster that is replicated by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyreplog.clock import SystemClock
from pyreplog.errors import ReplogError
from pyreplog.geo.clusters import RemoteCluster, add_cluster
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator_manager import ReplicatorManager
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.store import MetadataStore
from pyreplog.origins.origin import Origin
from pyreplog.topic.owner.topics import Topics

UUIDS = {"b": "0b" * 16, "c": "0c" * 16}


class FakeReplicator:
    """Notes the calls that it gets. `shown` is its status."""

    def __init__(self, topic: Any, target: str, policy: ReplicationPolicy, partitions: int | None) -> None:
        self.topic, self.target, self.policy, self.partitions = topic, target, policy, partitions
        self.calls: list[str] = []
        self.shown = ReplicatorStatus(topic.name, target, "running", 0, 0, 0, 0)

    @property
    def target_position(self) -> None:
        return None

    def forwarded(self, origin: Origin) -> None:
        return None

    def sent(self, origin: Origin) -> int:
        return 0

    def start(self) -> None:
        self.calls.append("start")

    def configure(self, policy: ReplicationPolicy) -> None:
        self.calls.append("configure")
        self.policy = policy

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def resync(self) -> None:
        self.calls.append("resync")

    def remove(self) -> None:
        self.calls.append("remove")

    def close(self) -> None:
        self.calls.append("close")

    def status(self) -> ReplicatorStatus:
        return self.shown

    def falls_behind(self, messages: int, size: int) -> None:
        """Show a target that lacks so much."""
        self.shown = replace(self.shown, unsent_messages=messages, unsent_bytes=size)


class Factory:
    """Makes fake replicators, and has all of them. errors: by target, raised in place of making one."""

    def __init__(self) -> None:
        self.made: list[FakeReplicator] = []
        self.errors: dict[str, ReplogError] = {}
        self.retained: list[str] = []

    def make(
        self, topic: Any, target: str, cluster: RemoteCluster, policy: ReplicationPolicy, partitions: int | None
    ) -> FakeReplicator:
        if target in self.errors:
            raise self.errors[target]
        self.made.append(FakeReplicator(topic, target, policy, partitions))
        return self.made[-1]

    def link(self, target: str, cluster: RemoteCluster) -> Any:
        raise AssertionError("no subscriptions are replicated by fakes")

    def retain(self, clusters: Mapping[str, RemoteCluster]) -> None:
        self.retained = [*clusters]

    def renew(self) -> None:
        """Fakes have no files."""

    def of(self, topic: str, target: str = "b") -> FakeReplicator:
        """The newest replicator of a topic and a target."""
        return [fake for fake in self.made if (fake.topic.name, fake.target) == (topic, target)][-1]

    def pairs(self) -> list[tuple[str, str]]:
        """Topics and targets of all replicators that were made, in this order."""
        return [(fake.topic.name, fake.target) for fake in self.made]


class Replicated:
    """The topics of a cluster in this process, and their replication by fakes. A test calls `round` itself."""

    def __init__(self, cluster: LedgerCluster) -> None:
        self.cluster, self.store, self.made = cluster, cluster.metadata, Factory()
        self.topics = Topics(cluster, SystemClock())
        self.geo = GeoReplication(cluster.metadata, SystemClock(), self.made)
        self.opens = False
        self.geo.start(self.topics, lambda: self.opens)

    @property
    def manager(self) -> ReplicatorManager:
        manager = self.geo.replicator_manager
        assert manager is not None
        return manager

    def add(self, *names: str) -> None:
        """Add clusters which nobody asks."""
        for name in names:
            add_cluster(self.store, name, remote(name))

    def round(self) -> None:
        self.manager.round()

    def open(self, name: str) -> Any:
        return self.topics.open(name, settings={"ensemble": 1, "retention_ms": None})

    def close(self) -> None:
        self.geo.close()
        self.topics.close()


def remote(name: str, **fields: Any) -> RemoteCluster:
    return RemoteCluster(uuid=UUIDS[name], url=f"pyreplog://{name}.invalid:7400", **fields)


@contextmanager
def replicated(path: Path) -> Iterator[Replicated]:
    with LedgerCluster.embedded(path, bookies=1) as cluster:
        place = Replicated(cluster)
        try:
            yield place
        finally:
            place.close()


def raw(store: MetadataStore, key: str) -> bytes:
    """The value of a key that exists."""
    stored = store.get(key)
    assert stored is not None
    return stored.value
