"""PartitionedTopic: several topics that user code publishes to and subscribes to as to one."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pyreplog._native.messages import MessageBatch
from pyreplog.ack import Ack
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    ReplogError,
    SubscriptionBusyError,
    TopicOwnedError,
    WrongTypeError,
)
from pyreplog.handles import Handle
from pyreplog.ledger.driver import check_may_wait
from pyreplog.topic.config import SubscriptionConfig
from pyreplog.topic.consumer import QUEUE
from pyreplog.topic.partitions.partitionconsumer import PartitionConsumer, partition_priority
from pyreplog.topic.partitions.partitionedconsumer import PartitionedConsumer
from pyreplog.topic.partitions.partitionedproducer import PartitionedProducer
from pyreplog.topic.partitions.partitionedpublisher import PartitionedPublisher, gathered
from pyreplog.topic.partitions.partitionedstats import PartitionedStats, partitioned_stats
from pyreplog.topic.partitions.partitionoffset import PartitionedStart, PartitionOffset
from pyreplog.topic.partitions.routing import Router, partition_name
from pyreplog.topic.positions import Start, check_start

if TYPE_CHECKING:
    from pyreplog.topic.subscription import Subscription
    from pyreplog.topic.topic import Topic
    from pyreplog.topic.topics import Topics

logger = logging.getLogger(__name__)


class _Wish(NamedTuple):
    """What a consumer was made with."""

    durable: bool
    queue: int
    priority: int
    settings: SubscriptionConfig | None


class PartitionedTopic(Handle):
    """A topic of several partitions, which are topics of their own, called "<name>-partition-<i>"; made by
    `Cluster.topic`: the same object for the same name. Any thread may call anything; asyncio code awaits what `submit`
    and `submit_batch` give.

    publish, submit, publish_batch, submit_batch: see `PartitionedPublisher`, whose methods they are. Other processes
    may own some of the partitions: what needs one of these is a TopicOwnedError.
    """

    def __init__(self, topics: Topics, name: str, partitions: int) -> None:
        self.name, self.topics = name, topics
        self._around = topics.surroundings
        self._changing = threading.Lock()  # while partitions come, or consumers
        self._served: list[Topic | TopicOwnedError] = []  # by partition
        self._wishes: weakref.WeakKeyDictionary[PartitionedConsumer, _Wish] = weakref.WeakKeyDictionary()
        self.publisher = publisher = PartitionedPublisher(Router(name, partitions), self._serving, self._around)
        self.publish, self.submit = publisher.publish, publisher.submit
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        super().__init__(f"partitioned topic {name}")

    def own(self, partitions: int, wait: float, settings: Mapping[str, Any]) -> None:
        """Open so many partitions, those that are not; for who makes it. Consumers that there are receive from new
        ones, too. Errors: as `Cluster.topic`; TopicOwnedError only when others have all."""
        with self._changing:
            grown = range(len(self._served), partitions)
            for partition in range(partitions):
                self._served[partition : partition + 1] = [self._open(partition, wait, settings)]
            self.publisher.router.partitions = partitions
            errors = [found for found in self._served if isinstance(found, TopicOwnedError)]
            if len(errors) == partitions:
                raise errors[0]
            for consumer, wish in list(self._wishes.items()):
                for partition in grown:
                    with suppress(TopicOwnedError):  # it was logged
                        self._attach(consumer, partition, "earliest", wish)

    def _open(self, partition: int, wait: float, settings: Mapping[str, Any]) -> Topic | TopicOwnedError:
        try:
            return self.topics.open(partition_name(self.name, partition), wait=wait, settings=settings)
        except TopicOwnedError as error:
            logger.warning("%s", error)
            return error

    # ---- partitions -----------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.publisher.router.partitions

    @property
    def served(self) -> list[int]:
        """Those that this process owns."""
        return [at for at, found in enumerate(self._served) if not isinstance(found, TopicOwnedError)]

    def partition(self, partition: int) -> Topic:
        """One of them, owned by this process from now on. Errors: TopicOwnedError, and as `Cluster.topic`;
        InvalidArgumentError."""
        self._check_open()
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise InvalidArgumentError(f"partition: expected 0 to {self.partitions - 1}, found {partition!r}")
        name = partition_name(self.name, partition)
        found = self.topics.get(name) or self.topics.open(name)
        self._served[partition] = found
        return found

    def _serving(self, partition: int) -> Topic:
        """As partition, for calls that must not wait."""
        self._check_open()
        found = self._served[partition]
        if isinstance(found, TopicOwnedError):
            raise TopicOwnedError(found.topic, found.message)
        return found

    def _all(self) -> list[Topic]:
        return [self.partition(partition) for partition in range(self.partitions)]

    def _here(self) -> list[Topic]:
        self._check_open()
        return [found for found in self._served if not isinstance(found, TopicOwnedError)]

    def stats(self) -> PartitionedStats:
        """Of those that this process owns, and of all of these together; as `Topic.stats`."""
        return partitioned_stats(self.name, self.partitions, {at: self._serving(at).stats() for at in self.served})

    # ---- publishing and reading -----------------------------------------------------------------------------

    def producer(self, name: str) -> PartitionedProducer:
        """A named producer; as `Topic.producer`."""
        self._check_open()
        return PartitionedProducer(self.publisher, name)

    def room(self) -> Ack[Any]:
        """An Ack that is done as soon as there is room for messages of whatever key; as `Publisher.room`."""
        return gathered([topic.room() for topic in self._here()])

    def read(self, partition: int, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Messages of one partition, as columns; as `Topic.read`."""
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
        **settings: Any,
    ) -> PartitionedConsumer:
        """A consumer of a subscription of all partitions; as `Topic.subscribe`.

        start: where a new one begins, a moment or an end. queue: messages that may wait in it, of all partitions, and
        one of each at least. Of a failover subscription each partition has its own active consumer: they are spread.
        Errors: as `Topic.subscribe`; TopicOwnedError, another process has a partition.
        """
        check_may_wait()
        _check_common(start)
        self._all()
        wish = _Wish(durable, queue, priority, SubscriptionConfig.of(settings) if settings else None)
        with self._changing:
            consumer = PartitionedConsumer(
                self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", wait=self._around.wait,
                seat=self._free_seat(subscription),
            )  # fmt: skip
            try:
                for partition in range(self.partitions):
                    self._attach(consumer, partition, start, wish)
            except BaseException:
                consumer.close()
                raise
            self._wishes[consumer] = wish
        return consumer

    def _free_seat(self, subscription: str) -> int:
        taken = {one.seat for one in self._consumers() if one.subscription == subscription}
        return next(seat for seat in itertools.count() if seat not in taken)

    def _consumers(self) -> list[PartitionedConsumer]:
        return [consumer for consumer in list(self._wishes) if not consumer.is_closed]

    def _attach(self, consumer: PartitionedConsumer, partition: int, start: Any, wish: _Wish) -> None:
        topic = self._serving(partition)
        part = PartitionConsumer(
            partition, topic.name, consumer.subscription, consumer.name, on_change=consumer.changed,
            queue=max(wish.queue // self.partitions, 1) if type(wish.queue) is int else wish.queue,
        )  # fmt: skip
        try:
            there, number = self._joined(topic, consumer, part, start, wish)
        except BaseException:
            part.close()
            raise
        topic.used = True
        consumer.add(part)
        part.attached(there, number)

    def _joined(
        self, topic: Topic, consumer: PartitionedConsumer, part: PartitionConsumer, start: Any, wish: _Wish
    ) -> tuple[Subscription, int]:
        settings, priority = wish.settings, wish.priority
        while True:
            there = topic.make_subscription(consumer.subscription, start, wish.durable, settings, {})
            if (settings or there.settings).type == "failover":
                priority = partition_priority(part.partition, self.partitions, consumer.seat, wish.priority)
            try:
                return there, there.attach(part, settings, priority=priority)
            except ReplogError:
                if not there.is_over:
                    raise  # else its last consumer left in this moment

    def create_subscription(
        self,
        subscription: str,
        *,
        start: PartitionedStart = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Make a durable subscription of all partitions, where it is not. As `Topic.create_subscription`."""
        _check_common(start)
        for topic in self._all():
            topic.create_subscription(subscription, start=start, properties=properties, **settings)  # type: ignore[arg-type]

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription from all partitions. As `Topic.delete_subscription`."""
        having = [topic for topic in self._all() if subscription in topic.subscriptions()]
        if not having:
            raise NoSuchSubscriptionError(self.name, f"there is no subscription {subscription}")
        consumers = max(topic.subscription(subscription).consumers for topic in having)
        if consumers and not force:
            raise SubscriptionBusyError(self.name, f"subscription {subscription} has {consumers} consumers")
        for topic in having:
            topic.delete_subscription(subscription, force=force)

    def subscriptions(self) -> list[str]:
        """Names of its subscriptions, of the partitions that this process owns."""
        return sorted({name for topic in self._here() for name in topic.subscriptions()})

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete it with its messages and subscriptions, for ever; if that fails in the middle, again.

        Errors: TopicOwnedError, another process has a partition; those of `Topic.delete`.
        """
        for topic in self._all():
            topic.delete()
        self.topics.partitioned.remove(self)
        self.close()

    def close(self) -> None:
        """Close its partitions and its consumers; as `Topic.close`."""
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self.topics.partitioned.forget, self)
            for found in self._served:
                if not isinstance(found, TopicOwnedError):
                    rest.callback(found.close)
            for consumer in list(self._wishes):
                rest.callback(consumer.close)


def _check_common(start: PartitionedStart) -> None:
    """WrongTypeError: it is no place in all partitions."""
    if isinstance(start, PartitionOffset) or isinstance(check_start(start), int):
        raise WrongTypeError("start: expected a datetime, 'earliest' or 'latest': an offset is of one partition")
