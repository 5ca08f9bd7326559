"""What the coordinator of groups needs to know of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class KnownTopic(NamedTuple):
    """A topic.

    Attributes:
        topic_id: 16 bytes.
        partitions: their number.
    """

    topic_id: bytes
    partitions: int


class TopicCatalog(Protocol):
    """The topics of the cluster, as this broker knows them. Any thread may call any method; none blocks."""

    def topic(self, name: str) -> KnownTopic | None:
        """Return a topic; None: there is none, or it is being deleted."""
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
