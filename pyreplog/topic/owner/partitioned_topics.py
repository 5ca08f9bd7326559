"""PartitionedTopics: those that this process has open; makes them, and lets them grow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, TopicExistsError
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.fair_executor import check_wanted
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.partitioned_metadata import (
    check_partitions,
    create_partitioned,
    delete_partitioned,
    find_partitioned,
    grow_partitioned,
    list_partitioned,
)
from pyreplog.topic.model.routing import partition_name, partition_of
from pyreplog.topic.model.subscription_metadata import list_subscriptions, load_subscription
from pyreplog.topic.owner.managed.chainstore import find_chain
from pyreplog.topic.owner.ownership import Ownership
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic, PartitionOpener


class PartitionedTopicHost(PartitionOpener, Protocol):
    """The topics of this process, as far as making partitioned ones needs them."""

    @property
    def ownership(self) -> Ownership: ...

    def config_of(self, name: str, settings: Mapping[str, Any]) -> TopicConfig:
        """Check settings that topics are made with."""
        ...

    def adopt(self, topic: PartitionedTopic) -> None:
        """It is closed with all topics."""
        ...


class PartitionedTopics:
    """Made by Topics; any thread may call anything, and calls wait as of Topics."""

    def __init__(self, topics: PartitionedTopicHost, metadata: MetadataStore, clock: Clock) -> None:
        self._topics, self._store, self._clock = topics, metadata, clock
        self._lock = threading.Lock()  # of the table; never while anything waits
        self._opening: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # names in use
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

    def check_regular(self, name: str) -> None:
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
        """See `Cluster.topic`. partitions: None, those it has."""
        with self._turn(name):
            count = self._stored(name, partitions, create, wait, settings)
            there = self._open.get(name)
            if there is not None:
                there.own(count, wait, settings)
                return there
            made = PartitionedTopic(self._topics, self, name, count)
            self._topics.adopt(made)
            try:
                made.own(count, wait, settings)
                with self._lock:
                    self._open[name] = made
            except BaseException:
                made.close()
                raise
            return made

    def stored(self, name: str, partitions: int, *, create: bool, wait: float, settings: Mapping[str, Any]) -> int:
        """How many partitions it has, once it has so many at least: as `open`, for others to own."""
        with self._turn(name):
            return self._stored(name, partitions, create, wait, settings)

    def find(self, name: str) -> int | None:
        """How many partitions it has; None: there is no partitioned topic of that name."""
        if self._topics.get(check_name(name)) is not None:
            return None
        found = find_partitioned(self._store, name)
        return None if found is None else found.partitions

    def _turn(self, name: str) -> threading.Lock:
        with self._lock:
            return self._opening.setdefault(check_name(name), threading.Lock())

    def _stored(self, name: str, wanted: int | None, create: bool, wait: float, settings: Mapping[str, Any]) -> int:
        """How many partitions it has, when it has as many as are wanted."""
        if wanted is not None:
            check_partitions(name, wanted)
        found = find_partitioned(self._store, name)
        if found is None:
            if wanted is None or not create:
                raise NoSuchTopicError(name, "there is no partitioned topic of that name")
            self._topics.config_of(name, settings)
            return self._make(name, wanted, wait)
        if wanted is None or wanted == found.partitions:
            return found.partitions
        if wanted < found.partitions:
            raise InvalidArgumentError(f"topic {name}: partitions: expected {found.partitions} or more, found {wanted}")
        return self._grow(name, wanted, wait, settings)

    def _make(self, name: str, partitions: int, wait: float) -> int:
        if partition_of(name) is not None:
            raise InvalidArgumentError(f"topic {name}: this is the name of a partition, and a partition has none")
        check_name(partition_name(name, partitions - 1))
        self._check_free(name, partitions)
        with self._topics.ownership.claim(name, wait=wait):  # as whoever makes a topic of that name without partitions
            found = find_partitioned(self._store, name)
            if found is None:
                self._check_free(name, partitions)
                found = create_partitioned(self._store, name, partitions, self._clock.now_us())
        if found.partitions < partitions:
            raise TopicExistsError(name, f"somebody else made it just now, with {found.partitions} partitions")
        return found.partitions

    def _check_free(self, name: str, partitions: int) -> None:
        for one in (name, *(partition_name(name, partition) for partition in range(partitions))):
            check_wanted()
            found = find_chain(self._store, one)
            if found is not None and found.chain is not None:
                raise TopicExistsError(one, f"it is there, and neither has nor is one of {partitions} partitions")

    def _grow(self, name: str, wanted: int, wait: float, settings: Mapping[str, Any]) -> int:
        """New partitions are as the first one, and have its subscriptions before anybody publishes to them."""
        check_name(partition_name(name, wanted - 1))
        first = partition_name(name, 0)
        chain = find_chain(self._store, first)
        if chain is not None and chain.chain is not None:
            settings = vars(chain.chain.config.changed(settings))
        with self._topics.ownership.claim(name, wait=wait), ExitStack() as rest:
            found = find_partitioned(self._store, name)
            for partition in range(wanted if found is None else found.partitions, wanted):
                check_wanted()  # there may be thousands
                coming = partition_name(name, partition)
                self._coming.add(coming)
                rest.callback(self._coming.discard, coming)
                topic = self._topics.open(coming, wait=wait, settings=settings)
                for subscription in list_subscriptions(self._store, first):
                    if is_system(subscription):
                        continue
                    known = load_subscription(self._store, first, subscription)
                    topic.create_subscription(
                        subscription, start="earliest", properties=known.properties, **vars(known.config)
                    )
            return grow_partitioned(self._store, name, wanted).partitions

    def remove(self, name: str) -> None:
        """Its partitions were deleted. TopicExistsError: one was not, or has been made anew."""
        found = find_partitioned(self._store, name)
        if found is not None:
            self._check_free(name, found.partitions)
            delete_partitioned(self._store, name)

    def forget(self, topic: PartitionedTopic) -> None:
        """It was closed."""
        with self._lock:
            if self._open.get(topic.name) is topic:
                del self._open[topic.name]

    def close(self) -> None:
        """Close those that are open."""
        with self._lock:
            opened = list(self._open.values())
        with ExitStack() as rest:
            for there in opened:
                rest.callback(there.close)
