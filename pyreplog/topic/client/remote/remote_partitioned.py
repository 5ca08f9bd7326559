"""RemotePartitionedTopic: a topic of several partitions that other processes own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
from pyreplog.topic.client.remote.remote_subscription import RemoteSubscription
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.model.interfaces import WaitFunction
from pyreplog.topic.model.routing import partition_name


class RemoteTopics(Protocol):
    """A client, as far as its partitioned topics need it."""

    def one(self, name: str, *, create: bool, settings: Mapping[str, Any]) -> RemoteTopic:
        """A topic that has no partitions, or is one."""
        ...

    def remove_partitioned(self, name: str) -> None:
        """A topic's partitions were deleted."""
        ...

    def forget(self, topic: RemotePartitionedTopic) -> None:
        """It was closed."""
        ...


class RemotePartitionedTopic(PartitionedHandle[RemoteTopic]):
    """Made by `Client.topic`: the same object for the same name. As `PartitionedHandle`; each partition is a
    RemoteTopic of its own, at whichever server owns it."""

    def __init__(self, client: RemoteTopics, name: str, partitions: int, wait: WaitFunction, timeout: float) -> None:
        """For `Client`, which makes this a part of itself."""
        self._client = client
        self._parts: list[RemoteTopic] = []
        super().__init__(name, partitions, wait, f"partitioned topic {name}, at other processes", timeout)

    def use(self, partitions: int, settings: Mapping[str, Any]) -> None:
        """Open so many partitions, those that are not; for who makes it. Consumers that there are receive from new
        ones, too. Errors: as `Client.topic`."""
        with self._changing:
            grown = range(len(self._parts), partitions)
            for partition in range(partitions):
                self._parts[partition : partition + 1] = [self._open(partition, settings)]
            self.publisher.router.partitions = partitions
            self._follow(grown)

    def _open(self, partition: int, settings: Mapping[str, Any]) -> RemoteTopic:
        return self._client.one(partition_name(self.name, partition), create=True, settings=settings)

    @property
    def served(self) -> list[int]:
        """All of them: their owners are found."""
        return list(range(len(self._parts)))

    def partition(self, partition: int) -> RemoteTopic:
        """One of them. Errors: those of `Client.topic`; InvalidArgumentError."""
        self._check_partition(partition)
        found = self._parts[partition] = self._open(partition, {})
        return found

    def _serving(self, partition: int) -> RemoteTopic:
        self._check_open()
        return self._parts[partition]

    def _joined(
        self, topic: RemoteTopic, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[RemoteSubscription, int]:
        return topic.attach(part, start, options.durable, options.priority, options.settings), 0

    def _remove(self) -> None:
        self._client.remove_partitioned(self.name)

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self._client.forget, self)
            for topic in self._parts:
                rest.callback(topic.close)
            for consumer in list(self._options):
                rest.callback(consumer.close)
