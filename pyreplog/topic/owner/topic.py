"""Topic: what user code publishes to and subscribes to, in the process that owns it."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import numpy as np

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.arguments import as_int, check_bool, check_text
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, OutOfRangeError, ReplogError, TopicFencedError
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.coroutines import in_thread, iterating, opening
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.redrive import OnProgress, Redrive, RedriveTarget, Where
from pyreplog.topic.model.arguments import OFFSET_MAX, check_consumer, check_may_block
from pyreplog.topic.model.config import SubscriptionConfig, SubscriptionSettings, TopicConfig, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.interfaces import DeliveryTarget
from pyreplog.topic.model.positions import Start, after_all, position, then
from pyreplog.topic.model.stats import InternalStats, TopicStats
from pyreplog.topic.owner.cursors.log import CursorLog
from pyreplog.topic.owner.dedup_cursor import DedupCursor
from pyreplog.topic.owner.maintenance import TopicMaintenance
from pyreplog.topic.owner.managed.managedledger import ManagedLedger
from pyreplog.topic.owner.ownership import Claim
from pyreplog.topic.owner.report import TopicReport
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.subscriptions import Subscriptions
from pyreplog.topic.owner.topic_context import DeadLetterTopic, TopicContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

RELEASE_S = 1.0
"""Between tries."""


class TopicHost(Protocol):
    """The topics of this process, as far as one of them needs them.

    address: at which this process answers for them, or "". close_s: seconds that closing may take. is_closing: all are
    closed, and told of together.
    """

    @property
    def runtime(self) -> RuntimeBase: ...
    @property
    def metadata(self) -> MetadataStore: ...
    @property
    def cursors(self) -> CursorLog: ...
    @property
    def address(self) -> str: ...
    @property
    def close_s(self) -> float: ...
    @property
    def is_closing(self) -> bool: ...

    def claim(self, name: str) -> Claim:
        """Claim a topic anew."""
        ...

    def forget(self, topic: Topic) -> None:
        """It was closed."""
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Have something done that may wait for ledgers."""
        ...

    def open_any(self, name: str, settings: Mapping[str, Any]) -> DeadLetterTopic:
        """Another topic, with partitions or without; made with these settings if there is none."""
        ...

    def existing(self, name: str) -> RedriveTarget:
        """Another topic, with partitions or without. NoSuchTopicError: there is none."""
        ...


