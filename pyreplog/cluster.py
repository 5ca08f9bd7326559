"""Cluster: ledgers and topics on bookies and a metadata store; the public name is `pyreplog.Cluster`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Unpack, overload

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.arguments import check_bool, check_seconds
from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block
from pyreplog.future import as_timeout
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.handles import make_part_of
from pyreplog.ledger import cluster as ledgers
from pyreplog.ledger.closing import reserve_s
from pyreplog.ledger.ledger_handle import CLOSE_S
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metrics import Metric
from pyreplog.topic.model.config import TopicSettings
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics

_RECOVERY_AFTER_S = 2.0
"""Seconds after which an embedded cluster audits its copies for the first time."""


class Cluster(ledgers.LedgerCluster):
    """A `LedgerCluster` that also has topics; made by `embedded` or `connect`.

    Any thread may use it. Close it, or use `with`.

    Example:
        ```python
        with Cluster.embedded("data/cluster") as cluster:
            orders = cluster.topic("orders")
            orders.publish(b"order 1")
        ```

    See docs/topics.md.
    """

    _topics: Topics | None = None
    _topics_lock: threading.Lock
    _close_begun: threading.Lock
    _auto_recovery: AutoRecovery | None = None
    _geo: GeoReplication | None = None

    def __init__(self, what: str, runtime: RuntimeBase, clock: Clock) -> None:
        self._topics_lock = threading.Lock()
        self._close_begun = threading.Lock()  # taken for good by the first `close`
        super().__init__(what, runtime, clock)
        if runtime.embedded_bookies is not None:  # no other process can recover the copies of an embedded cluster
            self._auto_recovery = AutoRecovery(self, clock)
            make_part_of(self._auto_recovery, self)
            self._auto_recovery.start(_RECOVERY_AFTER_S)

    @property
    def auto_recovery(self) -> AutoRecovery | None:
        """The auditor and worker of an embedded cluster; None: other processes re-replicate lost copies."""
        return self._auto_recovery

    @overload
    def topic(
        self, name: str, *, partitions: int, create: bool = True, wait: float = 0.0, **settings: Unpack[TopicSettings]
    ) -> PartitionedTopic: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        partitions: None = None,
        create: bool = True,
        wait: float = 0.0,
        **settings: Unpack[TopicSettings],
    ) -> Topic | PartitionedTopic: ...
    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = True,
        wait: float = 0.0,
        **settings: Unpack[TopicSettings],
    ) -> Topic | PartitionedTopic:
        """Open a topic, which this process then owns until the topic or the cluster is closed.

        Each call for a name returns the same object while it is open. A former owner that still runs is fenced.

        Args:
            name: name of the topic, up to 200 bytes, without control characters.
            partitions: number of partitions, 1 to 65536; None: those that the topic has. A new topic is created with
                this number; an existing topic with fewer partitions gets more.
            create: create the topic if it does not exist, with `settings`.
            wait: seconds to wait for another owner to close the topic.
            settings: fields of `TopicConfig` as keywords. They change the settings of an existing topic.

        Returns:
            The open `Topic`, or the `PartitionedTopic` if it has partitions. Both are a `TopicLike`.

        Raises:
            TopicOwnedError: another process owns the topic, or all of its partitions; the error names the owner.
            NoSuchTopicError: the topic does not exist, and `create` is False.
            TopicExistsError: the topic exists without partitions, and cannot get any.
            InvalidArgumentError: the name is invalid, or the topic has more partitions than `partitions`.
            ConfigError: a setting is unknown or out of range.
            NotEnoughBookiesError: the cluster has fewer bookies than the ensemble.
            UnreadableError: too few bookies answer for the recovery of the last ledger.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the cluster was closed.
        """
        self._check_open()
        check_may_block("topic")
        check_bool("create", create)
        check_seconds("wait", wait)
        topics = self.topics
        if partitions is not None or topics.partitioned.has(name):
            return topics.partitioned.open(name, partitions, create=create, wait=wait, settings=settings)
        return topics.open(name, create=create, wait=wait, settings=settings)

    @overload
    async def topic_async(
        self, name: str, *, partitions: int, create: bool = True, wait: float = 0.0, **settings: Unpack[TopicSettings]
    ) -> PartitionedTopic: ...
    @overload
    async def topic_async(
        self,
        name: str,
        *,
        partitions: None = None,
        create: bool = True,
        wait: float = 0.0,
        **settings: Unpack[TopicSettings],
    ) -> Topic | PartitionedTopic: ...
    async def topic_async(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = True,
        wait: float = 0.0,
        **settings: Unpack[TopicSettings],
    ) -> Topic | PartitionedTopic:
        """Open a topic from a coroutine; a thread does the work.

        Args:
            name: see `topic`.
            partitions: see `topic`.
            create: see `topic`.
            wait: see `topic`.
            settings: see `topic`.

        Returns:
            As `topic`.

        Raises:
            ReplogError: as `topic`.
        """
        opened: Topic | PartitionedTopic = await asyncio.to_thread(
            partial(self.topic, **settings), name, partitions=partitions, create=create, wait=wait
        )
        return opened

    @property
    def topics(self) -> Topics:
        """The topics of the cluster: lists, describes and deletes them.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        with self._topics_lock:
            if self._topics is None:
                self._topics = Topics(self, self._clock)
                self._replicate(self._topics, self._ensure_geo())
            return self._topics

    @property
    def geo(self) -> GeoReplication:
        """The replication of topics to other clusters: clusters, policies and state. See docs/geo.md.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        with self._topics_lock:
            return self._ensure_geo()

    def _ensure_geo(self) -> GeoReplication:
        """Return the object that `geo` gives, and make it if need be. The caller holds the lock."""
        if self._geo is None:
            self._geo = GeoReplication(self.metadata, self._clock)
            make_part_of(self._geo, self)
        return self._geo

    def _replicate(self, topics: Topics, geo: GeoReplication) -> None:
        """Start the replication of the topics of this process, also of those that it opens only for that."""
        is_alone, after_us = self._runtime.embedded_bookies is not None, int(_RECOVERY_AFTER_S * 1e6)
        clock, opens_from_us = self._clock, self._clock.monotonic_us() + after_us
        geo.start(topics, lambda: bool(topics.address) or (is_alone and clock.monotonic_us() >= opens_from_us))
        topics.geo_status, topics.geo_readiness = geo.status_rows, geo.readiness_rows
        topics.geo_where = geo.where_rows

    def metrics(self) -> list[Metric]:
        """Return the metrics of the ledgers, the topics of this process and their replication, for `pyreplog.metrics`.

        Raises:
            ClosedError: the cluster was closed.
        """
        metrics = super().metrics()
        if self._topics is not None:
            metrics = [*metrics, *self._topics.metrics()]
        return metrics if self._geo is None else [*metrics, *self._geo.metrics()]

    def _close_ledgers(self, deadline: float | None) -> None:
        super().close(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def _end_forgotten(self) -> None:
        """Close the replication and the topics, which store their state, and then release the resources."""
        with ExitStack() as cleanup:
            cleanup.callback(super()._end_forgotten)
            if self._topics is not None:
                cleanup.callback(self._topics.close)
            if self._geo is not None:
                cleanup.callback(self._geo.close)

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close the topics that this process owns, in parallel, and then the ledgers; release all resources.

        A second call does nothing.

        Args:
            timeout: seconds for the whole call; None: without a limit.

        Raises:
            OutcomeUnknownError: topics had messages without an outcome; the message names these topics.
            InvalidArgumentError: the call is in a callback of an AppendFuture.
        """
        if not sys.is_finalizing():  # at exit, the threads that close waits for no longer run
            check_may_wait()
        limit = as_timeout(timeout)
        if not self._close_begun.acquire(blocking=False):  # the first call closes the topics before the ledgers
            return
        deadline = None if limit is None else time.monotonic() + limit
        with ExitStack() as cleanup:
            cleanup.callback(self._close_ledgers, deadline)
            if self._auto_recovery is not None and not sys.is_finalizing():
                cleanup.callback(self._auto_recovery.close, None if limit is None else limit / 4)
            if self._topics is not None and not sys.is_finalizing():
                if deadline is not None:
                    self._runtime.end_calls_by(deadline)
                cleanup.callback(self._topics.close, None if limit is None else limit - reserve_s(limit))
            if self._geo is not None and not sys.is_finalizing():  # replicators read topics
                cleanup.callback(self._geo.close)
