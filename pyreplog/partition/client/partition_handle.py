"""PartitionHandle: one partition of a topic, with the methods of a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from pyreplog._native.kafka.record_set import ConsumerBatch, ConsumerRecord, read_record_set
from pyreplog.arguments import as_microseconds
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture, transform
from pyreplog.partition.client.leader_requests import LeaderRequests
from pyreplog.partition.client.partition_producer import PartitionProducer
from pyreplog.partition.client.partition_sender import Headers
from pyreplog.partition.client.responses import out_of_range
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import ConsumerFetch, FetchIsolation, FetchParams, PartitionOffsets
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.compression import decompress
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_WAIT_S = 0.5
_BATCH_BYTES = 4 << 20
_UNCOMPRESSED_MAX = 1 << 30
"""Most bytes of one batch of a consumer after decompression."""
ISOLATIONS = {"high_watermark": FetchIsolation.HIGH_WATERMARK, "last_stable": FetchIsolation.TXN_COMMITTED}
"""Isolation levels of consumers, by the name of the option."""


class ReadSettings(Protocol):
    """The attributes of its topic that a handle needs."""

    @property
    def topic_id(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def isolation(self) -> FetchIsolation: ...
    def shared_producer(self) -> PartitionProducer: ...


class PartitionHandle:
    """One partition of a topic, made by `Partitions`: append, read, follow. It needs no closing.

    Offsets are dense, except at the ends of transactions; ranges are half-open. Only committed records are read. Any
    thread may use it.

    Example:
        ```python
        partition = client.topic("flights")[0]
        offset = partition.append(b"departed", key=b"LH 400")
        for batch in partition.read(offset):
            print(batch.offsets, batch.values())
        ```
    """

    def __init__(self, name: TopicPartition, requests: LeaderRequests, topic: ReadSettings) -> None:
        self._name, self._requests, self._topic = name, requests, topic

    @property
    def name(self) -> TopicPartition:
        """Topic and number."""
        return self._name

    @property
    def number(self) -> int:
        """Number of the partition."""
        return self._name.partition

    @property
    def leader(self) -> str:
        """Name of the broker that leads it, as far as this process knows; "": none. No request is made."""
        return self._requests.leader(self._name, self._topic.topic_id) or ""

    @property
    def isr(self) -> tuple[Member, ...]:
        """The in-sync replicas, as far as this process knows. No request is made."""
        stored = self._requests.cache.state(PartitionId(self._topic.topic_id, self.number))
        return () if stored is None else stored[1].isr

    # ---- appends --------------------------------------------------------------------------------------------

    def submit(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, headers: Headers = (),
        event_time: Time | None = None,
    ) -> AppendFuture[int]:  # fmt: skip
        """Append one record without waiting for its outcome.

        The arguments are those of `PartitionProducer.submit`.

        Returns:
            A future of its offset.

        Raises:
            ReplogError: the errors of `PartitionProducer.submit`.
        """
        producer = self._topic.shared_producer()
        submitted = producer.submit(value, key, partition=self.number, headers=headers, event_time=event_time)
        return transform(submitted, lambda position: position.offset)

    def submit_batch(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[list[int]]:  # fmt: skip
        """Append several records without waiting for their outcome.

        The arguments are those of `PartitionProducer.submit_batch`.

        Returns:
            A future of their offsets.

        Raises:
            ReplogError: the errors of `PartitionProducer.submit_batch`.
        """
        producer = self._topic.shared_producer()
        submitted = producer.submit_batch(values, keys, partition=self.number, event_times=event_times)
        return transform(submitted, lambda positions: [position.offset for position in positions])

    def append(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, headers: Headers = (),
        event_time: Time | None = None,
    ) -> int:  # fmt: skip
        """Append one record, and wait for its outcome.

        The arguments are those of `PartitionProducer.submit`.

        Returns:
            Its offset.

        Raises:
            ReplogError: the errors of `PartitionProducer.append`.
        """
        check_may_block("append")
        return self.submit(value, key, headers=headers, event_time=event_time).result()

    def append_batch(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        event_times: Iterable[Time | None] | None = None,
    ) -> list[int]:  # fmt: skip
        """Append several records, and wait for their outcome.

        The arguments are those of `PartitionProducer.submit_batch`.

        Returns:
            Their offsets.

        Raises:
            ReplogError: the errors of `PartitionProducer.append_batch`.
        """
        check_may_block("append_batch")
        return self.submit_batch(values, keys, event_times=event_times).result()

    async def append_async(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, headers: Headers = (),
        event_time: Time | None = None,
    ) -> int:  # fmt: skip
        """Append one record, and await room for it and its outcome.

        The arguments are those of `PartitionProducer.submit`.

        Returns:
            Its offset.

        Raises:
            ReplogError: the errors of `PartitionProducer.append`.
        """
        producer = self._topic.shared_producer()
        position = await producer.append_async(
            value, key, partition=self.number, headers=headers, event_time=event_time
        )
        return position.offset

    async def append_batch_async(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        event_times: Iterable[Time | None] | None = None,
    ) -> list[int]:  # fmt: skip
        """Append several records, and await room for them and their outcome.

        The arguments are those of `PartitionProducer.submit_batch`.

        Returns:
            Their offsets.

        Raises:
            ReplogError: the errors of `PartitionProducer.append_batch`.
        """
        producer = self._topic.shared_producer()
        positions = await producer.append_batch_async(values, keys, partition=self.number, event_times=event_times)
        return [position.offset for position in positions]

    # ---- offsets --------------------------------------------------------------------------------------------

    def offsets(self) -> PartitionOffsets:
        """Ask the leader for its offsets at one moment: start, end, high watermark, last stable offset.

        Raises:
            PartitionUnavailableError: no leader answered in time.
            NoSuchPartitionError: the topic was deleted.
        """
        check_may_block("offsets")
        return self._requests.offsets(self._name, self._topic.topic_id, self._topic.timeout_s)

    offsets_async = in_thread(offsets)

    def start(self) -> int:
        """Ask the leader for the start of the log. It and the methods below raise the errors of `offsets`."""
        return self.offsets().start

    def end(self) -> int:
        """Ask the leader for the end of its log, including uncommitted records."""
        return self.offsets().end

    def high_watermark(self) -> int:
        """Ask the leader for the high watermark."""
        return self.offsets().high_watermark

    def last_stable(self) -> int:
        """Ask the leader for the last stable offset, before which no transaction is open."""
        return self.offsets().last_stable

    def readable_end(self) -> int:
        """Ask the leader for the end of the records that the isolation of the topic's handle lets readers see."""
        return self._readable_end(self.offsets())

    def offset_at(self, at: Time) -> int:
        """Find the first record that was appended at or after a time.

        Args:
            at: a datetime with a time zone, or microseconds since 1970-01-01 UTC.

        Returns:
            Its offset; the high watermark if all records are older.
        """
        check_may_block("offset_at")
        time_us = as_microseconds("at", at)
        return self._requests.offsets(self._name, self._topic.topic_id, self._topic.timeout_s, time_us).at_time

    offset_at_async = in_thread(offset_at)

    # ---- reads ----------------------------------------------------------------------------------------------

    def fetch(
        self, offset: int, *, max_bytes: int = _BATCH_BYTES, wait: float = 0.0, isolation: str | None = None
    ) -> ConsumerBatch:  # fmt: skip
        """Read records from an offset on, as columns.

        Args:
            offset: offset of the first record.
            max_bytes: approximate size of the batches in the log.
            wait: seconds to wait for a first record.
            isolation: "high_watermark" or "last_stable"; None: that of the topic's handle.

        Returns:
            A batch, which is empty at the end of the readable records. The next one begins at its `end`.

        Raises:
            TrimmedError: the record was removed; `start` is the start of the log.
            OutOfRangeError: the offset is behind the end of the log.
            PartitionUnavailableError: no leader answered in time.
            InvalidRecordBatchError: a batch is damaged.
            InvalidArgumentError: the offset is negative, or the isolation is unknown.
        """
        check_may_block("fetch")
        if offset < 0:
            raise InvalidArgumentError(f"offset: expected 0 or more, found {offset}")
        chosen = self._topic.isolation if isolation is None else isolation_of(isolation)
        params = FetchParams(chosen, int(wait * 1000), 1, max_bytes)
        fetch = ConsumerFetch(offset, max_bytes)
        topic_id, timeout_s = self._topic.topic_id, self._topic.timeout_s
        response = self._requests.consume(self._name, topic_id, params, fetch, timeout_s)
        if response.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            offsets = self._requests.offsets(self._name, topic_id, timeout_s)
            raise out_of_range(self._name, offset, offsets.start, offsets.end)
        return read_record_set(
            response.batches, decompress, start=offset, aborted=response.aborted,
            committed_only=chosen is FetchIsolation.TXN_COMMITTED, max_uncompressed=_UNCOMPRESSED_MAX,
        )  # fmt: skip

    fetch_async = in_thread(fetch)

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[ConsumerBatch]:
        """Iterate over batches of records, from one offset to before another.

        Args:
            start: offset of the first record; None: the start of the log.
            end: offset to stop before; None: the end of the readable records now. The last batch may go beyond it.

        Raises:
            ReplogError: the errors of `fetch`.
        """
        check_may_block("read")
        offsets = self.offsets()
        at = offsets.start if start is None else start
        stop = self._readable_end(offsets)
        stop = stop if end is None else min(end, stop)
        return self._read(at, stop)

    def _readable_end(self, offsets: PartitionOffsets) -> int:
        is_stable = self._topic.isolation is FetchIsolation.TXN_COMMITTED
        return offsets.last_stable if is_stable else offsets.high_watermark

    def _read(self, at: int, stop: int) -> Iterator[ConsumerBatch]:
        while at < stop:
            batch = self.fetch(at)
            if batch.end == at:
                return
            at = batch.end
            if len(batch):
                yield batch

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> PartitionFollower:
        """Iterate over batches of records, and wait for more at the end: by `for` or by `async for`.

        Args:
            start: offset of the first record; None: the end of the readable records now, which is the last stable
                offset with isolation "last_stable", so that transactions that are open now follow when they commit.
            timeout: seconds without a new record after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: the errors of `fetch`.
        """
        return PartitionFollower(self, start, timeout)

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[ConsumerRecord]:
        """Iterate over records one by one, and wait for more at the end.

        The arguments are those of `follow_batches`.

        Raises:
            ReplogError: the errors of `fetch`.
        """
        for batch in PartitionFollower(self, start, timeout):
            yield from batch

    async def follow_async(
        self, start: int | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[ConsumerRecord]:  # fmt: skip
        """Iterate over records by `async for`, and await more at the end.

        The arguments are those of `follow_batches`.

        Raises:
            ReplogError: the errors of `fetch`.
        """
        async for batch in PartitionFollower(self, start, timeout):
            for record in batch:
                yield record

    def get(self, offset: int) -> ConsumerRecord:
        """Return one record.

        Args:
            offset: its offset.

        Raises:
            OutOfRangeError: no record has this offset: it was not appended yet, or a transaction's marker has it.
            ReplogError: the errors of `fetch`.
        """
        batch = self.fetch(offset, max_bytes=1)
        if not len(batch) or batch[0].offset != offset:
            raise out_of_range(self._name, offset, 0, batch.end)
        return batch[0]

    get_async = in_thread(get)

    def __repr__(self) -> str:
        return f"<PartitionHandle {self._name}>"


class PartitionFollower:
    """Iterates over the batches of a partition, and waits for more; see `PartitionHandle.follow_batches`.

    Attributes:
        position: offset at which the next batch begins; None: unknown before the first step.
    """

    def __init__(self, partition: PartitionHandle, start: int | None, timeout: float | None) -> None:
        self.position = start
        self._partition, self._timeout = partition, timeout

    def __iter__(self) -> PartitionFollower:
        return self

    def __next__(self) -> ConsumerBatch:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            batch = self._step(_WAIT_S if deadline is None else min(max(deadline - time.monotonic(), 0.0), _WAIT_S))
            if len(batch):
                return batch
            if deadline is not None and time.monotonic() >= deadline:
                raise StopIteration

    def __aiter__(self) -> PartitionFollower:
        return self

    async def __anext__(self) -> ConsumerBatch:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            wait_s = _WAIT_S if deadline is None else min(max(deadline - time.monotonic(), 0.0), _WAIT_S)
            batch = await asyncio.to_thread(self._step, wait_s)
            if len(batch):
                return batch
            if deadline is not None and time.monotonic() >= deadline:
                raise StopAsyncIteration

    def _step(self, wait_s: float) -> ConsumerBatch:
        if self.position is None:
            self.position = self._partition.readable_end()
        batch = self._partition.fetch(self.position, wait=wait_s)
        self.position = batch.end
        return batch


def isolation_of(name: str) -> FetchIsolation:
    """Return the isolation of an option. Raises InvalidArgumentError."""
    isolation = ISOLATIONS.get(name)
    if isolation is None:
        raise InvalidArgumentError(f"isolation: expected one of {', '.join(ISOLATIONS)}, found {name!r}")
    return isolation
