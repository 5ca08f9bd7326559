"""PartitionedHandle: several topics that user code publishes to and subscribes to as to one, wherever they are."""

from __future__ import annotations

import secrets
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.arguments import check_bool
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    SubscriptionBusyError,
    TopicOwnedError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle
from pyreplog.topic.client.consumer import QUEUE
from pyreplog.topic.client.coroutines import in_thread, iterating, opening
from pyreplog.topic.client.partitions.partition_topic import PartitionTopic
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer, PartitionedConsumer
from pyreplog.topic.client.partitions.partitioned_producer import PartitionedProducer, PartitionedPublisher
from pyreplog.topic.model.arguments import check_consumer, check_may_block
from pyreplog.topic.model.config import SubscriptionConfig, SubscriptionSettings, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.positions import PartitionedStart, PartitionOffset, Start, all_done, is_offset
from pyreplog.topic.model.routing import Router
from pyreplog.topic.model.stats import PartitionedInternalStats, PartitionedStats, partitioned_stats

if TYPE_CHECKING:
    from pyreplog.topic.model.interfaces import SubscriptionLike, WaitFunction

T = TypeVar("T", bound=PartitionTopic)


class SubscribeOptions(NamedTuple):
    """What a consumer was made with."""

    durable: bool
    queue: int
    priority: int
    settings: Mapping[str, Any]


