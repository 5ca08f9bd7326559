"""Fake replicators, which record the calls that they get, and a cluster whose topics are replicated by them."""

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
from pyreplog.geo.target_link import OnExchanged
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.sockets import Address
from pyreplog.origins.origin import Origin
from pyreplog.topic.model.wire.protocol import Exchange
from pyreplog.topic.owner.topics import Topics

UUIDS = {"b": "0b" * 16, "c": "0c" * 16}


class FakeReplicator:
    """Records its calls. `shown` is the status that it reports."""

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
        """Report that the target lacks so many messages, with so many bytes."""
        self.shown = replace(self.shown, unsent_messages=messages, unsent_bytes=size)


class UnansweringLink:
    """A link for the replication of subscriptions over which no answer comes."""

    def exchange(self, request: Exchange, address: Address | None, on_exchanged: OnExchanged) -> None:
        """Do nothing."""


class Factory:
    """Creates fake replicators, and keeps all of them.

    Attributes:
        errors: by target, the error that `make` raises in place of making a replicator.
    """

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
        """Do nothing: fakes have no files of credentials to read again."""

    def of(self, topic: str, target: str = "b") -> FakeReplicator:
        """Return the newest replicator of a topic and a target."""
        return [fake for fake in self.made if (fake.topic.name, fake.target) == (topic, target)][-1]

    def pairs(self) -> list[tuple[str, str]]:
        """Return topic and target of each replicator, in the order in which they were made."""
        return [(fake.topic.name, fake.target) for fake in self.made]


class Replicated:
    """The topics of a cluster in this process, replicated by fakes. Rounds of the manager run when a test calls
    `round`."""

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
        """Add clusters to which no test connects."""
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
    """Return the value of a key that exists."""
    stored = store.get(key)
    assert stored is not None
    return stored.value
