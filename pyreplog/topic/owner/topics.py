"""Topics: the topics that this process owns; opens, lists, creates and deletes them."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

from pyreplog.arguments import check_text
from pyreplog.clock import Clock, ClockWatch
from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.cursor_log import CursorLog
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
from pyreplog.metadata.layout import cluster_id
from pyreplog.metrics import Metric
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.partitioned_metadata import find_partitioned
from pyreplog.topic.model.topic_identity import TopicIdentity
from pyreplog.topic.owner.managed.chain_store import find_chain, find_chains
from pyreplog.topic.owner.managed.ledgers import delete_orphans
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from pyreplog.topic.owner.ownership import LEASE_MS, Claim, Ownership, TopicOwner, owner_key, owner_of
from pyreplog.topic.owner.partitioned_topic import GONE_S, PartitionedTopic, PartitionedTopics
from pyreplog.topic.owner.report import topic_metrics
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic_names import TOPICS, check_name, unquote_name

logger = logging.getLogger(__name__)

MAINTENANCE_S = 1.0
"""Seconds between maintenance runs of the topics that were used."""

CLOCK_S = 1.0
"""Seconds until a step of the wall clock is noticed."""

RUNS_PER_TURN = 60
"""Maintenance runs in which each topic that is not used is maintained once."""

RUNS_PER_ORPHAN_SEARCH = 3600
"""Maintenance runs between searches for orphans, each of which reads the metadata of all ledgers."""

CURSORS_MIN_S = 0.25
"""Least seconds for closing the cursor log, when the time is over."""

LOG_INTERVAL_S = 2.0
"""Seconds between log lines about topics that are not closed yet."""

WORKERS = 2


class Topics(Handle):
    """The topics of a process, created by its cluster.

    Any thread may use it. Calls wait for the metadata store, and opening a topic for its recovery. Idle topics have no
    thread, timer or descriptor of their own. address: where this process serves its topics; "": nowhere, see
    `serve_at`.
    """

    def __init__(self, cluster: LedgerCluster, clock: Clock, *, address: str = "") -> None:
        self._cluster, self._clock = cluster, clock
        self.runtime, self.metadata = cluster.runtime, cluster.metadata
        self.cursors = CursorLog(cluster, config=CursorLogConfig(ensemble=None))
        self.address = address
        self.ownership = Ownership(cluster.metadata, address=address)
        self.partitioned = PartitionedTopics(self, self.metadata, clock)
        self._lock = threading.Lock()  # guards the table; never held while anything waits
        self._open: dict[str, Topic] = {}
        self._opening: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # names in use
        self._workers = ThreadPool(WORKERS, "pyreplog-topics")
        self._is_scheduled = self._watches_clock = False
        self._close_by: float | None = None
        self._cluster_id = b""
        self._runs = 0
        self._clock_watch = ClockWatch(clock)
        self.on_opened: list[Callable[[Topic], object]] = []
        """Called with each topic that was opened, before it is returned; they must not block."""
        self.geo_status: Callable[[], list[dict[str, Any]]] = list
        """Returns the state of each replication to another cluster that this process runs, for clients."""
        self.geo_readiness: Callable[[], list[dict[str, Any]]] = list
        """Returns what a fail-over of each replicated subscription of this process would do, for clients."""
        self.geo_where: Callable[[str, str], list[dict[str, Any]]] = lambda topic, subscription: []
        """Returns where a replicated subscription is at each origin, for clients."""
        super().__init__("topics")
        for part in (self, self.cursors, self.ownership):
            make_part_of(part, cluster)

    def serve_at(self, address: str, *, lease_s: float = LEASE_MS / 1000) -> None:
        """Serve the topics of this process at an address from now on. lease_s: as for Ownership.

        Raises InvalidArgumentError if topics are open already.
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
        """Open a topic, see `Cluster.topic`."""
        check_name(name)
        self._check_open()
        with self._lock:
            lock = self._opening.setdefault(name, threading.Lock())
        with lock:
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
        """Open a topic, with or without partitions, and with its settings; create it with `settings` if it does not
        exist.

        Raises the errors of `Cluster.topic`.
        """
        try:
            return self.existing(name)
        except NoSuchTopicError:
            return self.open(name, settings=settings)

    def existing(self, name: str) -> Topic | PartitionedTopic:
        """Open a topic that exists, with or without partitions.

        Raises NoSuchTopicError, and the errors of `Cluster.topic`.
        """
        if self.partitioned.has(name):
            return self.partitioned.open(name, None, create=False, wait=0.0, settings={})
        return self.open(name, create=False)

    def config_of(self, name: str, settings: Mapping[str, Any]) -> TopicConfig:
        """Return the settings of a new topic.

        The default ensemble is at most the size of an embedded cluster; over `connect` it does not shrink because few
        bookies run. Raises ConfigError; NotEnoughBookiesError if the cluster has fewer bookies than the ensemble,
        running or not.
        """
        config = TopicConfig.of(dict(settings))
        embedded = self.runtime.embedded_bookies
        quorum = config.write_quorum or config.ack_quorum or 1
        if embedded is not None and "ensemble" not in settings and quorum <= embedded:
            config = dataclasses.replace(config, ensemble=min(config.ensemble, embedded))
        if config.ensemble > (bookies := self._cluster.bookie_count()):
            raise NotEnoughBookiesError(
                f"topic {name}: its ensemble is {config.ensemble} bookies, and the cluster has {bookies}: add bookies, "
                f"or give it ensemble={max(bookies, 1)}"
            )
        return config

    def _wait_gone(self, topic: Topic) -> None:
        """Wait for a topic that is being closed, here or by a fencing."""
        try:
            self.runtime.wait(topic.gone, GONE_S)
        except OutcomeUnknownError:
            raise TopicOwnedError(topic.name, f"this process has been closing it for {GONE_S} s") from None

    def get(self, name: str) -> Topic | None:
        """Return the topic, if this process owns it already."""
        check_text("name", name)
        with self._lock:
            return self._open.get(name)

    def _take(self, name: str, create: bool, wait: float, settings: Mapping[str, Any]) -> Topic:
        config = TopicConfig.of(dict(settings))
        with ExitStack() as undo:
            claim = self.claim(name, wait)
            undo.callback(claim.release)
            self.partitioned.check_regular(name)
            stored = find_chain(self.metadata, name) if create else None
            if create and (stored is None or stored.chain is None):
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
        for call in self.on_opened:
            call(topic)
        self._maintain_later()
        self._watch_clock_later()
        return topic

    def claim(self, name: str, wait: float = 0.0) -> Claim:
        """Claim a topic, see `Ownership.claim`."""
        return self.ownership.claim(name, wait=wait, on_lost=lambda: self._lost(name))

    def _lost(self, name: str) -> None:
        """Go on without the lease until another process takes the topic, which fences it."""
        logger.warning("topic %s: the lease is lost; another process may take it over", name)
        topic = self.get(name)
        if topic is not None:
            topic.touch()
        self._maintain_later()

    def adopt(self, topic: PartitionedTopic) -> None:
        """Close a topic together with these."""
        make_part_of(topic, self)

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was closed."""
        with self._lock:
            if self._open.get(topic.name) is topic:
                del self._open[topic.name]

    @property
    def cluster_id(self) -> bytes:
        """16 bytes that tell the cluster of these topics from others.

        Raises the errors of the metadata store, which is asked once.
        """
        if not self._cluster_id:
            self._cluster_id = cluster_id(self.metadata)
        return self._cluster_id

    # ---- all topics -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all topics, of any owner; for partitioned ones, those of their partitions."""
        self._check_open()
        return sorted(unquote_name(name) for name in self.metadata.list(TOPICS))

    def partitions_of(self, name: str) -> int | None:
        """Return the number of partitions of a topic; None: it has none, or does not exist."""
        return self.partitioned.find(name)

    def identity_of(self, name: str) -> TopicIdentity | None:
        """Return the identity of a topic, of any owner, without opening it; None: it does not exist.

        Args:
            name: name of the topic; that of a topic with partitions, or of one without.

        Raises:
            InvalidArgumentError: the name is invalid.
            ClosedError: the cluster was closed.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_name(name)
        partitioned = find_partitioned(self.metadata, name)
        if partitioned is not None:
            return TopicIdentity(partitioned.token, partitioned.partitions)
        stored = find_chain(self.metadata, name)
        if stored is None or stored.chain is None or stored.chain.deleted:
            return None
        return TopicIdentity(stored.chain.token, None)

    def stored_offsets(self, names: Sequence[str]) -> dict[str, range]:
        """Return the offsets of the messages that topics keep, of any owner, without opening them.

        Args:
            names: names of topics without partitions, or of partitions.

        Returns:
            The offsets by name, without topics that do not exist, or have an open ledger, whose end only its owner
            knows.

        Raises:
            InvalidArgumentError: a name is none of a topic.
            InvalidMetadataError: a topic cannot be decoded.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        chains = zip(names, find_chains(self.metadata, names), strict=True)
        return {
            name: range(chain.start.offset, chain.end.offset)
            for name, chain in chains
            if chain is not None and not chain.deleted and chain.open_ledger is None
        }

    def closed_offsets(self, names: Sequence[str]) -> dict[str, range | None]:
        """Return the offsets of the messages that topics keep which no process has open. None of them is opened.

        Args:
            names: names of topics without partitions, or of partitions.

        Returns:
            The offsets by name; None: they are not known before the topic is opened, since its last owner did not close
            its ledger. Topics that a process has open, and names of no topic, are left out.

        Raises:
            InvalidArgumentError: a name is none of a topic.
            InvalidMetadataError: a topic cannot be decoded.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        chains = find_chains(self.metadata, names)
        owners = self.metadata.get_many([owner_key(name) for name in names])
        return {
            name: range(chain.start.offset, chain.end.offset) if chain.open_ledger is None else None
            for name, chain, owner in zip(names, chains, owners, strict=True)
            if chain is not None and not chain.deleted and owner is None
        }

    def opened(self) -> list[Topic]:
        """Return the topics that this process owns."""
        with self._lock:
            return list(self._open.values())

    def owner(self, name: str) -> TopicOwner | None:
        """Return the owner of a topic."""
        self._check_open()
        return owner_of(self.metadata, check_name(name))

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions, for ever; `force` as in `Topic.delete`.

        Raises NoSuchTopicError; TopicOwnedError if another process serves it; UnsentMessagesError; errors of the
        metadata store.
        """
        if self.partitioned.has(name):
            self.partitioned.open(name, None, create=False, wait=0.0, settings={}).delete(force=force)
        else:
            self.open(name, create=False).delete(force=force)

    def metrics(self) -> list[Metric]:
        """Return the metrics of the topics that this process owns."""
        return topic_metrics([topic.measure() for topic in self.opened()])

    # ---- maintenance ---------------------------------------------------------------------------------------------

    def work(self, job: Callable[[], object]) -> None:
        """Run a job that may wait for ledgers, not in the threads on which ledgers depend."""
        self._workers.submit(job)

    def _maintain_later(self) -> None:
        with self._lock:
            if self._is_scheduled or not self._open:
                return
            self._is_scheduled = True
        self.runtime.wake_after(MAINTENANCE_S, lambda: self.work(self._maintain))

    def _watch_clock_later(self) -> None:
        with self._lock:
            if self._watches_clock or not self._open:
                return
            self._watches_clock = True
        self.runtime.wake_after(CLOCK_S, self._watch_clock)

    def _watch_clock(self) -> None:
        """Check the wall clock, apart from `_maintain`, which may wait for bookies."""
        step_us = self._clock_watch.step_us()
        if step_us:
            logger.warning("the clock was set %s by %.3f s", "forward" if step_us > 0 else "back", abs(step_us) / 1e6)
            for topic in self.opened():
                topic.clock_was_set()
        with self._lock:
            self._watches_clock = False
        self._watch_clock_later()

    def _maintain(self) -> None:
        """Maintain the topics that were used, or have a step that is due, and a part of the others in turn."""
        self._runs += 1
        turn = self._runs % RUNS_PER_TURN
        for topic in self.opened():
            if topic.is_used or topic.maintenance.is_due() or hash(topic.name) % RUNS_PER_TURN == turn:
                try:
                    topic.maintain()
                except ClosedError:
                    continue  # it was closed meanwhile
                except Exception as error:
                    logger.warning("topic %s: %s", topic.name, error)
        if self._runs % RUNS_PER_ORPHAN_SEARCH == RUNS_PER_TURN:
            self.work(self._drop_orphans)
        with self._lock:
            self._is_scheduled = False
        self._maintain_later()

    def _drop_orphans(self) -> None:
        """Delete the orphans of dead owners, of all topics."""
        try:
            deleted = delete_orphans(self._cluster, goes_on=lambda: self._error is None)
            if deleted:
                logger.warning("orphaned ledgers, which belong to no topic, were deleted: %s", deleted)
        except ReplogError as error:
            logger.warning("the search for orphaned ledgers was not completed: %s", error)

    # ---- the end --------------------------------------------------------------------------------------------

    @property
    def close_s(self) -> float:
        """Seconds that closing a topic may take: those that are left, when all are closed."""
        left = CLOSE_S if self._close_by is None else self._close_by - time.monotonic()
        return min(max(left, 0.0), threading.TIMEOUT_MAX)

    @property
    def is_closing(self) -> bool:
        """Whether all topics are being closed, and logged together."""
        return self._close_by is not None

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close all topics of this process at once: publish what was submitted, store acknowledgements.

        Twice has no effect.

        After `timeout` seconds for all of them (None: never) messages without an outcome are given up. Raises
        OutcomeUnknownError, which names their topics.
        """
        if self._close_by is None:
            self._close_by = math.inf if timeout is None else time.monotonic() + timeout
        super().close()

    def _do_close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.ownership.close)
            stack.callback(lambda: self.cursors.close(max(self.close_s, CURSORS_MIN_S)))
            stack.callback(lambda: self._workers.close(self.close_s))
            stack.callback(self._close_all)

    def _close_all(self) -> None:
        """Close each topic once nothing is left to wait for; when the time is over, close the others as they are."""
        topics, ended, given_up = self.opened(), SimpleQueue[Topic](), list[str]()
        for topic in topics:
            topic.begin_close().add_done_callback(partial(_put, ended, topic))
        left = {topic.name: topic for topic in topics}
        logged = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self.partitioned.close)
            while left and self.close_s:
                with suppress(Empty):
                    topic = ended.get(timeout=min(self.close_s, LOG_INTERVAL_S))
                    del left[topic.name]
                    self._close_one(topic, given_up)
                if left and time.monotonic() >= logged + LOG_INTERVAL_S:
                    logged = time.monotonic()
                    logger.warning("%d of %d topics are not closed yet: %s", len(left), len(topics), named(left))
            for topic in left.values():
                self._close_one(topic, given_up)
            if unstored := [topic.name for topic in topics if topic.unstored is not None]:
                logger.warning(
                    "the last acknowledgements of %d of %d topics were not stored, their messages come again: %s",
                    len(unstored), len(topics), named(unstored),
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
            logger.warning("topic %s was closed with an error: %s", topic.name, error)
        if topic.unstored is not None:
            logger.debug("topic %s: its last acknowledgements were not stored: %s", topic.name, topic.unstored)


def _put(ended: SimpleQueue[Topic], topic: Topic, _: object) -> None:
    ended.put(topic)


def named(names: Iterable[str]) -> str:
    """Return the first names of a list as text."""
    first = list(islice(names, 4))
    return ", ".join(first[:3]) + (", …" if len(first) > 3 else "")