class PartitionedHandle(Handle, Generic[T]):
    """A topic of several partitions, which are topics of their own, called "<name>-partition-<i>". Any thread may call
    anything; asyncio code awaits what `submit` and `submit_batch` give.

    publish, submit, publish_batch, submit_batch: see `PartitionedPublisher`, whose methods they are.
    """

    if not TYPE_CHECKING:  # for help(), inspect.signature and Mock(spec=…); each object has those of its publisher
        publish, submit = PartitionedPublisher.publish, PartitionedPublisher.submit
        publish_batch, submit_batch = PartitionedPublisher.publish_batch, PartitionedPublisher.submit_batch
        publish_async = PartitionedPublisher.publish_async
        publish_batch_async = PartitionedPublisher.publish_batch_async

    def __init__(self, name: str, partitions: int, wait: WaitFunction, what: str, timeout: float | None = None) -> None:
        self.name = name
        self._wait = wait
        self._changing = threading.Lock()  # while partitions come, or consumers
        self._options: weakref.WeakKeyDictionary[PartitionedConsumer, SubscribeOptions] = weakref.WeakKeyDictionary()
        self.publisher = publisher = PartitionedPublisher(Router(name, partitions), self._serving, wait, timeout)
        self.publish, self.submit = publisher.publish, publisher.submit
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        self.publish_async, self.publish_batch_async = publisher.publish_async, publisher.publish_batch_async
        super().__init__(what)

    # ---- partitions -----------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.publisher.router.partitions

    @property
    @abstractmethod
    def served(self) -> list[int]:
        """Those that can be used without asking others for them."""

    @abstractmethod
    def partition(self, partition: int) -> T:
        """One of them. Errors: InvalidArgumentError; those of opening a topic."""

    @abstractmethod
    def _serving(self, partition: int) -> T:
        """As partition, for calls that must not wait."""

    @abstractmethod
    def _joined(
        self, topic: T, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[SubscriptionLike, int]:
        """Have a partition's subscription take a consumer; the two know each other by that number."""

    def _check_partition(self, partition: int) -> None:
        self._check_open()
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise InvalidArgumentError(f"partition: expected 0 to {self.partitions - 1}, found {partition!r}")

    def _all(self) -> list[T]:
        return [self.partition(partition) for partition in range(self.partitions)]

    def _here(self) -> list[T]:
        self._check_open()
        return [self._serving(partition) for partition in self.served]

    def stats(self) -> PartitionedStats:
        """Of those in `served`, and of all of these together; as `Topic.stats`."""
        self._check_open()
        check_may_block("stats")
        return partitioned_stats(self.name, self.partitions, {at: self._serving(at).stats() for at in self.served})

    def internal_stats(self) -> PartitionedInternalStats:
        """Of those in `served`, one by one; as `Topic.internal_stats`."""
        self._check_open()
        check_may_block("internal_stats")
        parts = {at: self._serving(at).internal_stats() for at in self.served}
        return PartitionedInternalStats(name=self.name, partitions=self.partitions, parts=parts)

    # ---- publishing and reading -----------------------------------------------------------------------------

    def producer(self, name: str) -> PartitionedProducer:
        """A named producer; as the `producer` of the partitions in `served`, each of which has one of it."""
        self._check_open()
        made = PartitionedProducer(name, self.publisher, self._serving)
        try:
            for partition in self.served:
                made.part(partition)
        except BaseException:
            made.close()
            raise
        return made

    def room(self) -> AppendFuture[None]:
        """An AppendFuture that is done as soon as there is room for messages of whatever key; as `Publisher.room`."""
        return all_done([topic.room() for topic in self._here()])

    def flush(self, timeout: float | None = None) -> None:
        """As `Topic.flush`, of the partitions in `served`; timeout: for all of them together."""
        check_may_block("flush")
        seconds = self.publisher.timeout if timeout is None else as_timeout(timeout)
        self._wait(self.flush_async(), seconds)

    def flush_async(self) -> AppendFuture[None]:
        """As `Topic.flush_async`, of the partitions in `served`."""
        return all_done([topic.flush_async() for topic in self._here()])

    def read(self, partition: int, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Messages of one partition, as columns; as `Topic.read`."""
        check_may_block("read")
        return self._marked(partition, self.partition(partition).read(start, end))

    def _marked(self, partition: int, batches: Iterator[MessageBatch]) -> Iterator[MessageBatch]:
        for batch in batches:
            batch.partition = partition
            yield batch

    # ---- subscribing ----------------------------------------------------------------------------------------

    def subscribe(
        self,
        subscription: str,
        *,
        start: PartitionedStart = "latest",
        durable: bool = True,
        name: str | None = None,
        queue: int = QUEUE,
        priority: int = 0,
        **settings: Unpack[SubscriptionSettings],
    ) -> PartitionedConsumer:
        """A consumer of a subscription of all partitions; as `Topic.subscribe`.

        start: where a new one begins, a moment or an end. queue: messages that may wait in it, of all partitions, and
        one of each at least. Of a failover subscription each partition has its own active consumer: of those of the
        lowest `priority`, sorted by name, partition p has the one at p modulo their number.
        Errors: as `Topic.subscribe`; TopicOwnedError, another process has a partition.
        """
        check_may_block("subscribe")
        check_name(subscription, "subscription")
        check_consumer(name, durable, priority)
        _check_common(start)
        self._all()
        SubscriptionConfig.of(settings)
        options = SubscribeOptions(durable, queue, priority, settings)
        consumer = PartitionedConsumer(
            self.name,
            subscription,
            name or f"consumer-{secrets.token_hex(4)}",
            wait=self._wait,
            timeout=self.publisher.timeout,
        )
        with self._changing:
            try:
                for partition in range(self.partitions):
                    self._attach(consumer, partition, start, options)
            except BaseException:
                consumer.close()
                raise
            self._options[consumer] = options
        return consumer

    def _attach(self, consumer: PartitionedConsumer, partition: int, start: Any, options: SubscribeOptions) -> None:
        topic = self._serving(partition)
        part = PartitionConsumer(
            partition, topic.name, consumer.subscription, consumer.name, on_change=consumer.changed,
            queue=max(options.queue // self.partitions, 1) if type(options.queue) is int else options.queue,
        )  # fmt: skip
        try:
            there, number = self._joined(topic, part, start, options)
        except BaseException:
            part.close()
            raise
        consumer.add(part)
        part.attached(there, number)

    def _follow(self, grown: Iterable[int]) -> None:
        """Consumers that there are receive from new partitions, too; while they change."""
        for consumer, options in list(self._options.items()):
            for partition in grown if not consumer.is_closed else ():
                with suppress(TopicOwnedError):  # it was logged
                    self._attach(consumer, partition, "earliest", options)

    def create_subscription(
        self,
        subscription: str,
        *,
        start: PartitionedStart = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Make a durable subscription of all partitions, where it is not. As `Topic.create_subscription`."""
        check_may_block("create_subscription")
        _check_common(start)
        for topic in self._all():
            topic.create_subscription(subscription, start=start, properties=properties, **settings)  # type: ignore[arg-type]

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription from all partitions. As `Topic.delete_subscription`."""
        check_may_block("delete_subscription")
        check_bool("force", force)
        having = list(self._having(subscription).values())
        there = [sub for topic in having for sub in topic.stats().subscriptions if sub.name == subscription]
        consumers = max((len(sub.consumers) for sub in there), default=0)
        if consumers and not force:
            raise SubscriptionBusyError(self.name, f"subscription {subscription} has {consumers} consumers")
        for topic in having:
            topic.delete_subscription(subscription, force=force)

    def subscriptions(self) -> list[str]:
        """Names of its subscriptions, of the partitions in `served`."""
        check_may_block("subscriptions")
        return sorted({name for topic in self._here() for name in topic.subscriptions()})

    def _having(self, subscription: str) -> dict[int, T]:
        """The partitions that have it: all, unless deleting it failed in the middle. NoSuchSubscriptionError: none."""
        check_name(subscription, "subscription")
        found = {at: topic for at, topic in enumerate(self._all()) if subscription in topic.subscriptions()}
        if not found:
            raise NoSuchSubscriptionError(self.name, f"there is no subscription {subscription}")
        return found

    # ---- changes --------------------------------------------------------------------------------------------

    def seek(self, subscription: str, start: PartitionedStart) -> list[PartitionOffset]:
        """Move a subscription; as `Topic.seek`. Returns where it goes on, in each partition that was moved.

        start: a PartitionOffset moves its partition; a moment of publishing, "earliest" and "latest" all.
        Errors: as `Topic.seek`; TopicOwnedError, nothing was moved. After another one some partitions may be.
        """
        check_may_block("seek")
        if isinstance(start, PartitionOffset):
            found = self.partition(start.partition).seek(subscription, start.offset)
            return [PartitionOffset(start.partition, found)]
        if is_offset(start):
            raise WrongTypeError("start: an offset is of one partition, expected a PartitionOffset")
        having = self._having(subscription)
        return [PartitionOffset(at, topic.seek(subscription, start)) for at, topic in having.items()]

    def clear(self, subscription: str) -> None:
        """Acknowledge all that is there for a subscription, in all partitions. Errors: as `Topic.clear`;
        TopicOwnedError, nothing was."""
        check_may_block("clear")
        for topic in self._having(subscription).values():
            topic.clear(subscription)

    def redrive(
        self,
        subscription: str,
        *,
        to: str | None = None,
        limit: int | None = None,
        where: Callable[[Message], bool] | None = None,
        dry_run: bool = False,
        timeout: float = 30.0,
        on_progress: Callable[[RedriveReport], object] | None = None,
    ) -> RedriveReport:
        """Send the dead letters of all partitions back, of one after the other. As `Topic.redrive`; limit: of all
        partitions together. TopicOwnedError: nothing was sent."""
        check_may_block("redrive")
        report = RedriveReport()

        def tell(part: RedriveReport) -> None:
            if on_progress is not None:
                on_progress(report + part)

        for topic in self._having(subscription).values():
            report += topic.redrive(
                subscription, to=to, limit=None if limit is None else limit - report.sent, where=where,
                dry_run=dry_run, timeout=timeout, on_progress=tell,
            )  # fmt: skip
            if limit is not None and report.sent >= limit:
                break
        return report

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings of all partitions; as `Topic.configure`. TopicOwnedError: nothing was changed."""
        check_may_block("configure")
        topics = self._all()
        for topic in topics:
            topic.config.changed(settings)  # all can be, or none is
        for topic in topics:
            topic.configure(**settings)

    def trim(self) -> list[PartitionOffset]:
        """Drop the ledgers of all partitions that nothing keeps, now; returns the first message left of each. As
        `Topic.trim`; TopicOwnedError: nothing was dropped."""
        check_may_block("trim")
        return [PartitionOffset(at, topic.trim()) for at, topic in enumerate(self._all())]

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete it with its messages and subscriptions, for ever; if that fails in the middle, again.

        Errors: TopicOwnedError, another process has a partition; those of `Topic.delete`.
        """
        check_may_block("delete")
        for topic in self._all():
            topic.delete()
        self._remove()
        self.close()

    # ---- for coroutines --------------------------------------------------------------------------------------

    producer_async = opening(producer)
    subscribe_async = opening(subscribe)
    create_subscription_async = in_thread(create_subscription)
    delete_subscription_async = in_thread(delete_subscription)
    subscriptions_async = in_thread(subscriptions)
    seek_async = in_thread(seek)
    clear_async = in_thread(clear)
    redrive_async = in_thread(redrive)
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)

    @abstractmethod
    def _remove(self) -> None:
        """It is no partitioned topic any more: its partitions were deleted."""


def _check_common(start: PartitionedStart) -> None:
    """WrongTypeError: it is no place in all partitions."""
    if isinstance(start, PartitionOffset) or is_offset(start):
        raise WrongTypeError("start: expected a datetime, 'earliest' or 'latest': an offset is of one partition")
