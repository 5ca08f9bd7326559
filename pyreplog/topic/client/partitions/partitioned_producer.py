"""Publishes to a partitioned topic, by key or to the partitions in turn, with or without a producer name.

Batches are split by partition.
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

from pyreplog._native.topic.partitioning import gather
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.errors import ClosedError, InvalidArgumentError, ReplogError, TopicOwnedError
from pyreplog.future import AppendFuture, all_done, as_timeout, set_exception, set_result, then
from pyreplog.handles import Closeable
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.partitions.partition_topic import PartitionSink, PartitionTopic
from pyreplog.topic.client.partitions.partitioned_consumer import remaining_s
from pyreplog.topic.client.publishing.delivery_times import check_delivery, delivery_times
from pyreplog.topic.client.publishing.outgoing import MessageColumns
from pyreplog.topic.model.dedup import check_sequences
from pyreplog.topic.model.interfaces import WaitFunction
from pyreplog.topic.model.positions import PartitionOffset, PartitionRange
from pyreplog.topic.model.routing import Router
from pyreplog.topic.model.times import as_times_us
from pyreplog.topic_names import check_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.client.publishing.producer import Producer
    from pyreplog.topic.model.times import Times


T = TypeVar("T")
Rows = NDArray[np.int64]


class PartitionBatch(NamedTuple):
    """The messages of a batch for one partition."""

    partition: int
    batch: MessageColumns
    sequences: NDArray[np.int64] | None


def split_batch(router: Router, batch: MessageColumns, sequences: ArrayLike | None) -> list[PartitionBatch]:
    """Split a batch by key; messages without a key go to the same partition. A batch without keys is not split.

    Raises WrongTypeError; InvalidArgumentError; SequenceError if the sequences do not ascend.
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


def _portions(batch: MessageColumns, groups: list[Rows], numbers: NDArray[np.int64] | None) -> Iterator[PartitionBatch]:
    for partition, rows in enumerate(groups):
        if len(rows):
            part = MessageColumns(*(_take_rows(column, rows, at < 2) for at, column in enumerate(batch)))
            yield PartitionBatch(partition, part, None if numbers is None else numbers[rows])


def _check_counts(batch: MessageColumns, count: int, keys: int) -> None:
    """Check that all columns have as many rows as there are values, before anything is published."""
    row_counts = {"keys": keys}
    for name in ("properties", "event_times", "deliver_at"):
        column = getattr(batch, name)
        if column is not None and hasattr(column, "__len__"):
            row_counts[name] = len(column)
    for name, rows in row_counts.items():
        if rows != count:
            raise InvalidArgumentError(f"{name}: expected {count}, one per value, found {rows}")


def _is_column(items: Any) -> bool:
    """Return whether items are a column of bytes, and no sequence of objects."""
    if isinstance(items, tuple):
        return len(items) == 2 and not isinstance(items[0], bytes | bytearray | memoryview | None)
    return hasattr(items, "dtype") or hasattr(items, "buffers")


def _take_rows(column: Any, rows: Rows, is_bytes: bool) -> Any:
    """Return some rows of a column of any kind."""
    if column is None:
        return None
    if is_bytes and _is_column(column):
        return gather(column, rows)
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]


