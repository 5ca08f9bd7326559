"""PartitionedTopics: those that this process has open; makes them, and lets them grow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, TopicExistsError
from pyreplog.topic.chainstore import find_chain
from pyreplog.topic.names import check_name
from pyreplog.topic.partitioned import PartitionedTopic
from pyreplog.topic.partitionedmetadata import (
    check_partitions,
    create_partitioned,
    delete_partitioned,
    find_partitioned,
    grow_partitioned,
    list_partitioned,
)
from pyreplog.topic.routing import partition_name, partition_of
from pyreplog.topic.subscriptionmetadata import list_subscriptions, load_subscription

if TYPE_CHECKING:
    from pyreplog.clock import Clock
    from pyreplog.topic.topics import Topics


class PartitionedTopics:
    """Made by Topics; any thread may call anything, and calls wait as of Topics."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics, self._store, self._clock = topics, topics.metadata, clock
        self._lock = threading.Lock()  # of the table; never while anything waits
        self._changing = threading.Lock()  # while one is opened, or grows
        self._open: dict[str, PartitionedTopic] = {}
        self._coming: set[str] = set()  # partitions that are made before the topic has them

    def names(self) -> list[str]:
        """Of all partitioned topics there are."""
        return list_partitioned(self._store)

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        if self._topics.get(check_name(name)) is not None:
            return False
        with self._lock:
            if name in self._open:
                return True
        return find_partitioned(self._store, name) is not None

    def check_plain(self, name: str) -> None:
        """Whether a topic of that name may be made or opened: TopicExistsError, there is a partitioned one;
        NoSuchTopicError, it would be a partition that its topic does not have."""
        found = find_partitioned(self._store, name)
        if found is not None:
            raise TopicExistsError(name, f"it has {found.partitions} partitions, and is no topic of one")
        part = partition_of(name)
        if part is None or name in self._coming:
            return
        found = find_partitioned(self._store, part[0])
        if found is not None and part[1] >= found.partitions:
            raise NoSuchTopicError(name, f"topic {part[0]} has {found.partitions} partitions")

    def open(
        self, name: str, partitions: int | None, *, create: bool, wait: float, settings: Mapping[str, Any]
    ) -> PartitionedTopic:
        """See `Cluster.topic`. partitions: at least; None: those it has."""
        with self._changing:
            found = find_partitioned(self._store, name)
            if found is None and (partitions is None or not create):
                raise NoSuchTopicError(name, "there is no partitioned topic of that name")
            if found is None:
                count = self._make(name, check_partitions(name, partitions), wait)
            elif partitions is None or partitions == found.partitions:
                count = found.partitions
            else:
                count = self._grow(name, found.partitions, check_partitions(name, partitions), wait, settings)
            there = self._open.get(name) or PartitionedTopic(self._topics, name, count)
            with self._lock:
                is_new = self._open.setdefault(name, there) is there
            try:
                there.own(count, wait, settings)
            except BaseException:
                if is_new:
                    there.close()
                raise
            return there
