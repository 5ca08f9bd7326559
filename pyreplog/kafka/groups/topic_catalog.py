"""TopicCatalog: the coordinator's interface to the topics of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from pyreplog.future import AppendFuture

NO_TOPIC_ID = bytes(16)
"""Kafka's id of a topic whose id is not known."""


class KnownTopic(NamedTuple):
    """The properties of a topic.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partitions: number of partitions.
    """

    topic_id: bytes
    partitions: int


class TopicCatalog(Protocol):
    """The topics of the cluster, as known to this broker. Any thread may call any method; none blocks."""

    def topic(self, name: str) -> KnownTopic | None:
        """Return a topic; None: it does not exist, or is being deleted."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        ...

    def look_up(self, names: Collection[str]) -> AppendFuture[Mapping[str, bytes]] | None:
        """Read the ids of topics from the metadata store, as they are after the call has begun.

        Args:
            names: names of topics.

        Returns:
            A future of the ids by name, without topics that do not exist; NO_TOPIC_ID: brokers have no topic of that
            name, and it is not known whether another one exists. It fails with errors of the store. None: the catalog
            has no store.
        """
        ...


class NoTopics:
    """A catalog without topics."""

    def topic(self, name: str) -> KnownTopic | None:
        """See `TopicCatalog`."""
        return None

    def names(self) -> Iterable[str]:
        """See `TopicCatalog`."""
        return ()

    def look_up(self, names: Collection[str]) -> AppendFuture[Mapping[str, bytes]] | None:
        """See `TopicCatalog`."""
        return None
