"""A topic of Kafka with one partition, through confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.kafka import broker
from benchmarks.peers.kafka.broker import Broker
from benchmarks.peers.queues.peer import PATIENCE_S, QueuePeer
from benchmarks.result import Durability

_COUNT = 1000
_LINGER_MS = 5
_AHEAD = 1_000_000  # with fewer it rests for a second when it has them

T = TypeVar("T")


class KafkaTopic(QueuePeer):
    """A topic per turn. Single messages go at once, batches with a short linger: a producer for each. The consumer
    fetches ahead, also while messages are published: told to rest, it takes up to a second to go on."""

    title = "Kafka"
    served = True

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._durability = durability
        self._broker = Broker(directory)
        self._settings = {"bootstrap.servers": self._broker.address}
        self._single, self._batches = (
            Producer(self._settings | {"acks": "all", "linger.ms": linger_ms}) for linger_ms in (0, _LINGER_MS)
        )
        self._admin = AdminClient(self._settings)
        self._consumer: Any = None
        self._failed: Any = None
        self._turn = 0
        self._to_commit = False

    @staticmethod
    def version() -> str:
        return f"Kafka {broker.version()}, confluent-kafka {confluent_kafka.__version__}"

    @property
    def _name(self) -> str:
        return f"queue-{self._turn}"

    @property
    def _partition(self) -> TopicPartition:
        return TopicPartition(self._name, 0)

    def start(self) -> None:
        self._release()
        if self._turn:
            self._admin.delete_topics([self._name])[self._name].result(PATIENCE_S)
        self._turn += 1
        config = {"flush.messages": "1"} if self._durability == "synced" else {}
        made = self._admin.create_topics([NewTopic(self._name, 1, 1, config=config)])
        made[self._name].result(PATIENCE_S)
        self._consumer = self._connect()
        self.publish(b"")  # it takes half a second to find its way to the first
        self.take()
        self.settle()

    def _connect(self) -> Any:
        """A consumer of what is not committed."""
        group = {"group.id": self._name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        made = Consumer(self._settings | group | {"queued.min.messages": _AHEAD})
        made.assign([self._partition])
        return made

    def publish(self, value: bytes) -> None:
        self._single.produce(self._name, value, on_delivery=self._note)
        self._flush(self._single)

    def publish_batch(self, values: list[bytes]) -> None:
        for value in values:
            while True:
                try:
                    self._batches.produce(self._name, value, on_delivery=self._note)
                    break
                except BufferError:  # as many are on their way as it takes
                    self._batches.poll(PATIENCE_S)
        self._batches.poll(0)

    def flush(self) -> None:
        self._flush(self._batches)

    def _flush(self, producer: Producer) -> None:
        if left := producer.flush(PATIENCE_S):
            raise TimeoutError(f"{self.title}: {left} messages were not confirmed for {PATIENCE_S} s")
        if self._failed is not None:
            raise KafkaException(self._failed)

    def _note(self, error: Any, _: Message) -> None:
        self._failed = error or self._failed

    def take(self) -> list[bytes]:
        """Commits without waiting."""
        messages = self._until(lambda: self._consumer.consume(_COUNT, 0.01))
        self._consumer.commit(message=messages[-1], asynchronous=True)
        self._to_commit = True
        return [_value(message) for message in messages]

    def _until(self, take: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := take()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.title}: no message for {PATIENCE_S} s")
        return found

    def settle(self) -> None:
        if self._to_commit:
            self._consumer.commit(offsets=self._consumer.position([self._partition]), asynchronous=False)
            self._to_commit = False

    def backlog(self) -> int:
        (committed,) = self._consumer.committed([self._partition], PATIENCE_S)
        _, end = self._consumer.get_watermark_offsets(self._partition, PATIENCE_S)
        return int(end - max(committed.offset, 0))

    def arrivals(self) -> Generator[bytes, None, None]:
        consumer = self._connect()
        try:
            while True:
                message = self._until(lambda: consumer.poll(PATIENCE_S))
                try:
                    yield _value(message)
                finally:
                    consumer.commit(message=message, asynchronous=False)
        finally:
            consumer.close()

    def _release(self) -> None:
        self._to_commit = False
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def close(self) -> None:
        self._release()
        del self._single, self._batches, self._admin  # else they say that their broker has gone
        self._broker.close()


def _value(message: Any) -> bytes:
    if message.error():
        raise KafkaException(message.error())
    value: bytes = message.value()
    return value
