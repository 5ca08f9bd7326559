"""Cluster with topics: what user code gets as `pyreplog.Cluster`."""

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
from pyreplog.future import as_timeout
from pyreplog.handles import make_part_of
from pyreplog.ledger import cluster as ledgers
from pyreplog.ledger.closing import reserve_s
from pyreplog.ledger.ledger_handle import CLOSE_S
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metrics import Metric
from pyreplog.topic.model.arguments import check_may_block
from pyreplog.topic.model.config import TopicSettings
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics

_RECOVERY_AFTER_S = 2.0
"""Seconds after which an embedded cluster looks for the first time whether copies were lost."""


class Cluster(ledgers.LedgerCluster):
    """Bookies and metadata, here or elsewhere: makes ledgers and topics. `Cluster.embedded(...)` or
    `Cluster.connect(...)` make one; any thread may call anything."""

    _topics: Topics | None = None
    _topics_lock: threading.Lock
    _auto_recovery: AutoRecovery | None = None

    def __init__(self, what: str, runtime: RuntimeBase, clock: Clock) -> None:
        self._topics_lock = threading.Lock()
        super().__init__(what, runtime, clock)
        if runtime.embedded_bookies is not None:  # no other process can do it
            self._auto_recovery = AutoRecovery(self, clock)
            make_part_of(self._auto_recovery, self)
            self._auto_recovery.start(_RECOVERY_AFTER_S)

    @property
    def auto_recovery(self) -> AutoRecovery | None:
        """The auditor and worker of an embedded cluster; None: other processes make lost copies again."""
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
        """The topic of that name, owned by this process until it is closed; the same object each time. A
        PartitionedTopic, if it has partitions. Both are a `TopicLike`.

        name: any text of up to 200 bytes, without control characters. partitions: make it with so many, 1 to 65536, if
        there is none, and let it grow if it has fewer. create: make it if there is none, with `settings`, fields of
        TopicConfig; of one that is there they are changed to those given. wait: seconds to wait for another owner to
        go. Whoever owned it before is fenced, should it still run.
        Errors: TopicOwnedError names the owner; NoSuchTopicError; TopicExistsError, one without partitions never gets
        any; InvalidArgumentError, nor do they become fewer; ConfigError; those of `open_ledger` and of the metadata
        store. Of a partitioned topic, TopicOwnedError only when others own all partitions.
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
        """As topic, for coroutines: a thread does it."""
        opened: Topic | PartitionedTopic = await asyncio.to_thread(
            partial(self.topic, **settings), name, partitions=partitions, create=create, wait=wait
        )
        return opened

    @property
    def topics(self) -> Topics:
        """The topics that this process owns; lists, makes and deletes them."""
        self._check_open()
        with self._topics_lock:
            if self._topics is None:
                self._topics = Topics(self, self._clock)
            return self._topics

    def metrics(self) -> list[Metric]:
        """As of ledgers, and of the topics that this process owns."""
        found = super().metrics()
        return found if self._topics is None else [*found, *self._topics.metrics()]

    def _close_ledgers(self, deadline: float | None) -> None:
        super().close(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def _end_forgotten(self) -> None:
        """As of ledgers; what topics have is stored before."""
        try:
            if self._topics is not None:
                self._topics.close()
        finally:
            super()._end_forgotten()

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """As of ledgers; the topics before them, all at once, as their own `close` does. Errors: OutcomeUnknownError
        names the topics that had messages without an outcome."""
        if not sys.is_finalizing():  # else no thread goes on that this could wait for
            check_may_wait()
        limit = as_timeout(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        with ExitStack() as rest:
            rest.callback(self._close_ledgers, deadline)
            if self._auto_recovery is not None and not sys.is_finalizing():
                rest.callback(self._auto_recovery.close)
            if self._topics is not None and not sys.is_finalizing():
                if deadline is not None:
                    self._runtime.end_calls_by(deadline)
                rest.callback(self._topics.close, None if limit is None else limit - reserve_s(limit))
