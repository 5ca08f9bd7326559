"""Names of partitions, grouping by topic, and the internal topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics to which only coordinators append."""


def by_topic(items: Mapping[TopicPartition, T]) -> Iterator[tuple[str, list[tuple[int, T]]]]:
    """Yield each topic, in order, with the numbers of its partitions and their values, in order of the numbers.

    Args:
        items: values by partition.
    """
    for topic, group in groupby(sorted(items.items(), key=lambda item: item[0]), key=lambda item: item[0].topic):
        yield topic, [(name.partition, value) for name, value in group]
