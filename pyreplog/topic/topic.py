"""Topic: what user code publishes to and subscribes to, in the process that owns it."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from pyreplog._native.messages import MessageBatch
from pyreplog.clock import Clock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    KeyExistsError,
    NoSuchSubscriptionError,
    ReplogError,
    SubscriptionBusyError,
    TopicFencedError,
)
from pyreplog.handles import Handle
from pyreplog.ledger.driver import check_may_wait
from pyreplog.topic.backlog import is_system
from pyreplog.topic.config import SubscriptionConfig, TopicConfig
from pyreplog.topic.consumer import QUEUE, Consumer
from pyreplog.topic.cursor import Cursor
from pyreplog.topic.deadletters import publish_dead
from pyreplog.topic.dedupcursor import DedupCursor
from pyreplog.topic.gate import Gate
from pyreplog.topic.managedledger import ManagedLedger
from pyreplog.topic.names import check_name
from pyreplog.topic.ownership import Claim
from pyreplog.topic.place import Total
from pyreplog.topic.positions import Start, position
from pyreplog.topic.producer import Producer
from pyreplog.topic.publisher import Publisher
from pyreplog.topic.report import topic_internals, topic_report
from pyreplog.topic.stats import InternalStats, RateMeter, TopicStats
from pyreplog.topic.subscription import Subscription
from pyreplog.topic.subscriptionmetadata import (
    SubscriptionMetadata,
    create_subscription,
    delete_subscription,
    list_subscriptions,
)
from pyreplog.topic.upkeep import Upkeep

if TYPE_CHECKING:
    from pyreplog.topic.topics import Topics

logger = logging.getLogger(__name__)

CLOSE_S = 30.0


class Topic(Handle):
    """A topic that this process owns; made by `Cluster.topic`: the same object for the same name, so who closes it
    closes it for all. Any thread may call anything; asyncio code awaits what `submit` and `submit_batch` give.

    publish, submit, publish_batch, submit_batch, room: see `Publisher`, whose methods they are.
    """

    def __init__(self, topics: Topics, managed: ManagedLedger, claim: Claim, clock: Clock) -> None:
        self.name, self.managed, self.topics = managed.name, managed, topics
        self.claim, self.clock = claim, clock
        self.used = True
        """Whether anything happened to it since it was last looked at."""
        self.gate = Gate(self.name, managed)
        self.dedup = DedupCursor() if managed.config.deduplicate else None
        self.upkeep = Upkeep(self)
        self.rates = RateMeter()
        self._around = topics.surroundings
        self._lock = threading.Lock()  # of the table of subscriptions; never while anything waits
        self._changing = threading.Lock()  # while one is made or deleted
        self._subscriptions: dict[str, Subscription] = {}
        super().__init__(f"topic {self.name}")

    def recover(self) -> None:
        """Open what there is of it: producers that are known, durable subscriptions. For who made it."""
        for name in list_subscriptions(self.topics.metadata, self.name):
            if not is_system(name):
                self._recover(name)
        if self.dedup is not None:
            self.dedup.recover(self)
        self._publisher = publisher = Publisher(
            self.name, self.gate, self._around, self.clock, self.managed.config,
            entry_bytes_max=self._around.entry_bytes_max, end=self.managed.end.offset,
            producers=None if self.dedup is None else self.dedup.producers,
        )  # fmt: skip
        self.publish, self.submit, self.room = publisher.publish, publisher.submit, publisher.room
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        self.managed.on_grow.append(self._grew)
        self.managed.on_fenced.append(self._fenced)

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        return self.managed.config

    @property
    def publisher(self) -> Publisher:
        return self._publisher

    @property
    def start(self) -> int:
        """Offset of the first message that is kept."""
        return self.managed.start.offset

    @property
    def end(self) -> int:
        """Offset behind the last confirmed message."""
        return self.managed.end.offset

    def __len__(self) -> int:
        """How many messages are kept."""
        return self.end - self.start

    def stats(self) -> TopicStats:
        """Backlogs, rates, consumers; may read an entry of each subscription that lags, to tell its age."""
        self._check_open()
        return topic_report(self)

    def internal_stats(self) -> InternalStats:
        """Ledgers and cursors, to find out why something stands still."""
        self._check_open()
        return topic_internals(self)

    # ---- publishing -----------------------------------------------------------------------------------------

    def producer(self, name: str) -> Producer:
        """A named producer: its messages have sequence numbers; where the topic deduplicates, none is stored twice."""
        self._check_open()
        return Producer(self._publisher, name)

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Messages from a place up to an offset (default: those confirmed now), as columns; for no subscription.

        Errors: TrimmedError, OutOfRangeError; UnreadableError; ClosedError, ForkedError.
        """
        self._check_open()
        first = self._around.wait(position(self.managed, start)).offset
        return self._batches(first, self.end if end is None else min(end, self.end))

    def _batches(self, at: int, end: int) -> Iterator[MessageBatch]:
        while at < end:
            self._check_open()
            batch = self._around.wait(self.managed.read(at, end=end))
            offsets = batch.offset
            yield batch.slice(*np.searchsorted(offsets, (at, end)).tolist())
            at = batch.end

    # ---- subscribing ----------------------------------------------------------------------------------------

    def subscribe(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        durable: bool = True,
        name: str | None = None,
        queue: int = QUEUE,
        priority: int = 0,
        **settings: Any,
    ) -> Consumer:
        """A consumer of a subscription, which is made if there is none.

        start: where a new one begins. durable: it is kept, and with it the messages it has not acknowledged, until it
        is deleted; else it ends with its last consumer. name: of the consumer, any. queue: messages that may wait in
        it. priority: of several consumers, those with the lowest number are served first. settings: fields of
        SubscriptionConfig; of one that has consumers they must be the same.
        Errors: SubscriptionBusyError; ConfigError, InvalidArgumentError; TrimmedError, OutOfRangeError: the start;
        TopicFencedError; those of the metadata store.
        """
        self._check_open()
        check_may_wait()
        wanted = SubscriptionConfig.of(settings) if settings else None
        consumer = Consumer(self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", queue=queue)
        try:
            there = self.make_subscription(subscription, start, durable, wanted, {})
            number = there.attach(consumer, wanted, priority=priority)
        except BaseException:
            consumer.close()
            raise
        self.used = True
        consumer.attached(there, number)
        return consumer

    def create_subscription(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Make a durable subscription, unless it is there: it keeps messages from now on. As `subscribe`."""
        self._check_open()
        self.make_subscription(subscription, start, True, SubscriptionConfig.of(settings), properties or {})

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its acknowledgements; nothing is kept for it any more. force: though it has
        consumers, which fail then.

        Errors: NoSuchSubscriptionError; SubscriptionBusyError, it has consumers; those of the metadata store.
        """
        self._check_open()
        with self._changing:
            there = self.subscription(subscription)
            if there.consumers and not force:
                raise SubscriptionBusyError(self.name, f"subscription {subscription} has {there.consumers} consumers")
            if there.cursor.durable:
                delete_subscription(self.topics.metadata, self.name, subscription)
            with self._lock:
                self._subscriptions.pop(subscription, None)
            there.end(NoSuchSubscriptionError(self.name, f"subscription {subscription} was deleted"), deleted=True)

    def subscriptions(self) -> list[str]:
        """Names of its subscriptions."""
        self._check_open()
        with self._lock:
            return sorted(self._subscriptions)

    def subscription(self, name: str) -> Subscription:
        """One of them. Errors: NoSuchSubscriptionError."""
        self._check_open()
        with self._lock:
            there = self._subscriptions.get(name)
        if there is None:
            raise NoSuchSubscriptionError(self.name, f"there is no subscription {name}")
        return there

    def all_subscriptions(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions.values())

    def make_subscription(
        self,
        name: str,
        start: Start,
        durable: bool,
        settings: SubscriptionConfig | None,
        properties: Mapping[str, str],
    ) -> Subscription:
        check_name(name)
        if is_system(name):
            raise InvalidArgumentError(f"{name!r}: names that begin so belong to this package")
        with self._changing:
            with self._lock:
                there = self._subscriptions.get(name)
            if there is not None:
                return there
            mark = self._around.wait(position(self.managed, start))
            if not durable:
                return self._keep(Cursor(name, mark, durable=False), settings or SubscriptionConfig())
            _, record = Cursor(name, mark).snapshot_record()
            made = SubscriptionMetadata(
                token=secrets.token_hex(16), created_us=self.clock.now_us(), properties=dict(properties),
                type="exclusive" if settings is None else settings.type, snapshot=record,
            )  # fmt: skip
            try:
                create_subscription(self.topics.metadata, self.name, name, made)
            except KeyExistsError:
                logger.warning("topic %s: subscription %s was there already", self.name, name)
            return self._recover(name, settings)

    def _recover(self, name: str, settings: SubscriptionConfig | None = None) -> Subscription:
        recovered = self.topics.cursors.recover(self.name, name)
        cursor = Cursor.restore(name, recovered.records)
        there = self._keep(cursor, settings or SubscriptionConfig(type=recovered.metadata.type))
        there.properties = recovered.metadata.properties
        there.created_us = recovered.metadata.created_us
        there.slot = self.topics.cursors.attach(recovered, there.source)
        there.settle_in()
        return there

    def _keep(self, cursor: Cursor, settings: SubscriptionConfig) -> Subscription:
        made = Subscription(
            cursor.name, self.managed, cursor, settings, self._around, self.clock,
            publish_dead=lambda there, dead: publish_dead(self, there, dead), on_unused=self._unused,
        )  # fmt: skip
        with self._lock:
            self._subscriptions[cursor.name] = made
        return made

    def _unused(self, there: Subscription) -> None:
        """Its last consumer left; one that is not durable ends."""
        if not there.cursor.durable:
            with self._lock:
                if self._subscriptions.get(there.name) is there:
                    del self._subscriptions[there.name]

    # ---- changes --------------------------------------------------------------------------------------------

    def seek(self, subscription: str, start: Start) -> int:
        """Move a subscription: what lies before counts as acknowledged, what lies behind as not; returns the offset.
        Errors: NoSuchSubscriptionError; TrimmedError, OutOfRangeError."""
        return self._around.wait(self.subscription(subscription).seek(start))

    def skip(self, subscription: str, messages: int) -> None:
        """Acknowledge the next `messages` that are not yet. Errors: NoSuchSubscriptionError; InvalidArgumentError."""
        if isinstance(messages, bool) or not isinstance(messages, int) or messages < 0:
            raise InvalidArgumentError(f"messages: expected 0 or more, found {messages!r}")
        there = self.subscription(subscription)
        self._around.wait(there.skip(messages))
        self._around.wait(there.flush())

    def clear(self, subscription: str) -> None:
        """Acknowledge all that is there for a subscription. Errors: NoSuchSubscriptionError."""
        there = self.subscription(subscription)
        self._around.wait(there.skip_to(self.end))
        self._around.wait(there.flush())

    def configure(self, **settings: Any) -> None:
        """Change settings, fields of TopicConfig; those of publishing hold when the topic is opened next.

        Errors: ConfigError; TopicFencedError; those of the metadata store.
        """
        self._check_open()
        wanted = TopicConfig.of({**vars(self.config), **settings})
        if wanted != self.config:
            self._around.wait(self.managed.set_config(wanted))
            self.used = True

    def trim(self) -> int:
        """Drop the ledgers that no durable subscription and no retention keeps, now; returns how many. Errors: those of
        the metadata store."""
        self._check_open()
        return self._around.wait(self.upkeep.trim(self.clock.now_us()))

    def look(self) -> None:
        """What is done now and then; for `Topics`."""
        self.used = False
        self.upkeep.look(self.clock.now_us())

    def delete(self) -> None:
        """Delete it with its messages and subscriptions, for ever. Errors: TopicFencedError, those of the store."""
        self._check_open()
        self.managed.delete()
        self._end_all(NoSuchSubscriptionError(self.name, "the topic was deleted"), deleted=True)
        with self._lock:
            self._subscriptions.clear()  # nothing of them is stored any more
        self.close()

    # ---- events ---------------------------------------------------------------------------------------------

    def _grew(self) -> None:
        self.used = True
        end = self.managed.end.offset
        for there in self.all_subscriptions():
            there.grew(end)

    def trimmed(self, start: Total) -> None:
        """Messages before it are gone."""
        for there in self.all_subscriptions():
            there.trimmed(start)

    def _fenced(self, error: TopicFencedError) -> None:
        """Somebody else owns it: nothing is done for it here any more."""
        logger.warning("%s", error)
        self._publisher.stop(error)
        self.gate.end()
        self._end_all(error)
        self.topics.forget(self)
        self._around.work(self.close)

    def _end_all(self, error: ReplogError, *, deleted: bool = False) -> None:
        for there in self.all_subscriptions():
            there.end(error, deleted=deleted)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what was submitted, store what was acknowledged, and let others own it. Closing twice is fine.

        Errors: InvalidArgumentError, in a callback; OutcomeUnknownError, of messages that have no outcome.
        """
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def _let_go(self) -> None:
        error = ClosedError(f"the {self._what} was closed")
        with ExitStack() as rest:
            rest.callback(self.topics.forget, self)
            rest.callback(self.claim.release)
            rest.callback(self.managed.close)
            rest.callback(self._end_all, error)
            if self.dedup is not None:
                rest.callback(self.dedup.close)
            if not hasattr(self, "_publisher"):
                return
            self.gate.end()
            stored = [there.store() for there in self.all_subscriptions()]
            rest.callback(self._publisher.stop, error)
            if not self.managed.fenced:
                self._around.wait(self._publisher.flush(), CLOSE_S)
                stored += [] if self.dedup is None else [self.dedup.store(self)]
                for ack in stored:
                    self._around.wait(ack, CLOSE_S)
