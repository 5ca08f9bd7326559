"""Publishes to a partitioned topic, by key or to the partitions in turn, with or without a producer name. A batch is
cut by partition.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.spread import gather
from pyreplog.errors import ClosedError, InvalidArgumentError, ReplogError, TopicOwnedError
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Closeable
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.partitions.partition_topic import PartitionSink, PartitionTopic
from pyreplog.topic.client.partitions.partitioned_consumer import left
from pyreplog.topic.client.publishing.delivery_times import check_delivery, delivery_times
from pyreplog.topic.client.publishing.outgoing import Outgoing
from pyreplog.topic.model.arguments import check_may_block
from pyreplog.topic.model.dedup import check_sequences
from pyreplog.topic.model.interfaces import WaitFunction
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.positions import PartitionOffset, PartitionRange, all_done, then
from pyreplog.topic.model.routing import Router
from pyreplog.topic.model.times import as_times_us

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.client.publishing.producer import Producer
    from pyreplog.topic.model.times import Time, Times


T = TypeVar("T")
Rows = NDArray[np.int64]


class PartitionBatch(NamedTuple):
    """What one partition gets of a batch."""

    partition: int
    batch: Outgoing
    sequences: NDArray[np.int64] | None


def split_batch(router: Router, batch: Outgoing, sequences: ArrayLike | None) -> list[PartitionBatch]:
    """By key; messages without one go to the same partition. A batch without keys stays as it is.

    Errors: WrongTypeError, InvalidArgumentError; SequenceError, the sequences do not ascend.
    """
    count = batch.messages
    numbers = None if sequences is None else np.asarray(check_sequences(router.topic, sequences, count), np.int64)
    if not count:
        return []
    if batch.keys is None:
        return [PartitionBatch(router.route(None), batch, numbers)]
    split = router.split_column if _is_column(batch.keys) else router.split
    groups = split(batch.keys)
    _check_counts(batch, count, sum(map(len, groups)))
    return list(_portions(batch, groups, numbers))


def _portions(batch: Outgoing, groups: list[Rows], numbers: NDArray[np.int64] | None) -> Iterator[PartitionBatch]:
    for partition, rows in enumerate(groups):
        if len(rows):
            part = Outgoing(*(_taken(column, rows, at < 2) for at, column in enumerate(batch)))
            yield PartitionBatch(partition, part, None if numbers is None else numbers[rows])


def _check_counts(batch: Outgoing, count: int, keys: int) -> None:
    """Before anything is published of it."""
    found = {"keys": keys}
    for name in ("properties", "event_times", "deliver_at"):
        column = getattr(batch, name)
        if column is not None and hasattr(column, "__len__"):
            found[name] = len(column)
    for name, rows in found.items():
        if rows != count:
            raise InvalidArgumentError(f"{name}: expected {count}, one per value, found {rows}")


def _is_column(items: Any) -> bool:
    """Of bytes, and no sequence of objects."""
    if isinstance(items, tuple):
        return len(items) == 2 and not isinstance(items[0], bytes | bytearray | memoryview | None)
    return hasattr(items, "dtype") or hasattr(items, "buffers")


def _taken(column: Any, rows: Rows, is_bytes: bool) -> Any:
    """These rows of a column, in whatever form it is."""
    if column is None:
        return None
    if is_bytes and _is_column(column):
        return gather(column, rows)
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]


class PartitionedPublisher:
    """What a partitioned topic is published with; threads and asyncio as of `Publisher`.

    Messages of one key go to one partition, in order, the same that Pulsar's clients with murmur3 choose; a message
    without a key goes to the next partition, and those of a batch together. Each partition numbers a producer's
    messages by itself; sequences that are given need only ascend.

    serving: the topic of a partition, or a producer of it; it raises why there is none here. wait: for outcomes.
    timeout: as of `Publisher`.
    """

    def __init__(
        self,
        router: Router,
        serving: Callable[[int], PartitionSink],
        wait: WaitFunction,
        timeout: float | None = None,
    ) -> None:
        self.router, self.wait, self.timeout = router, wait, timeout
        self._serving = serving

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
    ) -> PartitionOffset:
        """As `Publisher.publish`. TopicOwnedError: another process has the message's partition."""
        check_may_block("publish")
        partition = self.router.route(key)
        offset = self._serving(partition).publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
            **_named(producer),
        )  # fmt: skip
        return PartitionOffset(partition, offset)

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
    ) -> AppendFuture[PartitionOffset]:
        """As `Publisher.submit`. Errors: as publish."""
        partition = self.router.route(key)
        coming = self._serving(partition).submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
            **_named(producer),
        )  # fmt: skip
        done: AppendFuture[PartitionOffset] = AppendFuture()
        then(coming, done, lambda offset: done.complete(PartitionOffset(partition, offset)))
        return done

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
    ) -> list[PartitionRange]:
        """As `Publisher.publish_batch`; returns the offsets in each partition that got some, ascending."""
        check_may_block("publish_batch")
        seconds = self.timeout if timeout is None else as_timeout(timeout)
        until = None if seconds is None else time.monotonic() + seconds
        future = self.submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, timeout=timeout,
            producer=producer,
        )  # fmt: skip
        return self.wait(future, left(until))

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
    ) -> AppendFuture[list[PartitionRange]]:
        """As `Publisher.submit_batch`; the AppendFuture gives what publish_batch returns. Errors: as publish; those of
        a partition when others have taken their part are the AppendFuture's."""
        due = None if check_delivery(deliver_at, delay) is None else delivery_times(deliver_at)
        batch = Outgoing.of(values, keys, properties, as_times_us("event_times", event_times), due)
        portions = split_batch(self.router, batch, sequences)
        topics = [self._serving(portion.partition) for portion in portions]
        coming: list[AppendFuture[range]] = []
        for topic, portion in zip(topics, portions, strict=True):
            try:
                coming.append(_submit(topic, portion, delay, producer, timeout))
            except ReplogError as error:
                if not coming:
                    raise
                coming.append(AppendFuture())
                coming[-1].fail(error)
                break
        done: AppendFuture[list[PartitionRange]] = AppendFuture()
        parts = [portion.partition for portion in portions]
        then(gathered(coming), done, lambda found: done.complete(list(map(PartitionRange, parts, found))))
        return done

    def room(self) -> AppendFuture[None]:
        """As `Publisher.room`, of all partitions that are served."""
        sinks = []
        for partition in range(self.router.partitions):
            with suppress(TopicOwnedError):
                sinks.append(self._serving(partition))
        return all_done([sink.room() for sink in sinks])

    async def _awaited(self, producer: str | None) -> PartitionedPublisher:
        return self

    publish_async = publishing(submit, _awaited)
    """As `Publisher.publish_async`."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """As `Publisher.publish_batch_async`."""


def _named(producer: str | None) -> dict[str, Any]:
    """What a topic is told; a producer has its name."""
    return {} if producer is None else {"producer": producer}


def _submit(
    topic: PartitionSink,
    portion: PartitionBatch,
    delay: float | None,
    producer: str | None,
    timeout: float | None,
) -> AppendFuture[range]:
    batch = portion.batch
    return topic.submit_batch(
        batch.values, batch.keys, properties=batch.properties, event_times=batch.event_times,
        deliver_at=batch.deliver_at, delay=delay, sequences=portion.sequences, timeout=timeout, **_named(producer),
    )  # fmt: skip


def gathered(futures: Sequence[AppendFuture[T]]) -> AppendFuture[list[T]]:
    """The results of all, once all have an outcome; the error of the first that has one."""
    done: AppendFuture[list[T]] = AppendFuture()

    def came(_: AppendFuture[T] | None) -> None:
        if not all(future.done() for future in futures):
            return
        errors = (error for future in futures if (error := future.exception()) is not None)
        error = next(errors, None)
        if error is not None:
            done.fail(error)
        else:
            done.complete([future.result() for future in futures])

    for future in futures:
        future.add_done_callback(came)
    if not futures:
        came(None)
    return done


class PartitionedProducer(Closeable):
    """A named producer. Where the topic deduplicates, each partition goes on with its numbers; threads and asyncio as
    of `Producer`.

    Who publishes from a source that has numbers of its own gives these, and after a crash begins again behind the
    lowest of `last_sequences`: what is there already is dropped.
    """

    def __init__(self, name: str, publisher: PartitionedPublisher, serving: Callable[[int], PartitionTopic]) -> None:
        """name: 1 to 200 bytes of UTF-8 without control characters. publisher: of the topic; serving: its partitions.
        Errors: WrongTypeError, InvalidArgumentError."""
        self.name = check_name(name)
        self._serving = serving
        self._publisher = PartitionedPublisher(publisher.router, self.part, publisher.wait, publisher.timeout)
        self._lock = threading.Lock()  # of all below
        self._parts: dict[int, tuple[PartitionTopic, Producer]] = {}
        self._error: ReplogError | None = None

    def part(self, partition: int) -> Producer:
        """Its producer of a partition. Errors: TopicOwnedError; ClosedError; those of `Topic.producer`."""
        topic, there = self._serving(partition), self._parts.get(partition)
        if there is not None and there[0] is topic:  # else it was closed, and opened again
            return there[1]
        made = topic.producer(self.name)  # which may wait, so with no lock held
        with self._lock:
            there = self._parts.get(partition)
            if self._error is None and (there is None or there[0] is not topic):
                self._parts[partition] = topic, made
                return made
        made.close()  # another thread was here first, or has closed this
        if self._error is not None:
            raise self._error
        return self.part(partition)

    @property
    def last_sequences(self) -> list[int]:
        """Of each partition: its highest number that is stored; -1: none, or the topic does not deduplicate."""
        return [self.part(partition).last_sequence for partition in range(self._publisher.router.partitions)]

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
        timeout: float | None = None,
    ) -> PartitionOffset:
        """As `PartitionedPublisher.publish`."""
        return self._open.publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
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
        timeout: float | None = None,
    ) -> AppendFuture[PartitionOffset]:
        """As `PartitionedPublisher.submit`."""
        return self._open.submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, timeout=timeout,
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
        timeout: float | None = None,
    ) -> list[PartitionRange]:
        """As `PartitionedPublisher.publish_batch`."""
        return self._open.publish_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, timeout=timeout,
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
        timeout: float | None = None,
    ) -> AppendFuture[list[PartitionRange]]:
        """As `PartitionedPublisher.submit_batch`."""
        return self._open.submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, timeout=timeout,
        )  # fmt: skip

    async def _awaited(self, producer: str | None) -> PartitionedPublisher:
        return self._open

    publish_async = publishing(submit, _awaited)
    """As `publish`, for coroutines."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """As `publish_batch`, for coroutines."""

    def room(self) -> AppendFuture[None]:
        """As `PartitionedHandle.room`. ClosedError: it was closed."""
        return self._open.room()

    def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`, of all partitions that it has published to; timeout: for all of them together."""
        check_may_block("flush")
        seconds = self._publisher.timeout if timeout is None else as_timeout(timeout)
        self._publisher.wait(self.flush_async(), seconds)

    def flush_async(self) -> AppendFuture[None]:
        """As `Producer.flush_async`, of all partitions that it has published to."""
        if self._error is not None:
            raise self._error
        return all_done([producer.flush_async() for producer in self._all()])

    def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`; timeout: for all partitions together, unless it is None."""
        seconds = as_timeout(timeout)
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._error = self._error or ClosedError(f"the producer {self.name!r} was closed")
        if sys.is_finalizing():  # no thread publishes any more
            return
        producers = self._all()
        for producer in producers:  # all at a time: what lingers is sent before the first one is waited for
            with suppress(ClosedError):
                producer.flush_async()
        with ExitStack() as rest:
            for producer in producers:
                rest.callback(lambda producer=producer: producer.close(left(until)))  # type: ignore[misc]

    def _all(self) -> list[Producer]:
        with self._lock:
            return [producer for _, producer in self._parts.values()]

    @property
    def _open(self) -> PartitionedPublisher:
        if self._error is not None:
            raise self._error
        return self._publisher

    def __repr__(self) -> str:
        return f"<PartitionedProducer {self.name!r} of topic {self._publisher.router.topic!r}>"
