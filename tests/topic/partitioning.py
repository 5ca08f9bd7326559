"""Partitioned topics for tests, and other processes that own some of their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyreplog._native.topic.messages import Message
from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionedConsumer
from pyreplog.topic.model.routing import key_hash
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

PLAIN: dict[str, Any] = {"ensemble": 1, "durability": "appended"}


class _SharedRuntime:
    """The runtime of another handle, which this one must not close."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def end_calls_by(self, deadline: float) -> None:
        return

    def close(self, timeout: float | None = None) -> None:
        return


@contextmanager
def other_process(cluster: Cluster) -> Iterator[Cluster]:
    """Open another handle of a cluster, as a process of its own has it."""
    runtime: Any = _SharedRuntime(cluster.runtime)
    with Cluster("other process", runtime, SystemClock()) as other:
        yield other


def key_of(partition: int, partitions: int) -> bytes:
    """Return a key that is routed to a partition."""
    return next(key for at in range(1000) if key_hash(key := b"%d" % at) % partitions == partition)


def stored(topic: PartitionedTopic) -> list[list[bytes]]:
    """Return the stored values by partition."""
    return [
        [value for batch in topic.read(partition) for value in batch.values()] for partition in range(topic.partitions)
    ]


def receive(consumer: PartitionedConsumer, count: int) -> list[Message]:
    """Receive so many messages; return them."""
    messages: list[Message] = []
    while len(messages) < count:
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"{len(messages)} of {count} came"
        messages.append(message)
    return messages
