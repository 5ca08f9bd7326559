"""RemoteTopic and RemotePartitionedTopic: topics that other processes own."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.arguments import as_int, check_bool, check_mapping, check_text
from pyreplog.clock import SystemClock
from pyreplog.coroutines import check_may_block, in_thread, iterating, opening
from pyreplog.cursors.subscription_config import SubscriptionConfig, SubscriptionSettings
from pyreplog.errors import ClosedError, InvalidMessageError, OutcomeUnknownError, WrongTypeError
from pyreplog.future import AppendFuture, all_done, transform
from pyreplog.handles import Handle
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.redrive import OnProgress, Redrive, RedriveTarget, Where
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, StaleError, reads
from pyreplog.topic.client.remote.remote_subscription import RemoteSubscribeOptions, RemoteSubscription
from pyreplog.topic.client.remote.sender import EntrySender, SequenceAllocator
from pyreplog.topic.model.arguments import OFFSET_MAX, as_offset, check_consumer
from pyreplog.topic.model.config import TopicConfig, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.interfaces import WaitFunction
from pyreplog.topic.model.positions import Start, check_start, messages_from
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.model.stats import InternalStats, TopicStats
from pyreplog.topic.model.wire.batches import decode_delivered
from pyreplog.topic.model.wire.json_codec import decode_stats, encode_start
from pyreplog.topic.model.wire.protocol import Call, CallResult, Opened, ReadRequest
from pyreplog.topic_names import check_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Times


READ_BYTES = 4 << 20


_BLOCKING = {"where": "offsets", "position": "read"}
"""Names of methods by the calls that they send to the owner, if the names differ."""


class RemoteTopic(Handle):
    """A topic that another process owns; made by `Client.topic`: one object for each name.

    Its methods have the parameters and errors of those of `Topic`, and errors of connections (PeerError). Any thread
    may use it; asyncio code awaits the futures of `submit` and `submit_batch`.

    Messages in flight fail with OutcomeUnknownError when the connection is lost. Messages of a named producer do not,
    if the topic deduplicates: they are sent again, for the client's `timeout`, and none is stored twice. Therefore one
    client at a time publishes under a name: another one ends it, with SequenceError. See docs/topics.md.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        name: str,
        opened: Opened,
        on_close: Callable[[RemoteTopic], object],
        open_topic: Callable[[str], RedriveTarget],
    ) -> None:
        """Create the topic; for `Client`, which makes it a part of itself.

        on_close: called when it was closed. open_topic: opens another topic of the client, which exists.
        """
        self.name = name
        self._pool, self._on_close, self._open_topic = pool, on_close, open_topic
        self._entry_bytes_max = opened.entry_bytes_max
        self.config = _config(opened.config)
        self._lock = threading.Lock()  # guards the tables
        self._opening = threading.Lock()  # held while a producer is created
        self._publishers: dict[str, tuple[Publisher, EntrySender]] = {}
        self._users: Counter[str] = Counter()  # number of users of each publisher
        self._kept: dict[str, Publisher] = {}  # by producer name passed to `publish`, until the end
        self._remote_subscriptions: set[RemoteSubscription] = set()
        self._publisher = self._make_publisher("")
        super().__init__(f"topic {name} of another process")

    def _make_publisher(self, producer: str) -> Publisher:
        """Create a publisher.

        producer: name of a producer whose messages are numbered here: waits for the owner; otherwise "".
        """
        allocator = SequenceAllocator() if producer else None
        sender = EntrySender(
            self._pool,
            self.name,
            producer,
            None if allocator is None else lambda opened: allocator.seed(opened.last_sequence),
        )
        if allocator is not None:
            self._pool.wait(sender.open(), self._pool.timeout)
        publisher = Publisher(
            self.name, sender, self._pool, SystemClock(), self.config, entry_bytes_max=self._entry_bytes_max,
            producers=allocator, timeout=self._pool.timeout,
        )  # fmt: skip
        with self._lock:
            self._publishers[producer] = publisher, sender
            self._users[producer] += 1
        return publisher

    def _publisher_of(self, producer: str | None) -> Publisher:
        self._check_open()
        if producer is None or not self.config.deduplicate:
            return self._publisher
        publisher = self._kept.get(check_name(producer))
        if publisher is None:
            self._kept[producer] = publisher = self._join(producer)
        return publisher

    def _join(self, producer: str) -> Publisher:
        """Return the publisher of a producer, for one more user; the first one waits for the owner."""
        publisher = self._attached(producer)
        if publisher is not None:
            return publisher
        check_may_block("producer")
        with self._opening:
            return self._attached(producer) or self._make_publisher(producer)

    def _attached(self, producer: str) -> Publisher | None:
        with self._lock:
            if producer not in self._publishers:
                return None
            self._users[producer] += 1
            return self._publishers[producer][0]

    def _leave(self, producer: str) -> None:
        """Remove a user of a publisher; after the last one close it, and its session at the owner."""
        with self._lock:
            self._users[producer] -= 1
            if self._users[producer]:
                return
            del self._users[producer]
            publisher, sender = self._publishers.pop(producer)
        error = ClosedError(f"the producer {producer!r} was closed")
        publisher.stop(error)
        sender.close(error)

    # ---- publishing -----------------------------------------------------------------------------------------

    def producer(self, name: str) -> Producer:
        """Make a named producer, as `Topic.producer` does; waits for the owner, unless there is one of that name.

        Close it: a server accepts 4,096 producers of a client.

        Args:
            name: 1 to 200 bytes of UTF-8 without control characters.

        Raises:
            ClosedError: the topic was closed.
            ReplogError: errors of connections.
        """
        self._check_open()
        if not self.config.deduplicate:
            return Producer(self._publisher, name)
        return Producer(self._join(check_name(name)), name, lambda: self._leave(name))

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
    ) -> int:
        """Publish one message, and wait until it is confirmed.

        The arguments are those of `Publisher.publish`.

        Returns:
            The offset of the message; DUPLICATE (-1) if its number was published before.

        Raises:
            UnsupportedRequestError: the owner is too old for `replicate_to`; nothing was published.
            ReplogError: as `Publisher.publish`.
        """
        return self._publisher_of(producer).publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
            producer=producer,
        )  # fmt: skip

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
    ) -> AppendFuture[int]:
        """Publish one message without waiting; return the future of its offset.

        A producer that is new to this client is waited for.

        The arguments are those of `Publisher.submit`.

        Raises:
            ReplogError: as `Publisher.submit`.
        """
        return self._publisher_of(producer).submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
            producer=producer,
        )  # fmt: skip

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
    ) -> range:
        """Publish several messages, and wait until all are confirmed.

        The arguments are those of `Publisher.publish_batch`.

        Returns:
            The offsets of the messages that are stored.

        Raises:
            RecordTooLargeError: the batch has more than about 30 MiB.
            ReplogError: as `Publisher.publish_batch`.
        """
        return self._publisher_of(producer).publish_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, timeout=timeout,
            producer=producer,
        )  # fmt: skip

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
    ) -> AppendFuture[range]:
        """Publish several messages without waiting; return the future of their offsets.

        A producer that is new to this client is waited for.

        The arguments are those of `Publisher.submit_batch`.

        Raises:
            ReplogError: as `Publisher.submit_batch`.
        """
        return self._publisher_of(producer).submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, timeout=timeout,
            producer=producer,
        )  # fmt: skip

    async def _awaited(self, producer: str | None) -> Publisher:
        """Return the publisher of a producer; a thread waits for the owner."""
        if producer is None or not self.config.deduplicate or producer in self._kept:
            return self._publisher_of(producer)
        return await asyncio.to_thread(self._publisher_of, producer)

    publish_async = publishing(submit, _awaited)
    """Do what `publish` does, in a coroutine."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """Do what `publish_batch` does, in a coroutine."""

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages without a producer's name."""
        return self._publisher.room()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message that this client submitted to the topic has an outcome.

        Args:
            timeout: seconds; None: the timeout of the client.

        Raises:
            OutcomeUnknownError: the time ran out.
            ClosedError: the topic was closed.
        """
        check_may_block("flush")
        self._publisher.wait(self.flush_async(), timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every message that this client submitted has an outcome.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        with self._lock:
            publishers = [publisher for publisher, _ in self._publishers.values()]
        return all_done([publisher.flush_async() for publisher in publishers])

    # ---- consuming ------------------------------------------------------------------------------------------

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
        """Make a consumer of a subscription, as `Topic.subscribe` does.

        When the connection is lost, the consumer goes on as soon as there is another one: messages that it has not
        acknowledged come again. A subscription that is not durable skips the messages published meanwhile.

        The arguments are those of `Topic.subscribe`.

        Raises:
            ReplogError: as `Topic.subscribe`.
        """
        self._check_open()
        check_may_block("subscribe")
        check_name(subscription, "subscription")
        check_start(start)
        check_consumer(name, durable, priority)
        SubscriptionConfig.of(settings)
        consumer = Consumer(self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", queue=queue)
        try:
            remote_subscription = self.attach(consumer, start, durable, priority, settings)
        except BaseException:
            consumer.close()
            raise
        consumer.attached(remote_subscription, 0)
        return consumer

    def attach(
        self, consumer: Consumer, start: Start, durable: bool, priority: int, settings: Mapping[str, Any]
    ) -> RemoteSubscription:
        """Attach a consumer to the owner's subscription.

        Arguments that are not listed are those of `subscribe`.

        Args:
            consumer: the consumer.

        Raises:
            ReplogError: as `subscribe`.
        """
        self._check_open()
        encoded = json.dumps(settings) if settings else ""
        attached = RemoteSubscription(
            self._pool, RemoteSubscribeOptions(self.name, consumer.subscription, start, durable, priority, encoded),
            consumer,
            self._detached,
        )  # fmt: skip
        try:
            self._pool.wait(attached.attach(), self._pool.timeout)
        except BaseException:
            attached.give_up()
            raise
        with self._lock:
            self._remote_subscriptions.add(attached)
        return attached

    def _detached(self, remote_subscription: RemoteSubscription) -> None:
        with self._lock:
            self._remote_subscriptions.discard(remote_subscription)

    def create_subscription(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Create a durable subscription.

        The arguments are those of `Topic.create_subscription`.

        Raises:
            ReplogError: as `Topic.create_subscription`.
        """
        SubscriptionConfig.of(settings)
        check_mapping("properties", {} if properties is None else properties)
        arguments = {
            "start": encode_start(check_start(start)),
            "properties": dict(properties or {}),
            "settings": settings,
        }
        self._call_of("create_subscription", subscription, **arguments)

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription.

        The arguments are those of `Topic.delete_subscription`.

        Raises:
            ReplogError: as `Topic.delete_subscription`.
        """
        self._call_of("delete_subscription", subscription, force=check_bool("force", force))

    def subscriptions(self) -> list[str]:
        """List the names of the subscriptions; asks the owner."""
        return list(self._call("subscriptions"))

    def seek(self, subscription: str, start: Start) -> int:
        """Move a subscription.

        The arguments are those of `Topic.seek`.

        Returns:
            The offset at which it goes on.

        Raises:
            ReplogError: as `Topic.seek`.
        """
        return int(self._call_of("seek", subscription, start=encode_start(check_start(start))))

    def skip(self, subscription: str, messages: int) -> None:
        """Acknowledge the next unacknowledged messages of a subscription.

        The arguments are those of `Topic.skip`.

        Raises:
            ReplogError: as `Topic.skip`.
        """
        self._call_of("skip", subscription, messages=as_int("messages", messages))

    def skip_to(self, subscription: str, offset: int, *, token: str | None = None) -> None:
        """Acknowledge everything below an offset.

        The arguments are those of `Topic.skip_to`.

        Raises:
            ReplogError: as `Topic.skip_to`.
        """
        if token is not None:
            check_text("token", token)
        self._call_of("skip_to", subscription, offset=as_int("offset", offset), token=token)

    def clear(self, subscription: str) -> None:
        """Acknowledge all present messages for a subscription; see `Topic.clear`.

        Args:
            subscription: as in `Topic.clear`.

        Raises:
            ReplogError: as `Topic.clear`.
        """
        self._call_of("clear", subscription)

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
        """Send the dead letters of this dead-letter topic back, through this client.

        The arguments are those of `Topic.redrive`.

        Returns:
            How many were sent, to which topics.

        Raises:
            ReplogError: as `Topic.redrive`.
        """
        check_may_block("redrive")
        return Redrive(
            self, subscription, self._open_topic, to=to, limit=limit, where=where, dry_run=dry_run, timeout=timeout,
            on_progress=on_progress,
        ).run()  # fmt: skip

    # ---- reading --------------------------------------------------------------------------------------------

    def offsets(self) -> range:
        """Return the offsets of the messages that are kept, as `Topic.offsets` does; asks the owner.

        Raises:
            ReplogError: errors of connections.
        """
        start, end = self._call("where")
        return range(int(start), int(end))

    def __len__(self) -> int:
        """Return the number of messages that are kept; asks the owner, which `bool` does not."""
        return len(self.offsets())

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Iterate over messages as columns, without a subscription.

        The arguments are those of `Topic.read`.

        Raises:
            ReplogError: as `Topic.read`.
        """
        stop = OFFSET_MAX if end is None else as_int("end", end)
        first = int(self._call("position", start=encode_start(check_start(start))))
        return self._batches(first, min(stop, self.offsets().stop))

    def _batches(self, at: int, end: int) -> Iterator[MessageBatch]:
        while at < end:
            self._check_open()
            request = ReadRequest(at, end, READ_BYTES, self.name)
            try:
                batch = self._pool.wait(self._pool.ask_for(self.name, request, decode_delivered)).batch
            except StaleError:
                self._call("where")  # opens the topic at its owner
                continue
            if batch is None or batch.end <= at:
                raise InvalidMessageError(f"topic {self.name}: expected messages from {at} on, found none")
            yield batch.slice(*np.searchsorted(batch.offset, (at, end)).tolist())
            at = batch.end

    def read_at(self, offset: int, *, bytes_max: int = READ_BYTES) -> AppendFuture[MessageBatch | None]:
        """Read the messages at an offset and behind it, without waiting, as `Topic.read_at` does.

        The arguments are those of `Topic.read_at`.

        Returns:
            A future of the messages; None: there is none at the offset yet. It fails with the errors of `read`, and
            with StaleError if no server has opened the topic: `offsets` opens it.

        Raises:
            ClosedError: the topic was closed.
            OutOfRangeError: the offset is negative, or too high for any message.
        """
        self._check_open()
        request = ReadRequest(as_offset("offset", offset), OFFSET_MAX - 1, bytes_max, self.name)
        delivered = self._pool.ask_for(self.name, request, decode_delivered)
        return transform(delivered, lambda delivery: messages_from(offset, delivery.batch))

    def offset_of(self, start: Start) -> int:
        """Return the offset of a start; asks the owner.

        The arguments are those of `Topic.offset_of`.

        Raises:
            ReplogError: as `Topic.offset_of`.
        """
        check_may_block("offset_of")
        return int(self._call("position", start=encode_start(check_start(start))))

    # ---- the topic ------------------------------------------------------------------------------------------

    def stats(self) -> TopicStats:
        """Return backlogs, rates and consumers; asks the owner."""
        return decode_stats(TopicStats, self._call_raw("stats"))

    def internal_stats(self) -> InternalStats:
        """Return ledgers and cursors; asks the owner."""
        return decode_stats(InternalStats, self._call_raw("internal_stats"))

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings; see `Topic.configure`.

        Args:
            settings: fields of TopicConfig.

        Raises:
            ReplogError: as `Topic.configure`.
        """
        self.config.changed(settings)
        self.config = _config(self._call_raw("configure", settings=settings))

    def trim(self) -> int:
        """Remove the ledgers that nothing keeps; return the offset of the first message that is kept.

        See `Topic.trim`.
        """
        return int(self._call("trim"))

    def check_deletion(self) -> None:
        """Raise the error with which `delete` without `force` would be refused; asks the owner.

        Raises:
            ReplogError: as `Topic.check_deletion`.
        """
        try:
            self._call("check_deletion")
        except InvalidMessageError:
            return  # an owner of an older version refuses no deletion

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with its messages and subscriptions, for ever.

        The arguments are those of `Topic.delete`.

        Raises:
            ReplogError: as `Topic.delete`.
        """
        self._call("delete", **({"force": True} if check_bool("force", force) else {}))  # older owners know no force
        self.close()

    def _call_of(self, name: str, subscription: str, **arguments: Any) -> Any:
        """Call the owner for one of the subscriptions."""
        return self._call(name, subscription=check_name(subscription, "subscription"), **arguments)

    def _call(self, name: str, **arguments: Any) -> Any:
        return json.loads(self._call_raw(name, **arguments))

    def _call_raw(self, name: str, **arguments: Any) -> str:
        self._check_open()
        check_may_block(_BLOCKING.get(name, name))
        try:
            encoded = json.dumps(arguments, default=index)  # numpy's integers, too
        except (TypeError, ValueError) as error:
            raise WrongTypeError(f"topic {self.name}: {name}: {error}") from None
        request = Call(self.name, name, encoded)
        answer: CallResult = self._pool.wait(self._pool.ask_for(self.name, request, reads(CallResult)))
        return answer.result

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
    offsets_async = in_thread(offsets)
    offset_of_async = in_thread(offset_of)
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what was submitted, and close. Closing twice has no effect.

        Raises:
            BacklogFullError: a quota holds publishers: the remaining messages are not published, as their futures say.
            OutcomeUnknownError: some messages have no outcome within the client's timeout.
        """
        super().close()

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called; it may still wait for messages."""
        return self._error is not None

    def _do_close(self) -> None:
        error = ClosedError(f"the {self._label} was closed")
        with self._lock:
            publishers, remote_subscriptions = list(self._publishers.values()), list(self._remote_subscriptions)
        with ExitStack() as stack:
            stack.callback(self._on_close, self)
            for publisher, sender in publishers:
                stack.callback(sender.close, error)
                stack.callback(publisher.stop, error)
            for remote_subscription in remote_subscriptions:
                stack.callback(remote_subscription.consumer.close)
            flushed = [publisher.flush_async() for publisher, _ in publishers]
            for _, sender in publishers:
                sender.leave()
            for future in flushed:
                self._await_flushed(future)
            for _, sender in publishers:
                if sender.refused is not None:
                    raise sender.refused

    def _await_flushed(self, flushed: AppendFuture[None]) -> None:
        try:
            self._pool.wait(flushed, self._pool.close_timeout)
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"topic {self.name}: closed before all submitted messages had an outcome: {error}"
            ) from None


