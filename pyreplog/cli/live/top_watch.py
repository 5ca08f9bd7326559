"""Reads the state of all topics of a target, and of the cluster that stores them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

from pyreplog.autorecovery.overview import RecoveryWatch
from pyreplog.bookie.identity import BOOKIES
from pyreplog.cli.live.partitions_watch import PartitionsSnapshot, PartitionsWatch
from pyreplog.cli.live.top_view import (
    Frame,
    ReplicationRow,
    TopicRow,
    bookie_rows,
    by_backlog,
    ledger_rows,
    recovery_row,
    replication_rows,
    topic_row,
)
from pyreplog.cli.shared import serving, targets, tls
from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.errors import NoSuchTopicError, PeerError, ReplogError
from pyreplog.geo.geo_replication import decode_status
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.kafka.groups.group_status import GroupStatus, LedgerBounds, unread_offsets
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.stats import TopicStats

_BROKERS_TIMEOUT_S = 5.0
"""A broker of partitions that does not answer in this time is left out of a frame."""


class TopWatch(Protocol):
    def refresh(self) -> Frame:
        """Return the state now. Raises the errors of `Topic.stats` and `Cluster.status`."""
        ...


@contextmanager
def watching(arguments: argparse.Namespace) -> Iterator[TopWatch]:
    """Yield a watch on the target that the arguments name."""
    with targets.opened(arguments) as place:
        if isinstance(place, Client):
            yield ServerWatch(place)
        elif targets.is_directory(arguments):
            yield EmbeddedWatch(place, targets.wait_s(arguments))
        else:
            with OwnersWatch(place, arguments) as watch:
                yield watch


def _replications(
    statuses: Callable[[], Iterable[ReplicatorStatus]], now_us: int
) -> tuple[tuple[ReplicationRow, ...], tuple[str, ...]]:
    """Return the rows of geo-replication; and the error, if nothing could be learned of it: the rest is shown."""
    try:
        return replication_rows(statuses(), now_us), ()
    except ReplogError as error:
        return (), (f"geo-replication: {error}",)


def _place_of(stats: TopicStats) -> TopicPartition:
    """Return the partition that Kafka clients see in a topic on ledgers."""
    return TopicPartition(*(partition_of(stats.name) or (stats.name, 0)))


def _groups_of(stats: TopicStats, groups: Iterable[GroupStatus]) -> list[GroupStatus]:
    """Return the consumer groups of a topic on ledgers, each with its place in the topic alone."""
    name = _place_of(stats)
    chosen = [group.of_partition(name) for group in groups]
    return [group for group in chosen if any(each.lag is not None for each in group.partitions)]


class ServerWatch:
    """Watches topic servers, which open topics that no server has."""

    def __init__(self, client: Client) -> None:
        self._client, self._clock = client, SystemClock()

    def refresh(self) -> Frame:
        rows = []
        for name in self._client.topics():
            with suppress(NoSuchTopicError):  # it was deleted meanwhile
                rows.append(topic_row(self._client.open_unpartitioned(name, create=False, settings={}).stats()))
        now_us = self._clock.now_us()
        replications, notes = _replications(lambda: map(decode_status, self._client.geo_status()), now_us)
        return Frame(at_us=now_us, topics=by_backlog(rows), replications=replications, notes=notes)


class _ClusterWatch:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._clock = cluster, SystemClock()
        self._recovery = RecoveryWatch(cluster.runtime, self._clock)

    def refresh(self) -> Frame:
        status, looks = self._cluster.status(), list[TopicStats | TopicRow]()
        limbo = status.limbo
        for name in self._cluster.topics.names():
            with suppress(NoSuchTopicError):
                looks.append(self._look(name))
        now_us = self._clock.now_us()
        replications, notes = _replications(self._statuses, now_us)
        snapshot, known = self._partitions(now_us), self._cluster.metadata.list(BOOKIES)
        bounds = self._bounds([look for look in looks if isinstance(look, TopicStats)], snapshot)
        groups = [group.on_ledgers(bounds, now_us) for group in snapshot.groups]
        rows = [look if isinstance(look, TopicRow) else topic_row(look, _groups_of(look, groups)) for look in looks]
        has_brokers_only = bool(snapshot.brokers) and not known and not status.bookies
        return Frame(
            at_us=now_us,
            replications=replications,
            notes=(*notes, *snapshot.notes),
            topics=by_backlog([*rows, *snapshot.topics]),
            ledgers=ledger_rows(status),
            bookies=bookie_rows(status.bookies, known, now_us, status.absent),
            recovery=None if has_brokers_only else recovery_row(self._recovery.take_overview(limbo=lambda: limbo)),
            partitions=snapshot.partitions,
            brokers=snapshot.brokers,
            groups=tuple(groups),
        )

    def _look(self, name: str) -> TopicStats | TopicRow:
        """Return the statistics of a topic; or its row, if they are unknown."""
        raise NotImplementedError

    def _published_us(self, name: str, offset: int) -> int | None:
        """Return when a message was published; None: that is unknown."""
        return None

    def _bounds(
        self, topics: Iterable[TopicStats], snapshot: PartitionsSnapshot
    ) -> dict[TopicPartition, LedgerBounds]:  # fmt: skip
        """Return the topics on ledgers in which consumer groups have a place. Topics of brokers hide them."""
        of_brokers = {row.topic for row in snapshot.partitions}
        wanted = {each.name for group in snapshot.groups for each in group.partitions}
        stats = {
            name: topic for topic in topics if (name := _place_of(topic)) in wanted and name.topic not in of_brokers
        }
        kept = {name: range(topic.start.offset, topic.end.offset) for name, topic in stats.items()}
        unread = unread_offsets(snapshot.groups, kept)
        bounds = {}
        for name, topic in stats.items():
            times = {offset: self._published_us(topic.name, offset) for offset in unread.get(name, ())}
            known = {offset: time_us for offset, time_us in times.items() if time_us is not None}
            bounds[name] = LedgerBounds(topic.start.offset, topic.end.offset, topic.rate_published, known)
        return bounds

    def _partitions(self, now_us: int) -> PartitionsSnapshot:
        """Return what brokers tell; an embedded cluster has none."""
        return PartitionsSnapshot()

    def _statuses(self) -> list[ReplicatorStatus]:
        return self._cluster.geo.status(everywhere=True)


class EmbeddedWatch(_ClusterWatch):
    """Watches a cluster that no other process has open: its topics are opened here. wait_s: for killed owners."""

    def __init__(self, cluster: Cluster, wait_s: float) -> None:
        self._wait_s = wait_s
        super().__init__(cluster)

    def _look(self, name: str) -> TopicStats | TopicRow:
        return self._cluster.topics.open(name, create=False, wait=self._wait_s).stats()


class OwnersWatch(_ClusterWatch):
    """Watches a cluster that other processes use: the owners of its topics are asked.

    arguments: how the owners are reached.
    """

    def __init__(self, cluster: Cluster, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._stack = ExitStack()
        self._clients: dict[str, Client] = {}  # by address
        self._asked: dict[str, RemoteTopic] = {}  # the topics whose owners were asked last
        self._brokers = PartitionsWatch(cluster.metadata, lambda: self._stack.enter_context(self._connected()))
        super().__init__(cluster)

    def _partitions(self, now_us: int) -> PartitionsSnapshot:
        return self._brokers.refresh(now_us)

    def _connected(self) -> PartitionClient:
        secret, context = serving.secret(self._arguments.secret_file), tls.client_context(self._arguments)
        config = ProducerConfig(timeout_s=_BROKERS_TIMEOUT_S)
        return PartitionClient.connect(self._arguments.target, secret=secret, tls=context, config=config)

    def _look(self, name: str) -> TopicStats | TopicRow:
        owner = self._cluster.topics.owner(name)
        if owner is None:
            return TopicRow(name=name, states=("no owner",))
        if not owner.address:
            return TopicRow(name=name, states=(f"owned by {owner}",))
        try:
            topic = self._client(owner.address).open_unpartitioned(name, create=False, settings={})
            self._asked[name] = topic
            return topic.stats()
        except PeerError as error:  # topics of other servers are still shown
            return TopicRow(name=name, owner=owner.address, states=(str(error),))

    def _published_us(self, name: str, offset: int) -> int | None:
        with suppress(ReplogError):
            batch = self._asked[name].read_at(offset, bytes_max=1).result(_BROKERS_TIMEOUT_S)
            return None if batch is None else int(batch.publish_time[0])
        return None

    def _statuses(self) -> list[ReplicatorStatus]:
        secret, context = serving.secret(self._arguments.secret_file), tls.client_context(self._arguments)
        return self._cluster.geo.status(everywhere=True, secret=secret, tls=context)

    def _client(self, address: str) -> Client:
        if address not in self._clients:
            opened = targets.client(self._arguments, targets.SCHEME + address)
            self._clients[address] = self._stack.enter_context(opened)
        return self._clients[address]

    def __enter__(self) -> OwnersWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
