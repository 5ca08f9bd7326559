"""PartitionedProducer: publishes to a partitioned topic under a name."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Closeable
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.partitions.partition_topic import PartitionTopic
from pyreplog.topic.client.partitions.partitioned_consumer import left
from pyreplog.topic.client.partitions.partitioned_publisher import PartitionedPublisher
from pyreplog.topic.model.arguments import check_may_block
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.partition_offset import PartitionOffset, PartitionRange
from pyreplog.topic.model.positions import all_done

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.client.publishing.producer import Producer
    from pyreplog.topic.model.times import Time, Times


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
