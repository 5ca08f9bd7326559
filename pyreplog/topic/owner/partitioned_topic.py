"""PartitionedTopic, of which this process owns some or all partitions, and those that are open in this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, TopicExistsError, TopicOwnedError
from pyreplog.ledger.driver import Runtime
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.fair_executor import check_wanted
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
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
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)


class PartitionOpener(Protocol):
    """The topics of this process, as far as partitioned ones need them."""

    @property
    def runtime(self) -> Runtime: ...

    def get(self, name: str) -> Topic | None:
        """The topic, if this process owns it already."""
        ...

    def open(
        self, name: str, *, create: bool = True, wait: float = 0.0, settings: Mapping[str, Any] | None = None
    ) -> Topic:
        """As `Cluster.topic`, of one without partitions."""
        ...


class PartitionedTopicRegistry(Protocol):
    """The partitioned topics of this process, as far as one of them needs them."""

    def remove(self, name: str) -> None:
        """Its partitions were deleted."""
        ...

    def forget(self, topic: PartitionedTopic) -> None:
        """It was closed."""
        ...


class PartitionedTopic(PartitionedHandle[Topic]):
    """Made by `Cluster.topic`: the same object for the same name. As `PartitionedHandle`; other processes may own some
    of the partitions: what needs one of these is a TopicOwnedError."""

    def __init__(self, topics: PartitionOpener, registry: PartitionedTopicRegistry, name: str, partitions: int) -> None:
        self._topics, self._registry = topics, registry
        self._served: list[Topic | TopicOwnedError] = []  # by partition
        super().__init__(name, partitions, topics.runtime.wait, f"partitioned topic {name}")

    def own(self, partitions: int, wait: float, settings: Mapping[str, Any]) -> None:
        """Open so many partitions, those that are not; for who makes it. Consumers that there are receive from new
        ones, too. Errors: as `Cluster.topic`; TopicOwnedError only when others have all."""
        with self._changing:
            grown = range(len(self._served), partitions)
            for partition in range(partitions):
                self._served[partition : partition + 1] = [self._open(partition, wait, settings)]
            self.publisher.router.partitions = partitions
            errors = [found for found in self._served if isinstance(found, TopicOwnedError)]
            if len(errors) == partitions:
                raise errors[0]
            self._follow(grown)

    def _open(self, partition: int, wait: float, settings: Mapping[str, Any]) -> Topic | TopicOwnedError:
        try:
            return self._topics.open(partition_name(self.name, partition), wait=wait, settings=settings)
        except TopicOwnedError as error:
            logger.warning("%s", error)
            return error

    # ---- partitions -----------------------------------------------------------------------------------------

    @property
    def served(self) -> list[int]:
        """Those that this process owns."""
        return [at for at, found in enumerate(self._served) if not isinstance(found, TopicOwnedError)]

    def partition(self, partition: int) -> Topic:
        """One of them, owned by this process from now on. Errors: TopicOwnedError, and as `Cluster.topic`;
        InvalidArgumentError."""
        self._check_partition(partition)
        name = partition_name(self.name, partition)
        found = self._topics.get(name) or self._topics.open(name)
        self._served[partition] = found
        return found

    def _serving(self, partition: int) -> Topic:
        self._check_open()
        found = self._served[partition]
        if isinstance(found, TopicOwnedError):
            raise TopicOwnedError(found.topic, found.message)
        return found

    def _joined(
        self, topic: Topic, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[Subscription, int]:
        return topic.attach(part, part.subscription, start, options.durable, options.settings, options.priority)

    # ---- the end --------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        self._registry.remove(self.name)

    def close(self) -> None:
        """Close its partitions and its consumers; as `Topic.close`."""
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self._registry.forget, self)
            for found in self._served:
                if not isinstance(found, TopicOwnedError):
                    rest.callback(found.close)
            for consumer in list(self._options):
                rest.callback(consumer.close)


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
