"""PartitionedHandle: a topic of several partitions, in this process or at servers."""

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
from pyreplog.coroutines import check_may_block, in_thread, iterating, opening
from pyreplog.cursors.subscription_config import SubscriptionConfig, SubscriptionSettings
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    SubscriptionBusyError,
    TopicOwnedError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, all_done, as_timeout
from pyreplog.handles import Handle
from pyreplog.topic.client.consumer import QUEUE
from pyreplog.topic.client.partitions.partition_topic import PartitionTopic
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer, PartitionedConsumer
from pyreplog.topic.client.partitions.partitioned_producer import PartitionedProducer, PartitionedPublisher
from pyreplog.topic.model.arguments import check_consumer
from pyreplog.topic.model.config import TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.positions import PartitionedStart, PartitionOffset, PartitionRange, Start, is_offset
from pyreplog.topic.model.routing import Router
from pyreplog.topic.model.stats import PartitionedInternalStats, PartitionedStats, partitioned_stats
from pyreplog.topic_names import check_name

if TYPE_CHECKING:
    from pyreplog.topic.model.interfaces import SubscriptionLike, WaitFunction

T = TypeVar("T", bound=PartitionTopic)


class SubscribeOptions(NamedTuple):
    """The options of a consumer, for partitions that are added later."""

    durable: bool
    queue: int
    priority: int
    settings: Mapping[str, Any]


