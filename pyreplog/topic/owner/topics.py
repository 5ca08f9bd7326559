"""Topics: those that this process owns; opens, lists, makes and deletes them."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

from pyreplog.arguments import check_text
from pyreplog.clock import Clock, ClockWatch
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSuchTopicError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    ReplogError,
    TopicOwnedError,
)
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import CLOSE_S
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.metrics import Metric
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.names import TOPICS, check_name, unquote_name
from pyreplog.topic.owner.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.topic.owner.cursors.log import CursorLog
from pyreplog.topic.owner.managed.chainstore import find_chain
from pyreplog.topic.owner.managed.ledgers import delete_orphans
from pyreplog.topic.owner.managed.managedledger import ManagedLedger
from pyreplog.topic.owner.ownership import LEASE_S, Claim, Ownership, TopicOwner, owner_of
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic, PartitionedTopics
from pyreplog.topic.owner.report import topic_metrics
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between looks at the topics that were used."""

CLOCK_S = 1.0
"""So late it is noticed, at most, that the clock was set."""

LOOK_AT_ALL = 60
"""So many looks later, all are looked at."""

LOOK_FOR_STRAYS = 3600
"""So many looks lie between searches for ledgers that nobody needs: each reads the metadata of all ledgers."""

GONE_S = 60.0
"""To wait for a topic that is being closed, until it can be opened again."""

LAST_S = 0.25
"""To find out that nothing is left to be stored, when the time is over."""

TELL_S = 2.0
"""Between log lines of what is not closed yet."""

WORKERS = 2


