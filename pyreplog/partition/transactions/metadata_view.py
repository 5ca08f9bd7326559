"""MetadataView: the cluster metadata that a transaction coordinator reads."""

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
    """The leader of a partition.

    Attributes:
        broker: the leader.
        epoch: number of its leader epoch.
    """

    broker: str
    epoch: int


class MetadataView:
    """A broker's view of the metadata, for its coordinator; see `ClusterView`. Any thread may use it.

    Args:
        store: metadata store.
        cache: the broker's cache of it.
        config: settings of the broker, for the creation of the coordinators' topic.
        clock: source of time.
    """

    def __init__(self, store: MetadataStore, cache: MetadataCache, config: BrokerConfig, clock: Clock) -> None:
        self._store, self._cache, self._config, self._clock = store, cache, config, clock

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0: unknown."""
        known = self._cache.topic(topic)
        return 0 if known is None or known.is_deleted else known.partitions

    def leader_of(self, partition: TopicPartition) -> PartitionLeader | None:
        """Return the leader of a partition; None: it has no leader, or is unknown."""
        topic = self._cache.topic(partition.topic)
        stored = None if topic is None else self._cache.state(PartitionId(topic.topic_id, partition.partition))
        if stored is None or not stored[1].leader:
            return None
        return PartitionLeader(stored[1].leader, stored[1].epoch.number)

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether a partition exists in the metadata store. Raises errors of the store."""
        topic = find_topic(self._store, partition.topic)
        return topic is not None and not topic.is_deleted and partition.partition < topic.partitions

    def create_transaction_state(self) -> None:
        """Create the topic of the coordinators, if it does not exist. Raises errors of the store."""
        brokers = self._cache.brokers()
        living = sum(not broker.is_fenced for broker in brokers.values())
        # dead ones count, because the topic keeps this number of replicas
        replicas = max(min(self._config.transaction_state_replication_factor, len(brokers)), 1)
        min_isr = max(min(self._config.transaction_state_min_isr, replicas, living), 1)
        with suppress(TopicExistsError):
            create_topic(
                self._store, TRANSACTION_STATE, partitions=self._config.transaction_state_partitions,
                replication_factor=replicas, min_isr=min_isr,
                now_us=self._clock.now_us(),
            )  # fmt: skip
