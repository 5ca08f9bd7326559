"""PartitionedTopic: a topic of several partitions, of which this process owns some or all."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.errors import TopicOwnedError
from pyreplog.ledger.driver import Runtime
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
from pyreplog.topic.model.routing import partition_name
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
