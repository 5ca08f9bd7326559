"""TopicCatalog: the coordinator's interface to the topics of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


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


class NoTopics:
    """A catalog without topics."""

    def topic(self, name: str) -> KnownTopic | None:
        """See `TopicCatalog`."""
        return None

    def names(self) -> Iterable[str]:
        """See `TopicCatalog`."""
        return ()