class Topic(Handle):
    """A topic that this process owns; made by `Cluster.topic`: the same object for the same name, so who closes it
    closes it for all. Any thread may call anything; asyncio code awaits what `submit` and `submit_batch` give.

    publish, submit, publish_batch, submit_batch, room: see `Publisher`, whose methods they are.
    """

    if not TYPE_CHECKING:  # for help(), inspect.signature and Mock(spec=Topic); `recover` binds those of its publisher
        publish, submit, room = Publisher.publish, Publisher.submit, Publisher.room
        publish_batch, submit_batch = Publisher.publish_batch, Publisher.submit_batch
        publish_async, publish_batch_async = Publisher.publish_async, Publisher.publish_batch_async

    def __init__(self, topics: TopicHost, managed: ManagedLedger, claim: Claim, clock: Clock) -> None:
        """For `Topics`, which makes this a part of itself."""
        self.name, self.managed, self._topics = managed.name, managed, topics
        self.claim, self.clock = claim, clock
        self._claiming = threading.Lock()  # of what comes in place of `claim`; never while the store is asked
        self._was_let_go = False
        self.used = True
        """Whether anything happened to it since it was last looked at."""
        self._runtime = topics.runtime
        context = TopicContext(
            managed, clock, topics.runtime, topics.metadata, topics.cursors, touch=self.touch,
            check_open=self._check_open, work=topics.work, open_topic=topics.open_any,
        )  # fmt: skip
        self.dedup = DedupCursor(context) if managed.config.deduplicate else None
        self._subscriptions = Subscriptions(context)
        self.upkeep = TopicMaintenance(context, self._subscriptions, self.dedup)
        self._report = TopicReport(context, self._subscriptions, self.upkeep, self.dedup, address=topics.address)
        self._stored: list[AppendFuture[Any]] = []  # of what `begin_close` began
        self._ended: AppendFuture[None] | None = None
        self.unstored: ReplogError | None = None
        """Why what was acknowledged last was not stored when it was closed."""
        self._cause: ReplogError | None = None
        """Why it is over, if it is not that somebody closed it."""
        self.gone: AppendFuture[None] = AppendFuture()
        """Done when it is closed, and may be opened again."""
        super().__init__(f"topic {self.name}")

    def recover(self) -> None:
        """Open what there is of it: producers that are known, durable subscriptions. For who made it."""
        self._subscriptions.recover()
        if self.dedup is not None:
            self.dedup.recover()
        self._publisher = publisher = Publisher(
            self.name, self.managed.writer, self._runtime, self.clock, self.managed.config,
            entry_bytes_max=self._runtime.entry_bytes_max, end=self.managed.end.offset,
            producers=None if self.dedup is None else self.dedup.producers,
        )  # fmt: skip
        self.upkeep.follow(publisher)
        if self.dedup is not None:
            self.dedup.follow(publisher)
        self.publish, self.submit, self.room = publisher.publish, publisher.submit, publisher.room
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        self.publish_async, self.publish_batch_async = publisher.publish_async, publisher.publish_batch_async
        self.managed.on_grow.append(self.touch)
        self.managed.on_fenced.append(self._fenced)
        self.managed.verify()  # nobody would have told before

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
        """How many messages are kept. A topic without any is true all the same."""
        return self.end - self.start

    def stats(self) -> TopicStats:
        """Backlogs, rates, consumers; may read an entry of each subscription that lags, to tell its age, and a short
        backlog without consumers, to tell how many of its messages are delayed."""
        check_may_block("stats")
        return self.measure()

    def measure(self) -> TopicStats:
        """As stats, for metrics, which an event loop may ask for: it waits for what is read."""
        self._check_open()
        return self._report.stats(self._publisher)

    def internal_stats(self) -> InternalStats:
        """Ledgers and cursors, to find out why something stands still."""
        self._check_open()
        check_may_block("internal_stats")
        return self._report.internal_stats(self._publisher)

    # ---- publishing -----------------------------------------------------------------------------------------

    def producer(self, name: str) -> Producer:
        """A named producer: its messages have sequence numbers; where the topic deduplicates, none is stored twice."""
        self._check_open()
        return Producer(self._publisher, name)

    def flush(self, timeout: float | None = None) -> None:
        """As `Publisher.flush`, of all that this process publishes to the topic. ClosedError: it was closed."""
        self._check_open()
        self._publisher.flush(timeout)

    def flush_async(self) -> AppendFuture[None]:
        """As `Publisher.flush_async`. ClosedError: it was closed."""
        self._check_open()
        return self._publisher.flush_async()

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Messages from a place up to an offset (default: those confirmed now), as columns; for no subscription.

        Errors: TrimmedError, OutOfRangeError; UnreadableError; ClosedError, ForkedError.
        """
        self._check_open()
        check_may_block("read")
        stop = OFFSET_MAX if end is None else as_int("end", end)
        return self._batches(self.offset_of(start), min(stop, self.end))

    def offset_of(self, start: Start) -> int:
        """Offset of a place: of "earliest", "latest", an offset, or a moment of publishing.

        Errors: TrimmedError, OutOfRangeError; UnreadableError.
        """
        check_may_block("offset_of")
        return self._wait(position(self.managed, start)).offset

    def _batches(self, at: int, end: int) -> Iterator[MessageBatch]:
        while at < end:
            self._check_open()
            batch = self._runtime.wait(self.managed.read(at, end=end))
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
        **settings: Unpack[SubscriptionSettings],
    ) -> Consumer:
        """A consumer of a subscription, which is made if there is none.

        start: where a new one begins. durable: it is kept, and with it the messages it has not acknowledged, until it
        is deleted; else it ends with its last consumer. name: of the consumer, any. queue: messages that may wait in
        it. priority: of several consumers, those with the lowest number are served first. settings: fields of
        SubscriptionConfig. The subscription keeps them, as those of `create_subscription`.
        Errors: SubscriptionBusyError; ConfigError, InvalidArgumentError; TrimmedError, OutOfRangeError: the start;
        TopicFencedError; those of the metadata store.
        """
        self._check_open()
        check_may_block("subscribe")
        check_consumer(name, durable, priority)
        SubscriptionConfig.of(settings)
        consumer = Consumer(self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", queue=queue)
        try:
            source, number = self.attach(consumer, subscription, start, durable, settings, priority)
        except BaseException:
            consumer.close()
            raise
        consumer.attached(source, number)
        return consumer

    def attach(
        self,
        consumer: DeliveryTarget,
        subscription: str,
        start: Start,
        durable: bool,
        settings: Mapping[str, Any],
        priority: int,
        address: str = "",
    ) -> tuple[Subscription, int]:
        """Have a subscription, which is made if there is none, take a consumer; returns the consumer's number, too.

        address: HOST:PORT of a remote one, for statistics. Errors: see `subscribe`.
        """
        attached = self._subscriptions.attach(consumer, subscription, start, durable, settings, priority, address)
        self.used = True
        return attached

    def create_subscription(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Make a durable subscription, unless it is there: it keeps messages from now on.

        start, settings: as of `subscribe`. properties: names and values of text, for statistics; one that is there
        keeps its own. The settings are kept with the subscription, and hold for all of its consumers. Of one that is
        there those that are given change, and the others stay as they are.
        Errors: SubscriptionBusyError, a setting differs from that of a subscription with consumers; others as
        `subscribe`.
        """
        self._check_open()
        check_may_block("create_subscription")
        self._subscriptions.make(subscription, start, True, settings, properties or {})

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its acknowledgements; nothing is kept for it any more. force: though it has
        consumers, which fail then.

        Errors: NoSuchSubscriptionError; SubscriptionBusyError, it has consumers; those of the metadata store.
        """
        self._check_open()
        check_may_block("delete_subscription")
        self._subscriptions.delete(subscription, force=check_bool("force", force))

    def subscriptions(self) -> list[str]:
        """Names of its subscriptions."""
        self._check_open()
        return self._subscriptions.names()

    def subscription(self, name: str) -> Subscription:
        """One of them. Errors: NoSuchSubscriptionError."""
        self._check_open()
        return self._subscriptions.get(name)

    def all_subscriptions(self) -> list[Subscription]:
        return self._subscriptions.all()

    # ---- changes --------------------------------------------------------------------------------------------

    def seek(self, subscription: str, start: Start) -> int:
        """Move a subscription: what lies before counts as acknowledged, what lies behind as not; returns the offset.
        Errors: NoSuchSubscriptionError; TrimmedError, OutOfRangeError."""
        check_may_block("seek")
        return self._wait(self.subscription(subscription).seek(start))

    def skip(self, subscription: str, messages: int) -> None:
        """Acknowledge the next `messages` that are not yet. Errors: NoSuchSubscriptionError; InvalidArgumentError."""
        check_may_block("skip")
        if as_int("messages", messages) < 0:
            raise InvalidArgumentError(f"messages: expected 0 or more, found {messages}")
        there = self.subscription(subscription)
        self._wait(there.skip(min(messages, self.end)))
        self._wait(there.flush_async())

    def skip_to(self, subscription: str, offset: int, *, token: str | None = None) -> None:
        """Acknowledge all below an offset; what is acknowledged stays so. token: of the topic's creation, when it is
        known which one is meant. Errors: NoSuchSubscriptionError; OutOfRangeError; NoSuchTopicError, it was made anew.
        """
        check_may_block("skip_to")
        there = self.subscription(subscription)
        if token is not None and check_text("token", token) != self.managed.chain.token:
            raise NoSuchTopicError(self.name, "it was deleted, and made anew")
        if not 0 <= as_int("offset", offset) <= self.end:
            raise OutOfRangeError(f"topic {self.name}: expected an offset up to its end, {self.end}, found {offset}")
        self._wait(there.skip_to(int(offset)))
        self._wait(there.flush_async())

    def clear(self, subscription: str) -> None:
        """Acknowledge all that is there for a subscription. Errors: NoSuchSubscriptionError."""
        check_may_block("clear")
        there = self.subscription(subscription)
        self._wait(there.skip_to(self.end))
        self._wait(there.flush_async())

    def redrive(
        self,
        subscription: str,
        *,
        to: str | None = None,
        limit: int | None = None,
        where: Where | None = None,
        dry_run: bool = False,
        timeout: float = 30.0,
        on_progress: OnProgress | None = None,
    ) -> RedriveReport:
        """Send dead letters back, of this dead-letter topic, each to the topic or partition that it comes from; all
        subscriptions of that get it again. A dead letter is acknowledged once its copy is durable.

        subscription: whose unacknowledged messages these are; those that were there when this began. to: another topic
        for all of them. limit: so many at most. where: called with each; False, it stays. dry_run: send and acknowledge
        nothing, and count. timeout: seconds to wait for dead letters that do not come although some are left.
        on_progress: called behind each batch, with the report so far.
        Errors: NoSuchSubscriptionError; NoSuchTopicError, `to`; SubscriptionBusyError, it is exclusive and has a
        consumer, a seek moved it meanwhile, or some did not come in time; those of publishing. After an error all of
        which the report counts are sent, and the others are left: call it again.
        """
        check_may_block("redrive")
        return Redrive(
            self, subscription, self._topics.existing, to=to, limit=limit, where=where, dry_run=dry_run,
            timeout=timeout, on_progress=on_progress,
        ).run()  # fmt: skip

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings, fields of TopicConfig; those of publishing hold when the topic is opened next.

        Errors: ConfigError; TopicFencedError; those of the metadata store.
        """
        self._check_open()
        check_may_block("configure")
        wanted = self.config.changed(settings)
        if wanted != self.config:
            self._wait(self.managed.set_config(wanted))
            self.used = True

    def trim(self) -> int:
        """Drop the ledgers that no durable subscription and no retention keeps, now; returns the offset of the first
        message left, as `CommitLog.trim` the first entry. Errors: those of the metadata store."""
        self._check_open()
        check_may_block("trim")
        self._wait(self.upkeep.trim())
        return self.start

    def _wait(self, future: AppendFuture[T]) -> T:
        """Its result, for which it may take bookies to come back; who asked for it may have gone meanwhile."""
        return wait_wanted(self._runtime.wait, future)

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or will be at once; see `gone`."""
        return self._error is not None or self.managed.fenced

    def touch(self) -> None:
        """Something happened to it: it is looked at soon."""
        self.used = True

    def look(self) -> None:
        """What is done now and then; for `Topics`."""
        was_lost = self.claim.is_lost
        if was_lost and not self.is_closing:  # asked behind that: whoever closes it lets it go, which is no loss
            self._claim_again()
        self.used = was_lost or not self.claim.is_held
        if self.used or any(there.is_over for there in self.all_subscriptions()):
            self.managed.verify()  # others may have taken it, and do not say so
        self.upkeep.look()

    def _claim_again(self) -> None:
        """The lease was lost, maybe for no more than that the store was away. That nobody has the topic now does not
        mean that nobody had: `verify` is asked behind this."""
        try:
            claim = self._topics.claim(self.name)
        except ReplogError as error:
            logger.info("topic %s: not claimed again yet: %s", self.name, error)
            return
        with self._claiming:
            self.claim, former = (self.claim, claim) if self._was_let_go else (claim, self.claim)
        former.release()

    def delete(self) -> None:
        """Delete it with its messages and subscriptions, for ever. Errors: TopicFencedError, those of the store."""
        self._check_open()
        check_may_block("delete")
        try:
            self.managed.delete()
        finally:
            if self._is_over:  # whoever opens it next does the rest, if it failed
                self._cause = error = NoSuchTopicError(self.name, "it was deleted")
                self._publisher.stop(error)
                self._subscriptions.end(error, deleted=True)
                self.close()

    # ---- for coroutines --------------------------------------------------------------------------------------

    producer_async = opening(producer)
    subscribe_async = opening(subscribe)
    create_subscription_async = in_thread(create_subscription)
    delete_subscription_async = in_thread(delete_subscription)
    subscriptions_async = in_thread(subscriptions)
    seek_async = in_thread(seek)
    skip_async = in_thread(skip)
    skip_to_async = in_thread(skip_to)
    clear_async = in_thread(clear)
    redrive_async = in_thread(redrive)
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)
    offset_of_async = in_thread(offset_of)

    # ---- events ---------------------------------------------------------------------------------------------

    def clock_was_set(self) -> None:
        """The wall's, that messages are delayed by."""
        for there in self.all_subscriptions():
            there.clock_was_set()

    def _fenced(self, error: TopicFencedError) -> None:
        """Somebody else owns it: nothing is done for it here any more."""
        logger.warning("%s", error)
        self._cause = error
        self._publisher.stop(error)
        self._subscriptions.end(error)
        self._topics.work(self.close)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what was submitted, store what was acknowledged, and let others own it. Closing twice is fine.

        Errors: InvalidArgumentError, in a callback; OutcomeUnknownError, of messages that have no outcome.
        """
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def begin_close(self) -> AppendFuture[None]:
        """Begin what `close` waits for, which comes behind it: who closes many waits for all of them at once. Done when
        nothing is left to be waited for, whatever has come of it."""
        with self._claiming:
            ended, self._ended = self._ended, self._ended or AppendFuture()
            if ended is not None:
                return ended
            ended = self._ended
        if self._is_over or not hasattr(self, "_publisher"):
            ended.complete(None)
            return ended
        self._publisher.lift_quota()
        flushed = self._publisher.flush_async()
        self._stored = [flushed, *(there.store() for there in self.all_subscriptions())]
        if (dedup := self.dedup) is not None:
            kept: AppendFuture[None] = AppendFuture()
            flushed.add_done_callback(lambda _: then(dedup.store(), kept, kept.complete))
            self._stored.append(kept)
        after_all(self._stored, partial(self._end_ledger, ended))
        return ended

    def _end_ledger(self, ended: AppendFuture[None]) -> None:
        """Nothing is published behind it."""
        self._publisher.stop(self._ending())
        self.managed.begin_close().add_done_callback(lambda _: ended.complete(None))

    @property
    def _is_over(self) -> bool:
        """Whether nothing can be published any more: somebody else owns it, or it was deleted."""
        return self.managed.stats().state in ("fenced", "closed")

    def _ending(self) -> ReplogError:
        return self._cause or super()._ending()

    def _let_go(self) -> None:
        error = self._ending()
        with ExitStack() as rest:
            rest.callback(self.gone.complete, None)
            rest.callback(self._topics.forget, self)
            rest.callback(self._release)
            rest.callback(lambda: self.managed.close(self._topics.close_s))
            rest.callback(self._subscriptions.end, error)
            if self.dedup is not None:
                rest.callback(self.dedup.close)
            if not hasattr(self, "_publisher"):
                return
            self._publisher.lift_quota()
            rest.callback(self._publisher.stop, error)
            self.begin_close()
            rest.callback(self._wait_stored, self._stored[1:])
            for flushed in self._stored[:1]:
                self._runtime.wait(flushed, self._topics.close_s)

    def _release(self) -> None:
        """Others may own it from now on; while the metadata store is away, later."""
        with self._claiming:
            self._was_let_go = True
        if not self._topics.close_s:  # all are closed, and time is over: the lease of all ends at once
            return
        try:
            self.claim.release()
        except ReplogError as error:
            logger.warning("topic %s: nobody else can own it yet: %s", self.name, error)
            self._runtime.wake_after(RELEASE_S, lambda: self._runtime.work(self._release))

    def _wait_stored(self, stored: Sequence[AppendFuture[None]]) -> None:
        deadline = time.monotonic() + self._topics.close_s
        for future in stored:
            try:
                self._runtime.wait(future, max(deadline - time.monotonic(), 0))
            except ReplogError as error:
                if any(there.is_unstored for there in self.all_subscriptions()):
                    self.unstored = error
        if self.unstored is not None and not self._topics.is_closing:
            logger.warning("topic %s: what was acknowledged last comes again: %s", self.name, self.unstored)
