"""TopicLike, ProducerLike, ConsumerLike: the types of topics here and at servers, with partitions and without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, Unpack, overload

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.coroutines import form_of
from pyreplog.cursors.subscription_config import SubscriptionSettings
from pyreplog.future import AppendFuture
from pyreplog.topic.client.consumer import QUEUE
from pyreplog.topic.model.config import TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.positions import PartitionOffset, PartitionRange
from pyreplog.topic.model.stats import InternalStats, PartitionedInternalStats, PartitionedStats, TopicStats

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Times

AnyStart = datetime | Literal["earliest", "latest"]
"""A start that applies to every topic: a time of publishing, with a time zone, or an end."""

AnyOffset = int | PartitionOffset
AnyOffsets = range | list[PartitionRange]
OffsetFuture = AppendFuture[int] | AppendFuture[PartitionOffset]
OffsetsFuture = AppendFuture[range] | AppendFuture[list[PartitionRange]]
Delivered = Message | MessageBatch | Iterable[Message]


class _Handle(Protocol):
    """A handle that is closed."""

    def close(self) -> None:
        """Close the handle; closing twice has no effect."""
        ...

    async def close_async(self) -> None:
        """Close the handle in a thread, for coroutines; `async with` does it, too."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ConsumerLike(_Handle, Protocol):
    """A Consumer or a PartitionedConsumer, as a type; made by `TopicLike.subscribe`.

    The parameters have the same meaning as those of `Consumer`. See docs/topics.md.
    """

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        ...

    @property
    def name(self) -> str:
        """Name of the consumer."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether messages come here; a failover subscription has one active consumer at a time."""
        ...

    @overload
    def receive(self, timeout: float | None = None, max_messages: None = None) -> Message | None: ...
    @overload
    def receive(self, timeout: float | None = None, *, max_messages: int) -> list[Message]: ...
    def receive(self, timeout: float | None = None, max_messages: int | None = None) -> Message | list[Message] | None:
        """Wait for the next message, or for a list of 1 to `max_messages`.

        Args:
            timeout: seconds; None: without limit. After them the result is None, or an empty list.
            max_messages: most messages of the list; None: one message.

        Raises:
            TopicFencedError: another process owns the topic now.
            ClosedError: the consumer, its topic or its cluster was closed.
        """
        ...

    def receive_batch(self, timeout: float | None = None) -> MessageBatch | None:
        """Wait for the next messages, as columns.

        Args:
            timeout: seconds; None: without limit. After them the result is None.

        Raises:
            ReplogError: as `receive`.
        """
        ...

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        """Iterate over batches as they come.

        Args:
            timeout: seconds without a message after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `receive`.
        """
        ...

    async def receive_async(self) -> Message:
        """Wait for the next message, in a coroutine.

        Raises:
            ReplogError: as `receive`.
        """
        ...

    async def receive_batch_async(self) -> MessageBatch:
        """Wait for the next messages, as columns, in a coroutine.

        Raises:
            ReplogError: as `receive`.
        """
        ...

    def __iter__(self) -> Iterator[Message]: ...
    def __aiter__(self) -> AsyncIterator[Message]: ...

    def acknowledge(self, messages: Delivered, /) -> None:
        """Acknowledge messages: they do not come again. It does not wait; `flush` does.

        Args:
            messages: a message, a batch, or several messages.

        Raises:
            ClosedError: as `receive`.
        """
        ...

    def acknowledge_cumulative(self, messages: Message | MessageBatch, *, timeout: float | None = None) -> None:
        """Acknowledge a message and all before it in its partition.

        Args:
            messages: a message, or a batch, of which the last message counts.
            timeout: seconds, as in `flush`.

        Raises:
            InvalidArgumentError: the subscription is shared.
            OutcomeUnknownError: the time ran out.
        """
        ...

    def acknowledge_cumulative_async(self, messages: Message | MessageBatch) -> AppendFuture[None]:
        """Return a future that is done when a message and all before it are acknowledged.

        Args:
            messages: as in `acknowledge_cumulative`.

        Raises:
            InvalidArgumentError: the subscription is shared.
        """
        ...

    def nack(self, messages: Delivered, *, delay: float | None = None) -> None:
        """Refuse messages: they come again.

        Args:
            messages: as in `acknowledge`.
            delay: seconds until they come again; None: the back-off of the subscription.

        Raises:
            ClosedError: as `receive`.
        """
        ...

    def redeliver(self) -> None:
        """Refuse all messages that this consumer has not acknowledged: they come again now.

        Raises:
            ClosedError: as `receive`.
        """
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acknowledgements so far are durable.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out, or it is not known whether all of them count.
        """
        ...

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when all acknowledgements so far are durable.

        Raises:
            ClosedError: as `receive`.
        """
        ...

    def seek(self, start: AnyStart, *, timeout: float | None = None) -> int | list[PartitionOffset]:
        """Move the whole subscription, including its other consumers; return where it goes on.

        Args:
            start: a time of publishing, "earliest" or "latest".
            timeout: seconds, as in `flush`.

        Raises:
            TrimmedError: the messages at the start were removed.
            OutcomeUnknownError: the time ran out.
        """
        ...

    def seek_async(self, start: AnyStart) -> Awaitable[int | list[PartitionOffset]]:
        """Move the whole subscription, in a coroutine; see `seek`.

        Args:
            start: as in `seek`.

        Raises:
            TrimmedError: the messages at the start were removed.
        """
        ...


