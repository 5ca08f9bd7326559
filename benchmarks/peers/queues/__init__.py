"""Queues with acknowledgements that Python can call, all of this machine: one module each."""

from benchmarks.peers.queues.jetstream import JetStream
from benchmarks.peers.queues.lite import Lite
from benchmarks.peers.queues.peer import QueuePeer
from benchmarks.peers.queues.persist_ack import PersistAck
from benchmarks.peers.queues.redis_group import RedisGroup
from benchmarks.peers.queues.topic import EmbeddedCopies, EmbeddedTopic, QueueTopic, ServedTopic

QUEUES: dict[str, type[QueuePeer]] = {
    queue.__name__: queue
    for queue in (EmbeddedTopic, EmbeddedCopies, PersistAck, Lite, ServedTopic, RedisGroup, JetStream)
}

__all__ = ["QUEUES", "EmbeddedTopic", "QueuePeer", "QueueTopic", "ServedTopic"]
