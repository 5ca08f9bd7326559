"""PartitionedTopic: a topic whose partitions this process owns, some or all; and those open in this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.clock import Clock
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, list_subscriptions, load_subscription
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    TopicExistsError,
    TopicOwnedError,
)
from pyreplog.ledger.driver import Runtime
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.fair_executor import check_connected
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.partitioned_metadata import (
    check_partitions,
    create_partitioned,
    delete_partitioned,
    find_partitioned,
    grow_partitioned,
    list_partitioned,
)
from pyreplog.topic.model.routing import partition_name, partition_of
from pyreplog.topic.owner.managed.chain_store import find_chain
from pyreplog.topic.owner.ownership import Ownership
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic_names import check_name

logger = logging.getLogger(__name__)

GONE_S = 60.0
"""Seconds to wait for a topic that is being closed, before it is opened again."""


class PartitionOpener(Protocol):
    """The topics of this process, as far as partitioned topics use them."""

    @property
    def runtime(self) -> Runtime: ...

    def get(self, name: str) -> Topic | None:
        """Return the topic, if this process owns it already."""
        ...

    def open(
        self, name: str, *, create: bool = True, wait: float = 0.0, settings: Mapping[str, Any] | None = None
    ) -> Topic:
        """Open a topic without partitions, as `Cluster.topic` does."""
        ...


class PartitionedTopicRegistry(Protocol):
    """The partitioned topics of this process, as far as one of them uses them."""

    def remove(self, name: str) -> None:
        """Remove a topic whose partitions were deleted."""
        ...

    def forget(self, topic: PartitionedTopic) -> None:
        """Forget a topic that was closed."""
        ...


class PartitionedTopic(PartitionedHandle[Topic]):
    """A topic with partitions, some or all owned by this process; made by `Cluster.topic`: one object for each name.

    Other processes may own some of the partitions: a call that needs one of these raises TopicOwnedError. Any thread
    may use it. See `PartitionedHandle` and docs/topics.md.
    """

    def __init__(self, topics: PartitionOpener, registry: PartitionedTopicRegistry, name: str, partitions: int) -> None:
        self._topics, self._registry = topics, registry
        self._served: list[Topic | TopicOwnedError] = []  # by partition
        super().__init__(name, partitions, topics.runtime.wait, f"partitioned topic {name}")

    def own(self, partitions: int, wait: float, settings: Mapping[str, Any]) -> None:
        """Open the partitions that are not open yet, and have existing consumers receive from new ones.

        Args:
            partitions: number of partitions that the topic has.
            wait: seconds to wait for another owner to go.
            settings: fields of TopicConfig.

        Raises:
            TopicOwnedError: others own all partitions.
            ReplogError: as `Cluster.topic`.
        """
        with self._changing:
            grown = range(len(self._served), partitions)
            for partition in range(partitions):
                self._served[partition : partition + 1] = [self._open(partition, wait, settings)]
            self.publisher.router.partitions = partitions
            errors = [topic for topic in self._served if isinstance(topic, TopicOwnedError)]
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
        """The partitions that this process owns."""
        return [at for at, topic in enumerate(self._served) if not isinstance(topic, TopicOwnedError)]

    def partition(self, partition: int) -> Topic:
        """Return a partition, which this process owns from now on.

        Args:
            partition: number of the partition, from 0.

        Raises:
            TopicOwnedError: another process owns the partition.
            InvalidArgumentError: the topic has no such partition.
            ReplogError: as `Cluster.topic`.
        """
        self._check_partition(partition)
        name = partition_name(self.name, partition)
        topic = self._topics.get(name) or self._topics.open(name)
        self._served[partition] = topic
        return topic

    def _serving(self, partition: int) -> Topic:
        self._check_open()
        topic = self._served[partition]
        if isinstance(topic, TopicOwnedError):
            raise TopicOwnedError(topic.topic, topic.message)
        return topic

    def _attached(
        self, topic: Topic, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[Subscription, int]:
        return topic.attach(part, part.subscription, start, options.durable, options.settings, options.priority)

    # ---- the end --------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        self._registry.remove(self.name)

    def close(self) -> None:
        """Close the partitions and the consumers, as `Topic.close` does.

        Raises:
            InvalidArgumentError: called in a callback.
            OutcomeUnknownError: some messages have no outcome.
        """
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def _do_close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._registry.forget, self)
            for topic in self._served:
                if not isinstance(topic, TopicOwnedError):
                    stack.callback(topic.close)
            for consumer in self._consumers():
                stack.callback(consumer.close)


class PartitionedTopicHost(PartitionOpener, Protocol):
    """The topics of this process, as far as the creation of partitioned ones uses them."""

    @property
    def ownership(self) -> Ownership: ...

    def config_of(self, name: str, settings: Mapping[str, Any]) -> TopicConfig:
        """Return the settings of a new topic."""
        ...

    def adopt(self, topic: PartitionedTopic) -> None:
        """Close the topic together with all others."""
        ...


class PartitionedTopics:
    """The partitioned topics of this process, created by Topics. Any thread; calls block as those of Topics do."""

    def __init__(self, topics: PartitionedTopicHost, metadata: MetadataStore, clock: Clock) -> None:
        self._topics, self._store, self._clock = topics, metadata, clock
        self._lock = threading.Lock()  # guards the table; never held while anything waits
        self._forgotten = threading.Condition(self._lock)  # notified when a topic leaves the table
        self._opening: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # names in use
        self._open: dict[str, PartitionedTopic] = {}
        self._coming: set[str] = set()  # partitions that are created before the topic counts them

    def names(self) -> list[str]:
        """Return the names of all partitioned topics."""
        return list_partitioned(self._store)

    def has(self, name: str) -> bool:
        """Return whether there is a partitioned topic of that name."""
        if self._topics.get(check_name(name)) is not None:
            return False
        with self._lock:
            if name in self._open:
                return True
        return find_partitioned(self._store, name) is not None

    def check_regular(self, name: str) -> None:
        """Check that a topic without partitions may be created or opened under a name.

        Raises TopicExistsError if there is a partitioned one; NoSuchTopicError if the name is that of a partition that
        its topic does not have.
        """
        metadata = find_partitioned(self._store, name)
        if metadata is not None:
            raise TopicExistsError(name, f"it has {metadata.partitions} partitions, and is no topic of one")
        part = partition_of(name)
        if part is None or name in self._coming:
            return
        metadata = find_partitioned(self._store, part[0])
        if metadata is not None and part[1] >= metadata.partitions:
            raise NoSuchTopicError(name, f"topic {part[0]} has {metadata.partitions} partitions")

    def open(
        self, name: str, partitions: int | None, *, create: bool, wait: float, settings: Mapping[str, Any]
    ) -> PartitionedTopic:
        """Open a partitioned topic, see `Cluster.topic`. partitions: None: those that it has."""
        with self._opening_lock(name):
            count = self._stored(name, partitions, create, wait, settings)
            topic = self._open.get(name)
            if topic is not None and topic.is_closing:
                self._wait_gone(topic)
                topic = None
            if topic is not None:
                topic.own(count, wait, settings)
                return topic
            topic = PartitionedTopic(self._topics, self, name, count)
            self._topics.adopt(topic)
            try:
                topic.own(count, wait, settings)
                with self._lock:
                    self._open[name] = topic
            except BaseException:
                topic.close()
                raise
            return topic

    def _wait_gone(self, topic: PartitionedTopic) -> None:
        """Wait for a topic that another thread closes."""
        check_may_wait()
        with self._forgotten:
            if not self._forgotten.wait_for(lambda: self._open.get(topic.name) is not topic, GONE_S):
                raise TopicOwnedError(topic.name, f"this process has been closing it for {GONE_S} s")

    def stored(self, name: str, partitions: int, *, create: bool, wait: float, settings: Mapping[str, Any]) -> int:
        """Return how many partitions a topic has, after creating or growing it as `open` does, for others to own."""
        with self._opening_lock(name):
            return self._stored(name, partitions, create, wait, settings)

    def find(self, name: str) -> int | None:
        """Return how many partitions a topic has; None: there is no partitioned topic of that name."""
        if self._topics.get(check_name(name)) is not None:
            return None
        metadata = find_partitioned(self._store, name)
        return None if metadata is None else metadata.partitions

    def _opening_lock(self, name: str) -> threading.Lock:
        with self._lock:
            return self._opening.setdefault(check_name(name), threading.Lock())

    def _stored(self, name: str, wanted: int | None, create: bool, wait: float, settings: Mapping[str, Any]) -> int:
        """Return how many partitions a topic has, once it has as many as wanted."""
        if wanted is not None:
            check_partitions(name, wanted)
        metadata = find_partitioned(self._store, name)
        if metadata is None:
            if wanted is None or not create:
                raise NoSuchTopicError(name, "there is no partitioned topic of that name")
            self._topics.config_of(name, settings)
            return self._create(name, wanted, wait)
        if wanted is None or wanted == metadata.partitions:
            return metadata.partitions
        if wanted < metadata.partitions:
            least = metadata.partitions
            raise InvalidArgumentError(f"topic {name}: partitions: expected {least} or more, found {wanted}")
        return self._grow(name, wanted, wait, settings)

    def _create(self, name: str, partitions: int, wait: float) -> int:
        if partition_of(name) is not None:
            raise InvalidArgumentError(f"topic {name}: this is the name of a partition, which has no partitions")
        check_name(partition_name(name, partitions - 1))
        self._check_free(name, partitions)
        with self._topics.ownership.claim(name, wait=wait):  # as the creation of a topic without partitions does
            metadata = find_partitioned(self._store, name)
            if metadata is None:
                self._check_free(name, partitions)
                metadata = create_partitioned(self._store, name, partitions, self._clock.now_us())
        if metadata.partitions < partitions:
            raise TopicExistsError(name, f"another process has just created it with {metadata.partitions} partitions")
        return metadata.partitions

    def _check_free(self, name: str, partitions: int) -> None:
        for topic in (name, *(partition_name(name, partition) for partition in range(partitions))):
            check_connected()
            stored = find_chain(self._store, topic)
            if stored is not None and stored.chain is not None:
                raise TopicExistsError(topic, f"it exists, neither with nor as one of {partitions} partitions")

    def _grow(self, name: str, wanted: int, wait: float, settings: Mapping[str, Any]) -> int:
        """Create more partitions with the settings and subscriptions of the first one, before messages are published to
        them.
        """
        check_name(partition_name(name, wanted - 1))
        first = partition_name(name, 0)
        chain = find_chain(self._store, first)
        if chain is not None and chain.chain is not None:
            settings = vars(chain.chain.config.changed(settings))
        with self._topics.ownership.claim(name, wait=wait), ExitStack() as stack:
            metadata = find_partitioned(self._store, name)
            added = range(wanted if metadata is None else metadata.partitions, wanted)
            for partition in added:
                self._coming.add(partition_name(name, partition))
                stack.callback(self._coming.discard, partition_name(name, partition))
            copied: dict[str, str] | None = None
            subscriptions = self._durable_subscriptions(first)
            while copied != (homes := {known: stored.home for known, stored in subscriptions.items() if stored.home}):
                for partition in added:
                    check_connected()  # there may be thousands
                    topic = self._topics.open(partition_name(name, partition), wait=wait, settings=settings)
                    for subscription, stored in subscriptions.items():
                        topic.copy_subscription(subscription, stored)
                copied, subscriptions = homes, self._durable_subscriptions(first)  # a home may have changed meanwhile
            return grow_partitioned(self._store, name, wanted).partitions

    def _durable_subscriptions(self, topic: str) -> dict[str, SubscriptionMetadata]:
        """Return the metadata of the durable subscriptions of a partition, by name, without those of pyreplog."""
        subscriptions = {}
        for subscription in list_subscriptions(self._store, topic):
            if not is_system(subscription):
                with suppress(NoSuchSubscriptionError):  # it was deleted just now
                    subscriptions[subscription] = load_subscription(self._store, topic, subscription)
        return subscriptions

    def remove(self, name: str) -> None:
        """Remove the metadata of a topic whose partitions were deleted.

        Raises TopicExistsError if a partition was not deleted, or was created again.
        """
        metadata = find_partitioned(self._store, name)
        if metadata is not None:
            self._check_free(name, metadata.partitions)
            delete_partitioned(self._store, name)

    def forget(self, topic: PartitionedTopic) -> None:
        """Forget a topic that was closed."""
        with self._lock:
            if self._open.get(topic.name) is topic:
                del self._open[topic.name]
                self._forgotten.notify_all()

    def close(self) -> None:
        """Close all open partitioned topics."""
        with self._lock:
            opened = list(self._open.values())
        with ExitStack() as stack:
            for topic in opened:
                stack.callback(topic.close)