class PartitionedPublisher:
    """Publishes to a partitioned topic; threads and asyncio as for `Publisher`.

    Messages of one key go to one partition, in order: the partition that Pulsar's clients with murmur3 choose. A
    message without a key goes to the next partition; those of a batch go there together. Each partition numbers the
    messages of a producer by itself; sequences that a caller passes only need to ascend.

    Args:
        router: chooses partitions.
        serving: returns the topic of a partition, or a producer of it; raises an error if it is not served here.
        wait: waits for outcomes.
        timeout: seconds that calls wait by default; None: without limit.
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> PartitionOffset:
        """Publish one message, and wait until it is confirmed.

        The arguments are those of `Publisher.publish`.

        Returns:
            The partition and the offset of the message.

        Raises:
            TopicOwnedError: another process owns the message's partition.
            ReplogError: as `Publisher.publish`.
        """
        check_may_block("publish")
        partition = self.router.route(key)
        offset = self._serving(partition).publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[PartitionOffset]:
        """Publish one message without waiting; return the future of its place.

        The arguments are those of `Publisher.submit`.

        Raises:
            ReplogError: as `publish`.
        """
        partition = self.router.route(key)
        offset_future = self._serving(partition).submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
            **_named(producer),
        )  # fmt: skip
        done: AppendFuture[PartitionOffset] = AppendFuture()
        then(offset_future, done, lambda offset: set_result(done, PartitionOffset(partition, offset)))
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[PartitionRange]:
        """Publish several messages, and wait until all are confirmed.

        The arguments are those of `Publisher.publish_batch`.

        Returns:
            The offsets in each partition that got messages, ascending by partition.

        Raises:
            ReplogError: as `publish`.
        """
        check_may_block("publish_batch")
        seconds = self.timeout if timeout is None else as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        future = self.submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, timeout=timeout,
            producer=producer,
        )  # fmt: skip
        return self.wait(future, remaining_s(deadline))

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
    ) -> AppendFuture[list[PartitionRange]]:
        """Publish several messages without waiting; return the future of their places.

        The arguments are those of `Publisher.submit_batch`.

        Raises:
            ReplogError: as `publish`; errors after some partitions have taken their messages are those of the future.
        """
        due = None if check_delivery(deliver_at, delay) is None else delivery_times(deliver_at)
        batch = MessageColumns.of(values, keys, properties, as_times_us("event_times", event_times), due)
        portions = split_batch(self.router, batch, sequences)
        topics = [self._serving(portion.partition) for portion in portions]
        futures: list[AppendFuture[range]] = []
        for topic, portion in zip(topics, portions, strict=True):
            try:
                futures.append(_submit(topic, portion, delay, producer, replicate_to, timeout))
            except ReplogError as error:
                if not futures:
                    raise
                futures.append(AppendFuture())
                set_exception(futures[-1], error)
                break
        done: AppendFuture[list[PartitionRange]] = AppendFuture()
        parts = [portion.partition for portion in portions]
        then(all_results(futures), done, lambda ranges: set_result(done, list(map(PartitionRange, parts, ranges))))
        return done

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as all served partitions have room; see `Publisher.room`."""
        sinks = []
        for partition in range(self.router.partitions):
            with suppress(TopicOwnedError):
                sinks.append(self._serving(partition))
        return all_done([sink.room() for sink in sinks])

    async def _awaited(self, producer: str | None) -> PartitionedPublisher:
        return self

    publish_async = publishing(submit, _awaited)
    """Do what `publish` does, in a coroutine."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """Do what `publish_batch` does, in a coroutine."""


def _named(producer: str | None) -> dict[str, Any]:
    """Return the keyword of a producer name for a topic; a producer has a name already."""
    return {} if producer is None else {"producer": producer}


def _submit(
    topic: PartitionSink,
    portion: PartitionBatch,
    delay: float | None,
    producer: str | None,
    replicate_to: Sequence[str] | None,
    timeout: float | None,
) -> AppendFuture[range]:
    batch = portion.batch
    return topic.submit_batch(
        batch.values, batch.keys, properties=batch.properties, event_times=batch.event_times,
        deliver_at=batch.deliver_at, delay=delay, sequences=portion.sequences,
        replicate_to=replicate_to, timeout=timeout, **_named(producer),
    )  # fmt: skip


def all_results(futures: Sequence[AppendFuture[T]]) -> AppendFuture[list[T]]:
    """Return a future of all results, done once all have an outcome; it fails with the first error in order."""
    done: AppendFuture[list[T]] = AppendFuture()

    def on_done(_: AppendFuture[T] | None) -> None:
        if not all(future.done() for future in futures):
            return
        errors = (error for future in futures if (error := future.exception()) is not None)
        error = next(errors, None)
        if error is not None:
            set_exception(done, error)
        else:
            set_result(done, [future.result() for future in futures])

    for future in futures:
        future.add_done_callback(on_done)
    if not futures:
        on_done(None)
    return done


class PartitionedProducer(Closeable):
    """A named producer of a partitioned topic; made by `PartitionedHandle.producer`.

    Any thread may use it; asyncio code as for `Producer`. If the topic deduplicates, each partition goes on with its
    numbers. An application whose source has numbers passes these, and after a crash begins behind the lowest of
    `last_sequences`: messages that are stored already are dropped.
    """

    def __init__(self, name: str, publisher: PartitionedPublisher, serving: Callable[[int], PartitionTopic]) -> None:
        """Create a producer; for `PartitionedHandle.producer`.

        Args:
            name: 1 to 200 bytes of UTF-8 without control characters.
            publisher: publisher of the topic.
            serving: returns the topic of a partition.

        Raises:
            WrongTypeError: the name is no text.
            InvalidArgumentError: the name is invalid.
        """
        self.name = check_name(name)
        self._serving = serving
        self._publisher = PartitionedPublisher(publisher.router, self.part, publisher.wait, publisher.timeout)
        self._lock = threading.Lock()  # guards all below
        self._parts: dict[int, tuple[PartitionTopic, Producer]] = {}
        self._error: ReplogError | None = None

    def part(self, partition: int) -> Producer:
        """Return the producer of a partition.

        Args:
            partition: number of the partition, from 0.

        Raises:
            TopicOwnedError: another process owns the partition.
            ClosedError: this producer was closed.
            ReplogError: as `Topic.producer`.
        """
        topic, known = self._serving(partition), self._parts.get(partition)
        if known is not None and known[0] is topic:  # otherwise the partition was closed, and opened again
            return known[1]
        producer = topic.producer(self.name)  # may wait, so without the lock
        with self._lock:
            known = self._parts.get(partition)
            if self._error is None and (known is None or known[0] is not topic):
                self._parts[partition] = topic, producer
                return producer
        producer.close()  # another thread was faster, or has closed this
        if self._error is not None:
            raise self._error
        return self.part(partition)

    def last_sequences(self) -> list[int]:
        """Return the highest stored number in each partition; -1: none, or the topic does not deduplicate.

        Raises:
            TopicOwnedError: another process owns a partition.
            ClosedError: the producer was closed.
        """
        check_may_block("last_sequences")
        return [self.part(partition).last_sequence for partition in range(self._publisher.router.partitions)]

    last_sequences_async = in_thread(last_sequences)

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
    ) -> PartitionOffset:
        """Publish one message, and wait until it is confirmed.

        The arguments are those of `Publisher.publish`.

        Returns:
            The partition and the offset of the message.

        Raises:
            ReplogError: as `PartitionedPublisher.publish`.
        """
        return self._open.publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[PartitionOffset]:
        """Publish one message without waiting; return the future of its place.

        The arguments are those of `Publisher.submit`.

        Raises:
            ReplogError: as `PartitionedPublisher.submit`.
        """
        return self._open.submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, timeout=timeout,
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[PartitionRange]:
        """Publish several messages, and wait until all are confirmed.

        The arguments are those of `Publisher.publish_batch`.

        Returns:
            The offsets in each partition that got messages, ascending by partition.

        Raises:
            ReplogError: as `PartitionedPublisher.publish_batch`.
        """
        return self._open.publish_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, timeout=timeout,
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[list[PartitionRange]]:
        """Publish several messages without waiting; return the future of their places.

        The arguments are those of `Publisher.submit_batch`.

        Raises:
            ReplogError: as `PartitionedPublisher.submit_batch`.
        """
        return self._open.submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, timeout=timeout,
        )  # fmt: skip

    async def _awaited(self, producer: str | None) -> PartitionedPublisher:
        return self._open

    publish_async = publishing(submit, _awaited)
    """Do what `publish` does, in a coroutine."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """Do what `publish_batch` does, in a coroutine."""

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages of any key.

        Raises:
            ClosedError: the producer was closed.
        """
        return self._open.room()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message submitted so far has an outcome, in all partitions that it has published to.

        Args:
            timeout: seconds for all partitions together; None: the timeout of the client; without limit for a topic of
                this process.

        Raises:
            OutcomeUnknownError: the time ran out.
            ClosedError: the producer was closed.
        """
        check_may_block("flush")
        seconds = self._publisher.timeout if timeout is None else as_timeout(timeout)
        self._publisher.wait(self.flush_async(), seconds)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every message submitted so far has an outcome.

        Raises:
            ClosedError: the producer was closed.
        """
        if self._error is not None:
            raise self._error
        return all_done([producer.flush_async() for producer in self._all()])

    def close(self, timeout: float | None = None) -> None:
        """Close the producer, and wait until every message submitted so far has an outcome; see `Producer.close`.

        Args:
            timeout: seconds for all partitions together; None: as in `Producer.close`.

        Raises:
            OutcomeUnknownError: the time ran out.
        """
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._error = self._error or ClosedError(f"the producer {self.name!r} was closed")
        if sys.is_finalizing():  # no thread runs that could publish
            return
        producers = self._all()
        for producer in producers:  # first all: lingering messages are sent before the first wait
            with suppress(ClosedError):
                producer.flush_async()
        with ExitStack() as stack:
            for producer in producers:
                stack.callback(lambda producer=producer: producer.close(remaining_s(deadline)))  # type: ignore[misc]

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