class ProducerLike(_Handle, Protocol):
    """A Producer or a PartitionedProducer, as a type; made by `TopicLike.producer`.

    The parameters have the same meaning as those of `TopicLike.publish`. See docs/topics.md.
    """

    @property
    def name(self) -> str:
        """Name of the producer."""
        ...

    def publish(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AnyOffset:
        """Publish one message, and wait until it is confirmed.

        Args:
            value: bytes, or anything with a buffer.
            key: likewise; messages of one key have an order. None: no key.
            properties: names and values.
            event_time: when it happened: a datetime with a time zone, or microseconds since 1970-01-01 UTC.
            deliver_at: when shared subscriptions get it, likewise; None or 0: at once.
            delay: seconds from now, instead of `deliver_at`.
            sequence: number of the message, if the topic deduplicates; None: the next number.
            replicate_to: names of the only other clusters to which it is replicated; None: the policy decides.
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Returns:
            The offset of the message; DUPLICATE (-1) if its number was published before.

        Raises:
            ReplogError: as `TopicLike.publish`.
        """
        ...

    @form_of(publish)
    def publish_async(self) -> None:
        """Do what `publish` does, in a coroutine."""
        ...

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> OffsetFuture:
        """Publish one message without waiting.

        Args:
            value: bytes, or anything with a buffer.
            key: likewise; messages of one key have an order. None: no key.
            properties: names and values.
            event_time: when it happened: a datetime with a time zone, or microseconds since 1970-01-01 UTC.
            deliver_at: when shared subscriptions get it, likewise; None or 0: at once.
            delay: seconds from now, instead of `deliver_at`.
            sequence: number of the message, if the topic deduplicates; None: the next number.
            replicate_to: names of the only other clusters to which it is replicated; None: the policy decides.
            timeout: seconds that a thread waits for room; None: the timeout of the client; without limit for a topic of
                this process.

        Returns:
            A future that gives the offset.

        Raises:
            ReplogError: as `TopicLike.submit`.
        """
        ...

    def publish_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AnyOffsets:
        """Publish several messages, and wait until all are confirmed.

        Args:
            values: bytes-like objects, or columns: (offsets, data), numpy or Arrow arrays.
            keys: likewise; None: no keys.
            properties: one mapping, or None, for each value.
            event_times: one time, or None, for each value.
            deliver_at: one time, or None, for each value.
            delay: seconds from now, for all of them.
            sequences: ascending numbers, one for each value, if the topic deduplicates.
            replicate_to: names of the only other clusters to which they are replicated; None: the policy decides.
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Returns:
            The offsets of the messages.

        Raises:
            ReplogError: as `TopicLike.publish_batch`.
        """
        ...

    @form_of(publish_batch)
    def publish_batch_async(self) -> None:
        """Do what `publish_batch` does, in a coroutine."""
        ...

    def submit_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> OffsetsFuture:
        """Publish several messages without waiting.

        Args:
            values: bytes-like objects, or columns: (offsets, data), numpy or Arrow arrays.
            keys: likewise; None: no keys.
            properties: one mapping, or None, for each value.
            event_times: one time, or None, for each value.
            deliver_at: one time, or None, for each value.
            delay: seconds from now, for all of them.
            sequences: ascending numbers, one for each value, if the topic deduplicates.
            replicate_to: names of the only other clusters to which they are replicated; None: the policy decides.
            timeout: seconds that a thread waits for room; None: the timeout of the client; without limit for a topic of
                this process.

        Returns:
            A future that gives the offsets.

        Raises:
            ReplogError: as `TopicLike.submit_batch`.
        """
        ...

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages."""
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Send lingering messages, and wait until every message submitted so far has an outcome.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out.
        """
        ...

    def flush_async(self) -> AppendFuture[None]:
        """Send lingering messages; return a future that is done when all submitted ones have an outcome.

        Raises:
            ClosedError: the producer was closed.
        """
        ...


class TopicLike(_Handle, Protocol):
    """A topic, as a type: a Topic, a RemoteTopic, a PartitionedTopic or a RemotePartitionedTopic.

    `Cluster.topic` and `Client.topic` return one. Write functions for this type, and tests may pass
    `Mock(spec=TopicLike)`. An offset is an int; in a topic with partitions it is a PartitionOffset. `isinstance(topic,
    pyreplog.Topic)` tells a type checker which topic it is.

    Example:
        ```python
        def work(topic: pyreplog.TopicLike) -> None:
            with topic.subscribe("workers", type="shared") as consumer:
                for message in consumer:
                    consumer.acknowledge(message)
        ```

    See docs/topics.md.
    """

    @property
    def name(self) -> str:
        """Name of the topic."""
        ...

    # ---- publishing -----------------------------------------------------------------------------------------

    def publish(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        producer: str | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AnyOffset:
        """Publish one message, and wait until it is confirmed; return its offset.

        Args:
            value: bytes, or anything with a buffer.
            key: likewise; messages of one key have an order, also in a topic with partitions.
            properties: names and values.
            event_time: when it happened: a datetime with a time zone, or microseconds since 1970-01-01 UTC.
            deliver_at: when shared subscriptions get it, likewise, from 2001 on; None or 0: at once.
            delay: seconds from now, instead of `deliver_at`.
            sequence: number of the message, if the topic deduplicates: a message whose number was published before is
                dropped, and the offset is -1. None: the next number.
            producer: name of the producer.
            replicate_to: names of the only other clusters to which it is replicated; none: it stays in this one. None:
                the replication policy of the topic decides.
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            WindowFullError: there was no room all the time; nothing was published.
            BacklogFullError, RecordTooLargeError, WrongTypeError, InvalidArgumentError: nothing was published.
            OutcomeUnknownError: the time ran out, or the connection was lost: it is published, will be, or not.
            TopicFencedError: another process owns the topic now; the outcome is unknown.
            ClosedError: the topic was closed.
        """
        ...

    @form_of(publish)
    def publish_async(self) -> None:
        """Do what `publish` does, in a coroutine."""
        ...

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        producer: str | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> OffsetFuture:
        """Publish one message without waiting; return the future of its offset.

        Arguments that are not listed are those of `publish`.

        Args:
            timeout: seconds that a thread waits for room.

        Raises:
            WindowFullError: there is no room; a coroutine awaits `room()` before.
            ReplogError: as `publish`, for the arguments; other errors are those of the future.
        """
        ...

    def publish_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        producer: str | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AnyOffsets:
        """Publish several messages, and wait until all are confirmed; return their offsets.

        Arguments that are not listed are those of `publish`.

        Args:
            values: bytes-like objects, or columns: (offsets, data), numpy or Arrow arrays.
            keys: likewise; None: no keys.
            properties: one mapping, or None, for each value.
            event_times: one time, or None, for each value.
            deliver_at: one time, or None, for each value.
            delay: seconds from now, for all of them.
            sequences: ascending numbers, one for each value.
            replicate_to: names of the clusters, for all of them.

        Raises:
            SequenceError: the sequences do not ascend.
            ReplogError: as `publish`; after an unknown outcome a part may be stored.
        """
        ...

    @form_of(publish_batch)
    def publish_batch_async(self) -> None:
        """Do what `publish_batch` does, in a coroutine."""
        ...

    def submit_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        producer: str | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> OffsetsFuture:
        """Publish several messages without waiting; return the future of their offsets.

        Arguments that are not listed are those of `publish_batch`.

        Args:
            timeout: seconds that a thread waits for room.

        Raises:
            ReplogError: as `submit`.
        """
        ...

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages."""
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Send lingering messages, and wait until every message submitted so far has an outcome.

        Args:
            timeout: as in `publish`.

        Raises:
            OutcomeUnknownError: the time ran out.
        """
        ...

    def flush_async(self) -> AppendFuture[None]:
        """Send lingering messages; return a future that is done when all submitted ones have an outcome.

        Raises:
            ClosedError: the topic was closed.
        """
        ...

    def producer(self, name: str) -> ProducerLike:
        """Make a named producer, whose messages have sequence numbers.

        Args:
            name: 1 to 200 bytes of UTF-8 without control characters.

        Raises:
            ClosedError: the topic was closed.
        """
        ...

    @form_of(producer)
    def producer_async(self) -> None:
        """Do what `producer` does, in a coroutine."""
        ...

    # ---- reading --------------------------------------------------------------------------------------------

    def offsets(self) -> AnyOffsets:
        """Return the offsets of the messages that are kept; the stop of a range is the next offset.

        Returns:
            One range; of a topic with partitions a PartitionRange for each.

        Raises:
            ClosedError: the topic was closed.
        """
        ...

    @form_of(offsets)
    def offsets_async(self) -> None:
        """Do what `offsets` does, in a coroutine."""
        ...

    # ---- subscribing ----------------------------------------------------------------------------------------

    def subscribe(
        self,
        subscription: str,
        *,
        start: AnyStart = "latest",
        durable: bool = True,
        name: str | None = None,
        queue: int = QUEUE,
        priority: int = 0,
        **settings: Unpack[SubscriptionSettings],
    ) -> ConsumerLike:
        """Make a consumer of a subscription; create the subscription if it does not exist.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins.
            durable: keep the subscription, and the messages that it has not acknowledged, until it is deleted; False:
                it ends with its last consumer.
            name: name of the consumer; None: a random one.
            queue: most messages that wait in the consumer.
            priority: consumers with the lowest number are served first.
            settings: fields of SubscriptionConfig, which the subscription keeps.

        Raises:
            SubscriptionBusyError: it has consumers, and takes no more, or no other settings.
            ConfigError, InvalidArgumentError: a setting, or the start, is invalid.
            TopicFencedError: another process owns the topic now.
        """
        ...

    @form_of(subscribe)
    def subscribe_async(self) -> None:
        """Do what `subscribe` does, in a coroutine."""
        ...

    def create_subscription(
        self,
        subscription: str,
        *,
        start: AnyStart = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Create a durable subscription, unless it exists; it keeps messages from now on.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins.
            properties: names and values, for statistics.
            settings: as in `subscribe`.

        Raises:
            SubscriptionBusyError: a setting differs from that of a subscription with consumers.
            ReplogError: as `subscribe`.
        """
        ...

    @form_of(create_subscription)
    def create_subscription_async(self) -> None:
        """Do what `create_subscription` does, in a coroutine."""
        ...

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its acknowledgements; it keeps no messages any more.

        Args:
            subscription: name of the subscription.
            force: delete it even if it has consumers, which fail then.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            SubscriptionBusyError: it has consumers, and `force` is False.
        """
        ...

    @form_of(delete_subscription)
    def delete_subscription_async(self) -> None:
        """Do what `delete_subscription` does, in a coroutine."""
        ...

    def subscriptions(self) -> list[str]:
        """List the names of the subscriptions."""
        ...

    @form_of(subscriptions)
    def subscriptions_async(self) -> None:
        """Do what `subscriptions` does, in a coroutine."""
        ...

    def seek(self, subscription: str, start: AnyStart) -> int | list[PartitionOffset]:
        """Move a subscription; return where it goes on.

        Args:
            subscription: name of the subscription.
            start: a time of publishing, "earliest" or "latest".

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            TrimmedError: the messages at the start were removed.
        """
        ...

    @form_of(seek)
    def seek_async(self) -> None:
        """Do what `seek` does, in a coroutine."""
        ...

    def clear(self, subscription: str) -> None:
        """Acknowledge all present messages for a subscription.

        Args:
            subscription: name of the subscription.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
        """
        ...

    @form_of(clear)
    def clear_async(self) -> None:
        """Do what `clear` does, in a coroutine."""
        ...

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
        """Send the dead letters of this dead-letter topic back to the topics that they come from.

        Args:
            subscription: subscription whose unacknowledged messages are sent.
            to: another topic, for all of them.
            limit: most messages to send; None: all.
            where: called with each message; those for which it returns False stay.
            dry_run: count, and send nothing.
            timeout: seconds to wait for dead letters that do not come although some are left.
            on_progress: called with the report after each batch.

        Returns:
            How many were sent, to which topics.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            NoSuchTopicError: there is no topic `to`.
            SubscriptionBusyError: the subscription is exclusive and has a consumer, or was moved meanwhile.
        """
        ...

    @form_of(redrive)
    def redrive_async(self) -> None:
        """Do what `redrive` does, in a coroutine."""
        ...

    # ---- the topic ------------------------------------------------------------------------------------------

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings; those of publishing apply when the topic is opened next.

        Args:
            settings: fields of TopicConfig.

        Raises:
            ConfigError: a setting is unknown or invalid.
            TopicFencedError: another process owns the topic now.
        """
        ...

    @form_of(configure)
    def configure_async(self) -> None:
        """Do what `configure` does, in a coroutine."""
        ...

    def trim(self) -> int | list[PartitionOffset]:
        """Remove the ledgers that nothing keeps; return the first message that is kept."""
        ...

    @form_of(trim)
    def trim_async(self) -> None:
        """Do what `trim` does, in a coroutine."""
        ...

    def stats(self) -> TopicStats | PartitionedStats:
        """Return backlogs, rates and consumers."""
        ...

    @form_of(stats)
    def stats_async(self) -> None:
        """Do what `stats` does, in a coroutine."""
        ...

    def internal_stats(self) -> InternalStats | PartitionedInternalStats:
        """Return ledgers and cursors."""
        ...

    @form_of(internal_stats)
    def internal_stats_async(self) -> None:
        """Do what `internal_stats` does, in a coroutine."""
        ...

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with its messages and subscriptions, for ever.

        Args:
            force: also if a cluster that the topic is replicated to lacks messages, which are lost then.

        Raises:
            UnsentMessagesError: a cluster that the topic is replicated to lacks messages; nothing was done.
            TopicOwnedError: another process owns a partition.
            TopicFencedError: another process owns the topic now.
        """
        ...

    @form_of(delete)
    def delete_async(self) -> None:
        """Do what `delete` does, in a coroutine."""
        ...
