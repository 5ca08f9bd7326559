"""Reads partitions, brokers and consumer groups at intervals, for `pyreplog top`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyreplog.cli.live.top_view import TopicRow, partition_topic_rows
from pyreplog.clock import SystemClock
from pyreplog.errors import ReplogError
from pyreplog.kafka.groups.group_status import GroupStatus
from pyreplog.kafka.groups.groups_overview import GroupsWatch
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.metadata.broker_registration import BROKERS
from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus, by_attention
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.model.stats import RateMeter
from pyreplog.topic.model.trend import WINDOW_S


class PartitionsSnapshot(NamedTuple):
    """Partitions, brokers and groups at one time.

    Attributes:
        topics: rows of topics of partitions, with their consumer groups.
        partitions: those that need attention first.
        brokers: by name.
        groups: by name.
        notes: what nothing was learned of, and why.
    """

    topics: tuple[TopicRow, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = ()


class PartitionsWatch:
    """Watches the brokers of a cluster, once it has any.

    store: of the cluster. connect: returns a client, which the caller closes; called once, when there is a broker.
    """

    def __init__(self, store: MetadataStore, connect: Callable[[], PartitionClient]) -> None:
        self._store, self._connect, self._clock = store, connect, SystemClock()
        self._meter = RateMeter()
        self._groups: GroupsWatch | None = None

    def refresh(self, now_us: int) -> PartitionsSnapshot:
        """Return partitions, brokers and groups now. An error of the brokers is a note: the rest is shown."""
        if self._groups is None and not self._store.list(BROKERS):
            return PartitionsSnapshot()
        try:
            if self._groups is None:
                self._groups = GroupsWatch(self._connect(), WINDOW_S)
            groups = self._groups.sample(now_us)
        except ReplogError as error:
            return PartitionsSnapshot(notes=(f"partitions: {error}",))
        partitions = groups.overview.partitions
        ends = {f"{row.topic} {row.partition}": row.end for row in partitions if row.end is not None}
        rates = self._meter.measure(self._clock.monotonic_us(), ends)
        published = {TopicPartition(each.topic, each.partition): 0.0 for each in partitions}
        for each in published:
            published[each] = rates.get(f"{each.topic} {each.partition}", 0.0)
        return PartitionsSnapshot(
            tuple(partition_topic_rows(partitions, groups.groups, published)), tuple(by_attention(partitions)),
            groups.overview.brokers, groups.groups, groups.notes,
        )  # fmt: skip