class PartitionedHandle(Handle, Generic[T]):
    """A topic of several partitions, which are topics of their own, named "<name>-partition-<i>".

    Any thread may use it; asyncio code awaits the futures of `submit` and `submit_batch`. The methods that publish are
    those of `PartitionedPublisher`. See docs/topics.md.
    """

    if not TYPE_CHECKING:  # for help(), inspect.signature and Mock(spec=…); each object binds those of its publisher
        publish, submit = PartitionedPublisher.publish, PartitionedPublisher.submit
        publish_batch, submit_batch = PartitionedPublisher.publish_batch, PartitionedPublisher.submit_batch
        publish_async = PartitionedPublisher.publish_async
        publish_batch_async = PartitionedPublisher.publish_batch_async

    def __init__(self, name: str, partitions: int, wait: WaitFunction, what: str, timeout: float | None = None) -> None:
        self.name = name
        self._wait = wait
        self._changing = threading.Lock()  # held while partitions or consumers are added
        self._options: weakref.WeakKeyDictionary[PartitionedConsumer, SubscribeOptions] = weakref.WeakKeyDictionary()
        self.publisher = publisher = PartitionedPublisher(Router(name, partitions), self._serving, wait, timeout)
        self.publish, self.submit = publisher.publish, publisher.submit
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        self.publish_async, self.publish_batch_async = publisher.publish_async, publisher.publish_batch_async
        super().__init__(what)

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called; it may still wait for messages."""
        return self._error is not None

    # ---- partitions -----------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return self.publisher.router.partitions

    @property
    @abstractmethod
    def served(self) -> list[int]:
        """The partitions that can be used without asking their owners for them."""

    @abstractmethod
    def partition(self, partition: int) -> T:
        """Return one partition.

        Args:
            partition: number of the partition, from 0.

        Raises:
            InvalidArgumentError: the topic has no such partition.
            ReplogError: as opening a topic.
        """

    @abstractmethod
    def _serving(self, partition: int) -> T:
        """Return a partition, for calls that must not wait."""

    @abstractmethod
    def _attached(
        self, topic: T, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[SubscriptionLike, int]:
        """Attach a consumer to the subscription of a partition; return the subscription and the consumer's number."""

    def _check_partition(self, partition: int) -> None:
        self._check_open()
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise InvalidArgumentError(f"partition: expected 0 to {self.partitions - 1}, found {partition!r}")

    def _all(self) -> list[T]:
        return [self.partition(partition) for partition in range(self.partitions)]

    def _served_topics(self) -> list[T]:
        self._check_open()
        return [self._serving(partition) for partition in self.served]

    def stats(self) -> PartitionedStats:
        """Return the statistics of the partitions in `served`, one by one and together; see `Topic.stats`."""
        self._check_open()
        check_may_block("stats")
        return partitioned_stats(self.name, self.partitions, {at: self._serving(at).stats() for at in self.served})

    def internal_stats(self) -> PartitionedInternalStats:
        """Return the ledgers and cursors of the partitions in `served`; see `Topic.internal_stats`."""
        self._check_open()
        check_may_block("internal_stats")
        parts = {at: self._serving(at).internal_stats() for at in self.served}
        return PartitionedInternalStats(name=self.name, partitions=self.partitions, parts=parts)

    # ---- publishing and reading -----------------------------------------------------------------------------

    def producer(self, name: str) -> PartitionedProducer:
        """Make a named producer, with one producer for each partition in `served`.

        Args:
            name: 1 to 200 bytes of UTF-8 without control characters.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        producer = PartitionedProducer(name, self.publisher, self._serving)
        try:
            for partition in self.served:
                producer.part(partition)
        except BaseException:
            producer.close()
            raise
        return producer

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages of any key; see `Publisher.room`."""
        return all_done([topic.room() for topic in self._served_topics()])

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message submitted so far to the partitions in `served` has an outcome.

        Args:
            timeout: seconds for all partitions together; None: the timeout of the client; without limit for a topic of
                this process.

        Raises:
            OutcomeUnknownError: the time ran out.
            ClosedError: the topic was closed.
        """
        check_may_block("flush")
        seconds = self.publisher.timeout if timeout is None else as_timeout(timeout)
        self._wait(self.flush_async(), seconds)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every message submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the topic was closed.
        """
        return all_done([topic.flush_async() for topic in self._served_topics()])

    def offsets(self) -> list[PartitionRange]:
        """Return the offsets of the messages that are kept, of each partition in `served`; see `Topic.offsets`.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        return [PartitionRange(at, self._serving(at).offsets()) for at in self.served]

    def read(self, partition: int, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Iterate over messages of one partition, as columns, without a subscription.

        Arguments that are not listed are those of `Topic.read`.

        Args:
            partition: number of the partition, from 0.

        Raises:
            ReplogError: as `Topic.read`.
        """
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
        """Make a consumer of a subscription of all partitions; create the subscription if it does not exist.

        In a failover subscription each partition has its own active consumer: of the consumers with the lowest
        `priority`, sorted by name, partition p has the one at p modulo their number.

        Arguments that are not listed are those of `Topic.subscribe`.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins: a time of publishing, "earliest" or "latest".
            queue: most messages that wait in the consumer, for all partitions together; at least one for each.

        Raises:
            TopicOwnedError: another process owns a partition.
            WrongTypeError: the start is an offset.
            ReplogError: as `Topic.subscribe`.
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
            source, number = self._attached(topic, part, start, options)
        except BaseException:
            part.close()
            raise
        consumer.add(part)
        part.attached(source, number)

    def _follow(self, grown: Iterable[int]) -> None:
        """Have existing consumers receive from new partitions, too; called while `_changing` is held."""
        for consumer, options in list(self._options.items()):
            for partition in grown if not consumer.is_closed else ():
                with suppress(TopicOwnedError):  # it was logged
                    self._attach(consumer, partition, "earliest", options)

    def _consumers(self) -> list[PartitionedConsumer]:
        """Return the consumers. Other threads may be adding some: the references are copied at once."""
        references = self._options.keyrefs()
        return [consumer for reference in references if (consumer := reference()) is not None]

    def create_subscription(
        self,
        subscription: str,
        *,
        start: PartitionedStart = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Create a durable subscription in all partitions, where it does not exist; see `Topic.create_subscription`.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins: a time of publishing, "earliest" or "latest".
            properties: names and values, for statistics.
            settings: as in `Topic.create_subscription`.

        Raises:
            ReplogError: as `subscribe`.
        """
        check_may_block("create_subscription")
        _check_common(start)
        for topic in self._all():
            topic.create_subscription(subscription, start=start, properties=properties, **settings)  # type: ignore[arg-type]

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription from all partitions; see `Topic.delete_subscription`.

        Args:
            subscription: name of the subscription.
            force: delete it even if it has consumers, which fail then.

        Raises:
            NoSuchSubscriptionError: no partition has such a subscription.
            SubscriptionBusyError: it has consumers, and `force` is False.
            TopicOwnedError: another process owns a partition.
        """
        check_may_block("delete_subscription")
        check_bool("force", force)
        having = list(self._having(subscription).values())
        stats = [sub for topic in having for sub in topic.stats().subscriptions if sub.name == subscription]
        consumers = max((len(sub.consumers) for sub in stats), default=0)
        if consumers and not force:
            raise SubscriptionBusyError(self.name, f"subscription {subscription} has {consumers} consumers")
        for topic in having:
            topic.delete_subscription(subscription, force=force)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, of the partitions in `served`."""
        check_may_block("subscriptions")
        return sorted({name for topic in self._served_topics() for name in topic.subscriptions()})

    def _having(self, subscription: str) -> dict[int, T]:
        """Return the partitions that have a subscription: all, unless a deletion of it failed midway.

        Raises NoSuchSubscriptionError if there is none.
        """
        check_name(subscription, "subscription")
        topics = {at: topic for at, topic in enumerate(self._all()) if subscription in topic.subscriptions()}
        if not topics:
            raise NoSuchSubscriptionError(self.name, f"there is no subscription {subscription}")
        return topics

    # ---- changes --------------------------------------------------------------------------------------------

    def seek(self, subscription: str, start: PartitionedStart) -> list[PartitionOffset]:
        """Move a subscription: messages before the start count as acknowledged, those behind as not.

        Args:
            subscription: name of the subscription.
            start: a PartitionOffset moves its partition; a time of publishing, "earliest" or "latest" all.

        Returns:
            Where each partition that was moved goes on.

        Raises:
            NoSuchSubscriptionError: no partition has such a subscription.
            TopicOwnedError: another process owns a partition; nothing was moved.
            WrongTypeError: the start is an offset without a partition.
            ReplogError: as `Topic.seek`; some partitions may be moved.
        """
        check_may_block("seek")
        if isinstance(start, PartitionOffset):
            offset = self.partition(start.partition).seek(subscription, start.offset)
            return [PartitionOffset(start.partition, offset)]
        if is_offset(start):
            raise WrongTypeError("start: an offset is of one partition, expected a PartitionOffset")
        having = self._having(subscription)
        return [PartitionOffset(at, topic.seek(subscription, start)) for at, topic in having.items()]

    def clear(self, subscription: str) -> None:
        """Acknowledge all present messages for a subscription, in all partitions.

        Args:
            subscription: name of the subscription.

        Raises:
            NoSuchSubscriptionError: no partition has such a subscription.
            TopicOwnedError: another process owns a partition; nothing was acknowledged.
        """
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
        """Send the dead letters of all partitions back, one partition after the other.

        Arguments that are not listed are those of `Topic.redrive`.

        Args:
            limit: most messages to send, from all partitions together; None: all.

        Returns:
            How many were sent, to which topics.

        Raises:
            TopicOwnedError: another process owns a partition; nothing was sent.
            ReplogError: as `Topic.redrive`.
        """
        check_may_block("redrive")
        report = RedriveReport()

        def add_progress(part: RedriveReport) -> None:
            if on_progress is not None:
                on_progress(report + part)

        for topic in self._having(subscription).values():
            report += topic.redrive(
                subscription, to=to, limit=None if limit is None else limit - report.sent, where=where,
                dry_run=dry_run, timeout=timeout, on_progress=add_progress,
            )  # fmt: skip
            if limit is not None and report.sent >= limit:
                break
        return report

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings of all partitions; see `Topic.configure`.

        Args:
            settings: fields of TopicConfig.

        Raises:
            ConfigError: a setting is unknown or invalid.
            TopicOwnedError: another process owns a partition; nothing was changed.
        """
        check_may_block("configure")
        topics = self._all()
        for topic in topics:
            topic.config.changed(settings)  # checked first, so that none is changed if one cannot be
        for topic in topics:
            topic.configure(**settings)

    def trim(self) -> list[PartitionOffset]:
        """Remove the ledgers of all partitions that nothing keeps, now.

        Returns:
            The first message that is kept in each partition.

        Raises:
            TopicOwnedError: another process owns a partition; nothing was removed.
        """
        check_may_block("trim")
        return [PartitionOffset(at, topic.trim()) for at, topic in enumerate(self._all())]

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with its messages and subscriptions, for ever; after an error midway it can be repeated.

        Args:
            force: also if a cluster that the topic is replicated to lacks messages, which are lost then.

        Raises:
            TopicOwnedError: another process owns a partition.
            UnsentMessagesError: a cluster lacks messages of a partition; nothing was done.
            ReplogError: as `Topic.delete`.
        """
        check_may_block("delete")
        topics = self._all()
        if not check_bool("force", force):
            for topic in topics:
                topic.check_deletion()  # checked first, so that none is deleted if one cannot be
        for topic in topics:
            topic.delete(force=force)
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
    offsets_async = in_thread(offsets)
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)

    @abstractmethod
    def _remove(self) -> None:
        """Remove the metadata of the topic, whose partitions were deleted."""


def _check_common(start: PartitionedStart) -> None:
    """Raise WrongTypeError for a start that does not apply to all partitions."""
    if isinstance(start, PartitionOffset) or is_offset(start):
        raise WrongTypeError("start: expected a datetime, 'earliest' or 'latest': an offset is of one partition")