class Topics(Handle):
    """Made by its cluster. Any thread may call anything; calls wait for the metadata store, and opening a topic for its
    recovery. Idle topics have no thread, timer or descriptor of their own.

    address: at which this process answers for its topics, "" when it does not: see serve_at.
    """

    def __init__(self, cluster: LedgerCluster, clock: Clock, *, address: str = "") -> None:
        self._cluster, self._clock = cluster, clock
        self.runtime, self.metadata = cluster.runtime, cluster.metadata
        self.cursors = CursorLog(cluster, config=CursorLogConfig(ensemble=None))
        self.address = address
        self.ownership = Ownership(cluster.metadata, address=address)
        self.partitioned = PartitionedTopics(self, self.metadata, clock)
        self._lock = threading.Lock()  # of the table; never while anything waits
        self._open: dict[str, Topic] = {}
        self._opening: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # names in use
        self._workers = ThreadPool(WORKERS, "pyreplog-topics")
        self._looking = self._watching = False
        self._close_by: float | None = None
        self._looks = 0
        self._clock_watch = ClockWatch(clock)
        super().__init__("topics")
        for part in (self, self.cursors, self.ownership):
            make_part_of(part, cluster)

    def serve_at(self, address: str, *, lease_s: float = LEASE_S) -> None:
        """This process answers for its topics there, from now on. lease_s: as of Ownership.

        Errors: InvalidArgumentError, it has some already.
        """
        self._check_open()
        with self._lock:
            if self._open:
                raise InvalidArgumentError(f"topics were opened before {address} was known: {sorted(self._open)[:3]}")
            former, self.ownership = self.ownership, Ownership(self.metadata, address=address, lease_s=lease_s)
            make_part_of(self.ownership, self)
            self.address = address
        former.close()

    # ---- opening --------------------------------------------------------------------------------------------

    def open(
        self, name: str, *, create: bool = True, wait: float = 0.0, settings: Mapping[str, Any] | None = None
    ) -> Topic:
        """See `LedgerCluster.topic`."""
        check_name(name)
        self._check_open()
        with self._lock:
            turn = self._opening.setdefault(name, threading.Lock())
        with turn:
            topic = self.get(name)
            if topic is not None and topic.is_closing:
                self._wait_gone(topic)
                topic = None
            if topic is None:
                topic = self._take(name, create, wait, settings or {})
        if settings:
            if settings.get("ensemble", topic.config.ensemble) != topic.config.ensemble:
                self.config_of(name, settings)
            topic.configure(**settings)
        return topic

    def open_any(self, name: str, settings: Mapping[str, Any]) -> Topic | PartitionedTopic:
        """The topic of that name, with partitions or without, and with its settings; made with `settings`, and without
        partitions, if there is none. Errors: as `LedgerCluster.topic`."""
        try:
            return self.existing(name)
        except NoSuchTopicError:
            return self.open(name, settings=settings)

    def existing(self, name: str) -> Topic | PartitionedTopic:
        """The topic of that name, with partitions or without. Errors: as `LedgerCluster.topic`; NoSuchTopicError."""
        if self.partitioned.has(name):
            return self.partitioned.open(name, None, create=False, wait=0.0, settings={})
        return self.open(name, create=False)

    def config_of(self, name: str, settings: Mapping[str, Any]) -> TopicConfig:
        """Of a topic that is made with these settings. The default ensemble is no larger than an embedded cluster; over
        `connect` it does not shrink because few bookies are there.

        Errors: ConfigError; NotEnoughBookiesError, the cluster has fewer bookies than the ensemble, running or not.
        """
        config = TopicConfig.of(dict(settings))
        here = self.runtime.embedded_bookies
        if here is not None and "ensemble" not in settings and (config.write_quorum or config.ack_quorum or 1) <= here:
            config = dataclasses.replace(config, ensemble=min(config.ensemble, here))
        if config.ensemble > (has := self._cluster.bookie_count()):
            raise NotEnoughBookiesError(
                f"topic {name}: its ensemble is {config.ensemble} bookies, and the cluster has {has}: add bookies, or "
                f"give it ensemble={max(has, 1)}"
            )
        return config

    def _wait_gone(self, topic: Topic) -> None:
        """It is being closed, here or by whom it was taken over."""
        try:
            self.runtime.wait(topic.gone, GONE_S)
        except OutcomeUnknownError:
            raise TopicOwnedError(topic.name, f"this process is about to close it, for {GONE_S} s so far") from None

    def get(self, name: str) -> Topic | None:
        """The topic, if this process owns it already."""
        check_text("name", name)
        with self._lock:
            return self._open.get(name)

    def _take(self, name: str, create: bool, wait: float, settings: Mapping[str, Any]) -> Topic:
        config = TopicConfig.of(dict(settings))
        with ExitStack() as undo:
            claim = self.claim(name, wait)
            undo.callback(claim.release)
            self.partitioned.check_regular(name)
            found = find_chain(self.metadata, name) if create else None
            if create and (found is None or found.chain is None):
                config = self.config_of(name, settings)
            managed = ManagedLedger.open(
                self._cluster,
                name,
                config=config,
                create=create,
                owner=f"process {os.getpid()} of {socket.gethostname()}",
                clock=self._clock,
            )
            undo.callback(managed.close)
            topic = Topic(self, managed, claim, self._clock)
            make_part_of(topic, self)
            undo.callback(topic.close)
            topic.recover()
            with self._lock:
                self._check_open()
                self._open[name] = topic
            undo.pop_all()
        self._look_later()
        self._watch_clock_later()
        return topic

    def claim(self, name: str, wait: float = 0.0) -> Claim:
        """See `Ownership.claim`."""
        return self.ownership.claim(name, wait=wait, on_lost=lambda: self._lost(name))

    def _lost(self, name: str) -> None:
        """Others may take it now; until one does, all goes on: who does fences it."""
        logger.warning("topic %s: the lease is lost; another process may take it over", name)
        topic = self.get(name)
        if topic is not None:
            topic.touch()
        self._look_later()

    def adopt(self, topic: PartitionedTopic) -> None:
        """It is closed with these."""
        make_part_of(topic, self)

    def forget(self, topic: Topic) -> None:
        """It was closed."""
        with self._lock:
            if self._open.get(topic.name) is topic:
                del self._open[topic.name]

    # ---- all topics -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all topics there are, whoever owns them; of partitioned ones, of their partitions."""
        self._check_open()
        return sorted(unquote_name(name) for name in self.metadata.list(TOPICS))

    def opened(self) -> list[Topic]:
        """Those that this process owns."""
        with self._lock:
            return list(self._open.values())

    def owner(self, name: str) -> TopicOwner | None:
        """Who serves a topic now."""
        self._check_open()
        return owner_of(self.metadata, check_name(name))

    def delete(self, name: str) -> None:
        """Delete a topic with its messages and subscriptions, for ever.

        Errors: NoSuchTopicError; TopicOwnedError, another process serves it; those of the metadata store.
        """
        if self.partitioned.has(name):
            self.partitioned.open(name, None, create=False, wait=0.0, settings={}).delete()
        else:
            self.open(name, create=False).delete()

    def metrics(self) -> list[Metric]:
        """Of the topics that this process owns."""
        return topic_metrics([topic.measure() for topic in self.opened()])

    # ---- upkeep ---------------------------------------------------------------------------------------------

    def work(self, job: Callable[[], object]) -> None:
        """Have something done that may wait for ledgers: not by the threads that do what ledgers wait for."""
        self._workers.submit(job)

    def _look_later(self) -> None:
        with self._lock:
            if self._looking or not self._open:
                return
            self._looking = True
        self.runtime.wake_after(LOOK_S, lambda: self.work(self._look))

    def _watch_clock_later(self) -> None:
        with self._lock:
            if self._watching or not self._open:
                return
            self._watching = True
        self.runtime.wake_after(CLOCK_S, self._watch_clock)

    def _watch_clock(self) -> None:
        """Apart from `_look`, which may wait for bookies that are away."""
        step_us = self._clock_watch.step_us()
        if step_us:
            logger.warning("the clock was set %s by %.3f s", "forward" if step_us > 0 else "back", abs(step_us) / 1e6)
            for topic in self.opened():
                topic.clock_was_set()
        with self._lock:
            self._watching = False
        self._watch_clock_later()

    def _look(self) -> None:
        """At the topics that were used since, or whose time has come, and at times at all."""
        self._looks += 1
        for topic in self.opened():
            if topic.used or topic.upkeep.is_due() or self._looks % LOOK_AT_ALL == 0:
                try:
                    topic.look()
                except ClosedError:
                    continue  # meanwhile, by whom it belongs to
                except Exception as error:
                    logger.warning("topic %s: %s", topic.name, error)
        if self._looks % LOOK_FOR_STRAYS == LOOK_AT_ALL:
            self.work(self._drop_orphans)
        with self._lock:
            self._looking = False
        self._look_later()

    def _drop_orphans(self) -> None:
        """Of owners that died, of any topic."""
        try:
            deleted = delete_orphans(self._cluster, goes_on=lambda: self._error is None)
            if deleted:
                logger.warning("ledgers that were made for topics, and that no topic has, were deleted: %s", deleted)
        except ReplogError as error:
            logger.warning("ledgers that no topic has were not all looked for: %s", error)

    # ---- the end --------------------------------------------------------------------------------------------

    @property
    def close_s(self) -> float:
        """Seconds that a topic may take to be closed: those that are left, when all are closed."""
        left = CLOSE_S if self._close_by is None else self._close_by - time.monotonic()
        return min(max(left, 0.0), threading.TIMEOUT_MAX)

    @property
    def is_closing(self) -> bool:
        """All are closed, and told of together."""
        return self._close_by is not None

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close all that this process owns, at once: publish what was submitted, store what was acknowledged.

        After `timeout` seconds for all of them (None: never) what has no outcome is given up. Closing twice is fine.
        Errors: OutcomeUnknownError names the topics of which messages have none.
        """
        if self._close_by is None:
            self._close_by = math.inf if timeout is None else time.monotonic() + timeout
        super().close()

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self.ownership.close)
            rest.callback(lambda: self.cursors.close(max(self.close_s, LAST_S)))
            rest.callback(lambda: self._workers.close(self.close_s))
            rest.callback(self._close_all)

    def _close_all(self) -> None:
        """As each has nothing left to wait for; when the time is over, the others as they are."""
        topics, ended, given_up = self.opened(), SimpleQueue[Topic](), list[str]()
        for topic in topics:
            topic.begin_close().add_done_callback(partial(_put, ended, topic))
        left = {topic.name: topic for topic in topics}
        told = time.monotonic()
        with ExitStack() as rest:
            rest.callback(self.partitioned.close)
            while left and self.close_s:
                with suppress(Empty):
                    topic = ended.get(timeout=min(self.close_s, TELL_S))
                    del left[topic.name]
                    self._close_one(topic, given_up)
                if left and time.monotonic() >= told + TELL_S:
                    told = time.monotonic()
                    logger.warning("%d of %d topics are not closed yet: %s", len(left), len(topics), named(left))
            for topic in left.values():
                self._close_one(topic, given_up)
            if unstored := [topic.name for topic in topics if topic.unstored is not None]:
                logger.warning(
                    "what was acknowledged last comes again, of %d of %d topics: %s", len(unstored), len(topics),
                    named(unstored),
                )  # fmt: skip
            if given_up:
                raise OutcomeUnknownError(
                    f"{len(given_up)} of {len(topics)} topics were closed with messages that have no outcome: "
                    f"{named(given_up)}"
                )

    def _close_one(self, topic: Topic, given_up: list[str]) -> None:
        try:
            topic.close()
        except OutcomeUnknownError as error:
            given_up.append(topic.name)
            logger.debug("topic %s: %s", topic.name, error)
        except ReplogError as error:
            logger.warning("topic %s: it was closed: %s", topic.name, error)
        if topic.unstored is not None:
            logger.debug("topic %s: what was acknowledged last: %s", topic.name, topic.unstored)


def _put(ended: SimpleQueue[Topic], topic: Topic, _: object) -> None:
    ended.put(topic)


def named(names: Iterable[str]) -> str:
    """The first of them."""
    first = list(islice(names, 4))
    return ", ".join(first[:3]) + (", …" if len(first) > 3 else "")
