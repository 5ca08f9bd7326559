"""Lookups of partitions and their leaders in this broker's metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import partial

from pyreplog.future import AppendFuture
from pyreplog.kafka.apis.context import ApiContext, LivingBroker
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.topic_partition import TopicPartition


def partition_state(api: ApiContext, name: TopicPartition) -> PartitionState | None:
    """Return the state of a partition as known to this broker; None: unknown."""
    topic = api.topic(name.topic)
    stored = None if topic is None else api.metadata.state(PartitionId(topic.topic_id, name.partition))
    return None if stored is None else stored[1]


def exists(api: ApiContext, name: TopicPartition) -> bool:
    """Return whether a partition exists, as far as this broker knows; it may be one of a topic on ledgers."""
    topic = api.topic(name.topic) or api.known_ledger_topic(name.topic)
    return topic is not None and 0 <= name.partition < topic.partitions


def code_without_replica(api: ApiContext, name: TopicPartition) -> ErrorCode:
    """Return the code for a partition without a replica here: if it exists, clients then ask its leader."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if exists(api, name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def current_leader(api: ApiContext, name: TopicPartition) -> tuple[LivingBroker, int] | None:
    """Return the leader of a partition and its epoch number, for clients that asked another broker (KIP-951).

    The result is None if no broker that clients can reach leads the partition.
    """
    state = partition_state(api, name)
    broker = None if state is None or not state.leader else api.living_broker(state.leader)
    return None if broker is None or state is None else (broker, state.epoch.number)


def ledger_topic_leader(api: ApiContext, living: Mapping[str, LivingBroker], topic: str, number: int) -> int:
    """Return the node id of the listener that serves a partition of a topic on ledgers.

    Each could, because it reaches the owner of the topic itself. All listeners name the same one, so that a client does
    not change it with each Metadata response: a listener knows which batches of an idempotent producer it has stored.

    Args:
        api: context of the listener.
        living: the brokers that clients can reach.
        topic: name of the topic.
        number: number of the partition.
    """
    if not living:
        return api.node_id
    name = max(living, key=lambda name: hashlib.blake2b(f"{topic}\0{number}\0{name}".encode(), digest_size=8).digest())
    return living[name].node_id


def wait_for_leaders(api: ApiContext, topics: Collection[str], timeout_ms: int) -> AppendFuture[bool]:
    """Wait until all partitions of topics have leaders that clients can reach, as far as this broker knows.

    A partition that this broker leads counts only once its replica is leader: before, it would refuse clients.

    Args:
        api: context of the listener.
        topics: names of the topics. Topics that this broker does not know yet are waited for.
        timeout_ms: time-out, milliseconds.

    Returns:
        A future that tells whether all partitions have leaders.
    """
    return api.wait_until(partial(_have_leaders, api, topics), timeout_ms)


def _have_leaders(api: ApiContext, topics: Collection[str]) -> bool:
    living = api.living_brokers()
    for name in topics:
        topic = api.topic(name)
        if topic is None:
            return False
        states = api.metadata.partitions(topic.topic_id)
        if len(states) < topic.partitions:
            return False
        for partition, state in states:
            if state.leader not in living:
                return False
            if state.leader == api.broker.name and not _is_led_here(api, TopicPartition(name, partition.number)):
                return False
    return True


def _is_led_here(api: ApiContext, name: TopicPartition) -> bool:
    replica = api.replicas.partition(name)
    return replica is not None and replica.is_leader
