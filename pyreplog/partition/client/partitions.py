"""Partitions: a topic as its client has it, as the sequence of its partitions."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, NoSuchPartitionError
from pyreplog.partition.client.leader_requests import LeaderRequests
from pyreplog.partition.client.partition_handle import PartitionHandle
from pyreplog.partition.client.partition_producer import PartitionProducer, ProducerConfig
from pyreplog.partition.metadata.producer_ids import ProducerIds
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition


class Partitions:
    """The partitions of a topic, a sequence of `PartitionHandle`, made by `PartitionClient.topic`.

    The client closes it together with itself. Any thread may use it.
    """

    def __init__(
        self, name: str, metadata: TopicMetadata, requests: LeaderRequests, ids: ProducerIds, clock: Clock,
        config: ProducerConfig, isolation: FetchIsolation,
    ) -> None:  # fmt: skip
        self._name, self._metadata, self._requests, self._ids, self._clock = name, metadata, requests, ids, clock
        self._config, self._isolation = config, isolation
        self._lock = threading.Lock()
        self._shared: PartitionProducer | None = None
        self._producers: list[PartitionProducer] = []
        self._is_closed = False

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._name

    @property
    def topic_id(self) -> str:
        """Id of the topic, which is never reused."""
        return self._metadata.topic_id

    @property
    def metadata(self) -> TopicMetadata:
        """The stored topic, as far as this process knows."""
        topic = self._requests.topic(self._name)
        return self._metadata if topic is None or topic.topic_id != self.topic_id else topic

    @property
    def timeout_s(self) -> float:
        """Seconds after which a call times out."""
        return self._config.timeout_s

    @property
    def isolation(self) -> FetchIsolation:
        """The isolation level of reads."""
        return self._isolation

    def __len__(self) -> int:
        return self.metadata.partitions

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: int) -> PartitionHandle:
        count = len(self)
        at = number + count if number < 0 else number
        if not 0 <= at < count:
            raise NoSuchPartitionError(f"{self._name}-{number}", "", f"the topic has {count} partitions")
        return PartitionHandle(TopicPartition(self._name, at), self._requests, self)

    def __iter__(self) -> Iterator[PartitionHandle]:
        return (self[number] for number in range(len(self)))

    def producer(self, config: ProducerConfig | None = None) -> PartitionProducer:
        """Return a new producer. The client closes it, if the caller does not.

        Args:
            config: its settings; None: those with which the topic was opened.

        Raises:
            InvalidArgumentError: a setting is out of its bounds.
            ClosedError: the client was closed.
        """
        with self._lock:
            return self._new_producer(config or self._config)

    def shared_producer(self) -> PartitionProducer:
        """Return the producer that the handles of this topic share."""
        with self._lock:
            if self._shared is None:
                self._shared = self._new_producer(self._config)
            return self._shared

    def _new_producer(self, config: ProducerConfig) -> PartitionProducer:
        if self._is_closed:
            raise ClosedError("the client was closed")
        producer = PartitionProducer(
            self._name, self.topic_id, len(self), self._requests, self._ids, self._clock, config
        )  # fmt: skip
        self._producers.append(producer)
        return producer

    def close(self) -> None:
        """Close the producers of this topic."""
        with self._lock:
            self._is_closed = True
            producers, self._producers = self._producers, []
        for producer in producers:
            producer.close()

    def __repr__(self) -> str:
        return f"<Partitions {self._name!r}>"