def _config(text: str) -> TopicConfig:
    return TopicConfig.stored(json.loads(text))


class RemoteTopics(Protocol):
    """A client, as its partitioned topics use it."""

    def open_unpartitioned(self, name: str, *, create: bool, settings: Mapping[str, Any]) -> RemoteTopic:
        """Open a topic without partitions, or one partition."""
        ...

    def remove_partitioned(self, name: str) -> None:
        """Remove the metadata of a topic whose partitions were deleted."""
        ...

    def forget(self, topic: RemotePartitionedTopic) -> None:
        """Forget a topic that was closed."""
        ...


class RemotePartitionedTopic(PartitionedHandle[RemoteTopic]):
    """A topic with partitions, owned by other processes; made by `Client.topic`: one object for each name.

    Each partition is a RemoteTopic of its own. See `PartitionedHandle` and docs/topics.md.
    """

    def __init__(self, client: RemoteTopics, name: str, partitions: int, wait: WaitFunction, timeout: float) -> None:
        """Create the topic; for `Client`, which makes it a part of itself."""
        self._client = client
        self._parts: list[RemoteTopic] = []
        super().__init__(name, partitions, wait, f"partitioned topic {name} of other processes", timeout)

    def use(self, partitions: int, settings: Mapping[str, Any]) -> None:
        """Open the partitions that are not open yet, and have existing consumers receive from new ones.

        Args:
            partitions: number of partitions that the topic has.
            settings: fields of TopicConfig.

        Raises:
            ReplogError: as `Client.topic`.
        """
        with self._changing:
            grown = range(len(self._parts), partitions)
            for partition in range(partitions):
                self._parts[partition : partition + 1] = [self._open(partition, settings)]
            self.publisher.router.partitions = partitions
            self._follow(grown)

    def _open(self, partition: int, settings: Mapping[str, Any]) -> RemoteTopic:
        return self._client.open_unpartitioned(partition_name(self.name, partition), create=True, settings=settings)

    @property
    def served(self) -> list[int]:
        """All partitions, because their owners are found."""
        return list(range(len(self._parts)))

    def partition(self, partition: int) -> RemoteTopic:
        """Return one partition.

        Args:
            partition: number of the partition, from 0.

        Raises:
            InvalidArgumentError: the topic has no such partition.
            ReplogError: as `Client.topic`.
        """
        self._check_partition(partition)
        topic = self._parts[partition] = self._open(partition, {})
        return topic

    def _serving(self, partition: int) -> RemoteTopic:
        self._check_open()
        return self._parts[partition]

    def _attached(
        self, topic: RemoteTopic, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[RemoteSubscription, int]:
        return topic.attach(part, start, options.durable, options.priority, options.settings), 0

    def _remove(self) -> None:
        self._client.remove_partitioned(self.name)

    def _do_close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._client.forget, self)
            for topic in self._parts:
                stack.callback(topic.close)
            for consumer in self._consumers():
                stack.callback(consumer.close)
