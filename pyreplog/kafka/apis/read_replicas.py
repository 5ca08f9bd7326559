"""Chooses a replica in the consumer's rack, from which it reads in place of the leader (KIP-392)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyreplog.kafka.apis.context import ApiContext
from pyreplog.partition.requests import ConsumerFetch, PartitionOffsets
from pyreplog.partition.topic_partition import TopicPartition


class PreferredReplica(NamedTuple):
    """The replica from which a consumer is to read.

    Attributes:
        node_id: node id of its broker.
        offsets: the offsets of the leader.
    """

    node_id: int
    offsets: PartitionOffsets


def preferred_replicas(
    api: ApiContext, rack: str, fetches: Mapping[TopicPartition, ConsumerFetch]
) -> dict[TopicPartition, PreferredReplica]:  # fmt: skip
    """Return the replicas in a consumer's rack from which it is to read, as Kafka's RackAwareReplicaSelector does.

    Args:
        api: context of the listener.
        rack: rack of the consumer (`client.rack`); "": it has none.
        fetches: its fetches, by partition.

    Returns:
        A replica for each partition that this broker leads from another rack, if a follower in the consumer's rack is
        in sync, has the offset, and can be reached by Kafka clients. Other partitions are missing: they are read here.
    """
    own = api.metadata.broker(api.broker.name)
    if not rack or own is None or own.rack == rack:
        return {}
    preferred = {}
    for name, fetch in fetches.items():
        replica = api.replicas.partition(name)
        followers = None if replica is None else replica.read_replicas(fetch)
        if followers is None:
            continue
        living = map(api.living_broker, followers.brokers)
        node_id = next((broker.node_id for broker in living if broker is not None and broker.rack == rack), None)
        if node_id is not None:
            preferred[name] = PreferredReplica(node_id, followers.offsets)
    return preferred
