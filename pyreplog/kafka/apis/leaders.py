"""Which partitions exist, and who leads them, for clients that asked another broker (KIP-951)."""

from __future__ import annotations

from pyreplog.kafka.apis.context import ApiContext, LivingBroker
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.topic_partition import TopicPartition


def partition_state(api: ApiContext, name: TopicPartition) -> PartitionState | None:
    """Return the state of a partition, as this broker knows it; None: it knows none."""
    topic = api.topic(name.topic)
    stored = None if topic is None else api.metadata.state(PartitionId(topic.topic_id, name.partition))
    return None if stored is None else stored[1]


def exists(api: ApiContext, name: TopicPartition) -> bool:
    """Return whether a partition exists, as far as this broker knows."""
    topic = api.topic(name.topic)
    return topic is not None and 0 <= name.partition < topic.partitions


def code_without_replica(api: ApiContext, name: TopicPartition) -> ErrorCode:
    """Return the code for a partition of which this broker has no replica: the client asks its leader, if it exists."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if exists(api, name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def current_leader(api: ApiContext, name: TopicPartition) -> tuple[LivingBroker, int] | None:
    """Return the leader of a partition and the number of its epoch; None: no broker that can be reached leads."""
    state = partition_state(api, name)
    broker = None if state is None or not state.leader else api.living_broker(state.leader)
    return None if broker is None or state is None else (broker, state.epoch.number)
