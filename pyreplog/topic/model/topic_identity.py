"""TopicIdentity: whether a topic exists, how many partitions it has, and which creation of its name it is."""

from __future__ import annotations

from typing import NamedTuple


class TopicIdentity(NamedTuple):
    """A topic that exists.

    Attributes:
        token: random text of its creation: a topic that was deleted and created again has another one.
        partitions: number of partitions; None: it is a topic without partitions.
    """

    token: str
    partitions: int | None
