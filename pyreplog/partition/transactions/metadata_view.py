"""MetadataView: what a transaction coordinator asks of the cluster, out of its metadata."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pyreplog.clock import Clock
from pyreplog.errors import TopicExistsError
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.topic_metadata import create_topic, find_topic
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_log import TRANSACTION_STATE


class PartitionLeader(NamedTuple):
    """Who leads a partition.

    Attributes:
        broker: the leader.
        epoch: number of its leader epoch.
    """

    broker: str
    epoch: int


class MetadataView:
    """The metadata of one broker, as a coordinator asks for them; see `ClusterView`. Any thread may use it.

    Args:
        store: metadata store.
        cache: what this broker knows of it.
        config: of the broker: how the topic of the coordinators is created.
        clock: the time.
    """

    def __init__(self, store: MetadataStore, cache: MetadataCache, config: BrokerConfig, clock: Clock) -> None:
        self._store, self._cache, self._config, self._clock = store, cache, config, clock

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: it is not known."""
        known = self._cache.topic(topic)
        return 0 if known is None or known.is_deleted else known.partitions

    def leader_of(self, partition: TopicPartition) -> PartitionLeader | None:
        """Return who leads a partition; None: nobody, or it is not known."""
        topic = self._cache.topic(partition.topic)
        stored = None if topic is None else self._cache.state(PartitionId(topic.topic_id, partition.partition))
        if stored is None or not stored[1].leader:
            return None
        return PartitionLeader(stored[1].leader, stored[1].epoch.number)

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether a partition exists, as the metadata store has it. Raises errors of the store."""
        topic = find_topic(self._store, partition.topic)
        return topic is not None and not topic.is_deleted and partition.partition < topic.partitions

    def create_transaction_state(self) -> None:
        """Create the topic of the coordinators, if there is none. Raises errors of the store."""
        living = sum(not broker.is_fenced for broker in self._cache.brokers().values())
        replicas = max(min(self._config.transaction_state_replication_factor, living), 1)
        with suppress(TopicExistsError):
            create_topic(
                self._store, TRANSACTION_STATE, partitions=self._config.transaction_state_partitions,
                replication_factor=replicas, min_isr=min(self._config.transaction_state_min_isr, replicas),
                now_us=self._clock.now_us(),
            )  # fmt: skip
