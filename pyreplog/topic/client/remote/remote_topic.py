"""RemoteTopic and RemotePartitionedTopic: topics that other processes own, used like topics of this process."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.arguments import as_int, check_bool, check_mapping, check_text
from pyreplog.clock import SystemClock
from pyreplog.errors import ClosedError, InvalidMessageError, OutcomeUnknownError, WrongTypeError
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.coroutines import in_thread, iterating, opening, publishing
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle, SubscribeOptions
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.redrive import OnProgress, Redrive, RedriveTarget, Where
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, StaleError, reads
from pyreplog.topic.client.remote.remote_subscription import RemoteSubscribeOptions, RemoteSubscription
from pyreplog.topic.client.remote.sender import EntrySender, SequenceAllocator
from pyreplog.topic.model.arguments import OFFSET_MAX, check_consumer, check_may_block
from pyreplog.topic.model.config import SubscriptionConfig, SubscriptionSettings, TopicConfig, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.interfaces import WaitFunction
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.positions import Start, all_done, check_start
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.model.stats import InternalStats, TopicStats
from pyreplog.topic.model.wire.batches import decode_delivered
from pyreplog.topic.model.wire.json_codec import decode_stats, encode_start
from pyreplog.topic.model.wire.protocol import Call, CallResult, Opened, ReadRequest

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Time, Times


READ_BYTES = 4 << 20


_BLOCKING = {"where": "stats", "position": "read"}
"""Methods by the calls that they make of the owner, where these have other names."""


class RemoteTopic(Handle):
    """Made by `Client.topic`: the same object for the same name. As `Topic`, but for what is said here: methods have
    its arguments and errors, and those of connections (PeerError). Any thread may call anything; asyncio code awaits
    what `submit` and `submit_batch` give.

    Messages that are on their way when the connection is lost fail with OutcomeUnknownError; those of a named producer
    do not where the topic deduplicates: they are sent again, for the client's `timeout`, and none is stored twice. For
    this, one client at a time publishes under a name: another one that begins ends it, with SequenceError.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        name: str,
        opened: Opened,
        on_close: Callable[[RemoteTopic], object],
        open_topic: Callable[[str], RedriveTarget],
    ) -> None:
        """For `Client`, which makes this a part of itself. on_close: called when it was closed. open_topic: another
        topic of the client, which exists."""
        self.name = name
        self._pool, self._on_close, self._open_topic = pool, on_close, open_topic
        self._entry_bytes_max = opened.entry_bytes_max
        self.config = _config(opened.config)
        self._lock = threading.Lock()  # of the tables
        self._opening = threading.Lock()  # while a producer is made
        self._publishers: dict[str, tuple[Publisher, EntrySender]] = {}
        self._users: Counter[str] = Counter()  # how many have each of them
        self._kept: dict[str, Publisher] = {}  # of those that were named to `publish`: they are, for good
        self._remote_subscriptions: set[RemoteSubscription] = set()
        self._publisher = self._make_publisher("")
        super().__init__(f"topic {name}, at another process")

    def _make_publisher(self, producer: str) -> Publisher:
        """producer: "" unless its messages are numbered here. Waits for the owner if they are."""
        numbers = SequenceAllocator() if producer else None
        sender = EntrySender(
            self._pool, self.name, producer, None if numbers is None else lambda said: numbers.seed(said.last_sequence)
        )
        if numbers is not None:
            self._pool.wait(sender.open(), self._pool.timeout)
        made = Publisher(
            self.name, sender, self._pool, SystemClock(), self.config, entry_bytes_max=self._entry_bytes_max,
            producers=numbers, timeout=self._pool.timeout,
        )  # fmt: skip
        with self._lock:
            self._publishers[producer] = made, sender
            self._users[producer] += 1
        return made

    def _publisher_of(self, producer: str | None) -> Publisher:
        self._check_open()
        if producer is None or not self.config.deduplicate:
            return self._publisher
        found = self._kept.get(check_name(producer))
        if found is None:
            self._kept[producer] = found = self._join(producer)
        return found

    def _join(self, producer: str) -> Publisher:
        """A producer's, for one more user; the first one waits for the owner."""
        found = self._joined(producer)
        if found is not None:
            return found
        check_may_block("producer")
        with self._opening:
            return self._joined(producer) or self._make_publisher(producer)

    def _joined(self, producer: str) -> Publisher | None:
        with self._lock:
            if producer not in self._publishers:
                return None
            self._users[producer] += 1
            return self._publishers[producer][0]

    def _leave(self, producer: str) -> None:
        """One user less; behind the last one nothing is kept of it, here and at the owner's connection."""
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
        """As `Topic.producer`; waits for the owner, unless there is one of that name. Close it: a server takes 4,096 of
        a client."""
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
        timeout: float | None = None,
    ) -> int:
        """As `Publisher.publish`."""
        return self._publisher_of(producer).publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
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
        timeout: float | None = None,
    ) -> AppendFuture[int]:
        """As `Publisher.submit`. A producer that is new to this client is waited for."""
        return self._publisher_of(producer).submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
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
        timeout: float | None = None,
    ) -> range:
        """As `Publisher.publish_batch`. RecordTooLargeError: it has more than about 30 MiB."""
        return self._publisher_of(producer).publish_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, timeout=timeout,
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
        timeout: float | None = None,
    ) -> AppendFuture[range]:
        """As `Publisher.submit_batch`. A producer that is new to this client is waited for."""
        return self._publisher_of(producer).submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, timeout=timeout,
            producer=producer,
        )  # fmt: skip

    async def _awaited(self, producer: str | None) -> Publisher:
        """As _publisher_of; a thread waits for the owner."""
        if producer is None or not self.config.deduplicate or producer in self._kept:
            return self._publisher_of(producer)
        return await asyncio.to_thread(self._publisher_of, producer)

    publish_async = publishing(submit, _awaited)
    """As `Topic.publish_async`."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """As `Topic.publish_batch_async`."""

    def room(self) -> AppendFuture[None]:
        """As `Publisher.room`, of what has no producer's name."""
        return self._publisher.room()

    def flush(self, timeout: float | None = None) -> None:
        """As `Topic.flush`, of all that this client publishes to the topic."""
        check_may_block("flush")
        self._publisher.wait(self.flush_async(), timeout)

    def flush_async(self) -> AppendFuture[None]:
        """As `Topic.flush_async`, of all that this client publishes to the topic."""
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
        """As `Topic.subscribe`. When the connection is lost, the consumer goes on as soon as there is one again: what
        it has not acknowledged comes again. Of one that is not durable what comes is what follows."""
        self._check_open()
        check_may_block("subscribe")
        check_name(subscription, "subscription")
        check_start(start)
        check_consumer(name, durable, priority)
        SubscriptionConfig.of(settings)
        consumer = Consumer(self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", queue=queue)
        try:
            there = self.attach(consumer, start, durable, priority, settings)
        except BaseException:
            consumer.close()
            raise
        consumer.attached(there, 0)
        return consumer

    def attach(
        self, consumer: Consumer, start: Start, durable: bool, priority: int, settings: Mapping[str, Any]
    ) -> RemoteSubscription:
        """Have the owner's subscription take a consumer; see `subscribe`."""
        self._check_open()
        wanted = json.dumps(settings) if settings else ""
        attached = RemoteSubscription(
            self._pool, RemoteSubscribeOptions(self.name, consumer.subscription, start, durable, priority, wanted),
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
        SubscriptionConfig.of(settings)
        check_mapping("properties", {} if properties is None else properties)
        given = {"start": encode_start(check_start(start)), "properties": dict(properties or {}), "settings": settings}
        self._call_of("create_subscription", subscription, **given)

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        self._call_of("delete_subscription", subscription, force=check_bool("force", force))

    def subscriptions(self) -> list[str]:
        return list(self._call("subscriptions"))

    def seek(self, subscription: str, start: Start) -> int:
        return int(self._call_of("seek", subscription, start=encode_start(check_start(start))))

    def skip(self, subscription: str, messages: int) -> None:
        self._call_of("skip", subscription, messages=as_int("messages", messages))

    def skip_to(self, subscription: str, offset: int, *, token: str | None = None) -> None:
        if token is not None:
            check_text("token", token)
        self._call_of("skip_to", subscription, offset=as_int("offset", offset), token=token)

    def clear(self, subscription: str) -> None:
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
        """As `Topic.redrive`. The dead letters go through this client."""
        check_may_block("redrive")
        return Redrive(
            self, subscription, self._open_topic, to=to, limit=limit, where=where, dry_run=dry_run, timeout=timeout,
            on_progress=on_progress,
        ).run()  # fmt: skip

    # ---- reading --------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Asks the owner."""
        return int(self._call("where")[0])

    @property
    def end(self) -> int:
        """Asks the owner."""
        return int(self._call("where")[1])

    def __len__(self) -> int:
        """Asks the owner; `bool` does not."""
        start, end = self._call("where")
        return int(end) - int(start)

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """As `Topic.read`."""
        stop = OFFSET_MAX if end is None else as_int("end", end)
        first = int(self._call("position", start=encode_start(check_start(start))))
        return self._batches(first, min(stop, self.end))

    def _batches(self, at: int, end: int) -> Iterator[MessageBatch]:
        while at < end:
            self._check_open()
            request = ReadRequest(at, end, READ_BYTES, self.name)
            try:
                batch = self._pool.wait(self._pool.ask_for(self.name, request, decode_delivered)).batch
            except StaleError:
                self._call("where")  # opens it there
                continue
            if batch is None or batch.end <= at:
                raise InvalidMessageError(f"topic {self.name}: expected messages from {at} on, found none")
            yield batch.slice(*np.searchsorted(batch.offset, (at, end)).tolist())
            at = batch.end

    # ---- how it is ------------------------------------------------------------------------------------------

    def stats(self) -> TopicStats:
        return decode_stats(TopicStats, self._call_raw("stats"))

    def internal_stats(self) -> InternalStats:
        return decode_stats(InternalStats, self._call_raw("internal_stats"))

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        self.config.changed(settings)
        self.config = _config(self._call_raw("configure", settings=settings))

    def trim(self) -> int:
        """As `Topic.trim`: returns the offset of the first message left."""
        return int(self._call("trim"))

    def delete(self) -> None:
        self._call("delete")
        self.close()

    def _call_of(self, name: str, subscription: str, **arguments: Any) -> Any:
        """Of one of its subscriptions."""
        return self._call(name, subscription=check_name(subscription, "subscription"), **arguments)

    def _call(self, name: str, **arguments: Any) -> Any:
        return json.loads(self._call_raw(name, **arguments))

    def _call_raw(self, name: str, **arguments: Any) -> str:
        self._check_open()
        check_may_block(_BLOCKING.get(name, name))
        try:
            given = json.dumps(arguments, default=index)  # of numpy's integers
        except (TypeError, ValueError) as error:
            raise WrongTypeError(f"topic {self.name}: {name}: {error}") from None
        request = Call(self.name, name, given)
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
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what was submitted, and let go. Closing twice is fine.

        Errors: BacklogFullError, a quota holds publishers: what is not published yet will not be, as its futures say;
        OutcomeUnknownError, there was none within the client's timeout.
        """
        super().close()

    def _let_go(self) -> None:
        error = ClosedError(f"the {self._what} was closed")
        with self._lock:
            publishers, remote_subscriptions = list(self._publishers.values()), list(self._remote_subscriptions)
        with ExitStack() as rest:
            rest.callback(self._on_close, self)
            for publisher, sender in publishers:
                rest.callback(sender.close, error)
                rest.callback(publisher.stop, error)
            for remote_subscription in remote_subscriptions:
                rest.callback(remote_subscription.consumer.close)
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
            self._pool.wait(flushed, self._pool.patience)
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"topic {self.name}: closed before all that was submitted had an outcome: {error}"
            ) from None


def _config(text: str) -> TopicConfig:
    return TopicConfig.stored(json.loads(text))


class RemoteTopics(Protocol):
    """A client, as far as its partitioned topics need it."""

    def one(self, name: str, *, create: bool, settings: Mapping[str, Any]) -> RemoteTopic:
        """A topic that has no partitions, or is one."""
        ...

    def remove_partitioned(self, name: str) -> None:
        """A topic's partitions were deleted."""
        ...

    def forget(self, topic: RemotePartitionedTopic) -> None:
        """It was closed."""
        ...


class RemotePartitionedTopic(PartitionedHandle[RemoteTopic]):
    """Made by `Client.topic`: the same object for the same name. As `PartitionedHandle`; each partition is a
    RemoteTopic of its own, at whichever server owns it."""

    def __init__(self, client: RemoteTopics, name: str, partitions: int, wait: WaitFunction, timeout: float) -> None:
        """For `Client`, which makes this a part of itself."""
        self._client = client
        self._parts: list[RemoteTopic] = []
        super().__init__(name, partitions, wait, f"partitioned topic {name}, at other processes", timeout)

    def use(self, partitions: int, settings: Mapping[str, Any]) -> None:
        """Open so many partitions, those that are not; for who makes it. Consumers that there are receive from new
        ones, too. Errors: as `Client.topic`."""
        with self._changing:
            grown = range(len(self._parts), partitions)
            for partition in range(partitions):
                self._parts[partition : partition + 1] = [self._open(partition, settings)]
            self.publisher.router.partitions = partitions
            self._follow(grown)

    def _open(self, partition: int, settings: Mapping[str, Any]) -> RemoteTopic:
        return self._client.one(partition_name(self.name, partition), create=True, settings=settings)

    @property
    def served(self) -> list[int]:
        """All of them: their owners are found."""
        return list(range(len(self._parts)))

    def partition(self, partition: int) -> RemoteTopic:
        """One of them. Errors: those of `Client.topic`; InvalidArgumentError."""
        self._check_partition(partition)
        found = self._parts[partition] = self._open(partition, {})
        return found

    def _serving(self, partition: int) -> RemoteTopic:
        self._check_open()
        return self._parts[partition]

    def _joined(
        self, topic: RemoteTopic, part: PartitionConsumer, start: Any, options: SubscribeOptions
    ) -> tuple[RemoteSubscription, int]:
        return topic.attach(part, start, options.durable, options.priority, options.settings), 0

    def _remove(self) -> None:
        self._client.remove_partitioned(self.name)

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self._client.forget, self)
            for topic in self._parts:
                rest.callback(topic.close)
            for consumer in list(self._options):
                rest.callback(consumer.close)
