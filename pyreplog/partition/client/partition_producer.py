"""PartitionProducer: appends to the partitions of a topic, exactly once and in order, despite failures of brokers."""

from __future__ import annotations

import itertools
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.kafka.murmur2 import partitions_of_keys
from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.arguments import as_microseconds
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSuchPartitionError,
    OutcomeUnknownError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, set_exception, set_result, transform
from pyreplog.handles import Handle
from pyreplog.partition.client.leader_requests import LeaderRequests
from pyreplog.partition.client.partition_sender import NO_OFFSET, Headers, PartitionSender, RecordGroup, SenderSettings
from pyreplog.partition.metadata.producer_ids import ProducerIds
from pyreplog.partition.protocol.error_codes import ACKS_ALL, REQUIRED_ACKS
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.compression import CODECS
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["NO_OFFSET", "PartitionProducer", "ProducerConfig", "RecordPosition"]

_OVERHEAD = 40  # upper bound of a record's bytes besides key, value and headers


class RecordPosition(NamedTuple):
    """The position at which a record was appended.

    Attributes:
        partition: number of the partition.
        offset: offset in the partition; NO_OFFSET with acks=0.
    """

    partition: int
    offset: int


class ProducerConfig(NamedTuple):
    """Settings of a producer.

    Attributes:
        acks: -1: an append is complete when all in-sync replicas have the records; 1: when the leader has them; 0: when
            they are sent. Only with -1 no record is lost or duplicated when brokers fail.
        durable: an append is complete only when `min_isr` replicas have synced the records; for topics with
            `requires_sync`.
        timeout_s: seconds after which an append fails.
        window_bytes: most bytes in flight.
        batch_bytes: approximate size of a batch; a broker refuses batches larger than its topic allows.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
    """

    acks: int = ACKS_ALL
    durable: bool = False
    timeout_s: float = 30.0
    window_bytes: int = 32 << 20
    batch_bytes: int = 512 << 10
    compression: str = "none"

    def check(self) -> None:
        """Verify that the settings are within their bounds.

        Raises:
            InvalidArgumentError: a setting is out of its bounds; the message names it.
        """
        if self.acks not in REQUIRED_ACKS or (self.durable and self.acks != ACKS_ALL):
            wanted = "-1 for durable records" if self.durable else "-1, 0 or 1"
            raise InvalidArgumentError(f"acks: expected {wanted}, found {self.acks}")
        if self.compression not in CODECS:
            raise InvalidArgumentError(f"compression: expected one of {', '.join(CODECS)}, found {self.compression!r}")
        if not 0 < self.timeout_s <= 86_400:
            raise InvalidArgumentError(f"timeout_s: expected up to 86400 seconds, found {self.timeout_s}")
        for name, least in (("window_bytes", 1), ("batch_bytes", 1)):
            if not least <= getattr(self, name) <= 1 << 30:
                raise InvalidArgumentError(f"{name}: expected {least} to {1 << 30}, found {getattr(self, name)}")


class PartitionProducer(Handle):
    """An idempotent producer of one topic, made by `Partitions.producer`.

    ONE batch is in flight for each partition: with acks=-1 the records of a partition are appended in the order of the
    calls, exactly once, despite changes of leaders, lost connections and unknown outcomes. Records that are submitted
    meanwhile form the next batch. A record with a key goes to the partition that Kafka's clients choose for it
    (murmur2), records without one are distributed round-robin.

    Any thread may use it. Calls wait while the window is full; `submit` in an event loop raises WindowFullError
    instead.

    Example:
        ```python
        with client.topic("flights").producer() as producer:
            for flight in flights:
                producer.submit(flight.encode(), key=flight.airport)
            producer.flush()
        ```
    """

    def __init__(
        self, topic: str, topic_id: str, partitions: int, requests: LeaderRequests, ids: ProducerIds, clock: Clock,
        config: ProducerConfig,
    ) -> None:  # fmt: skip
        config.check()
        self._topic, self._topic_id, self._partitions, self.config = topic, topic_id, partitions, config
        self._requests, self._clock = requests, clock
        codec = CODECS[config.compression]
        self._settings = SenderSettings(
            config.acks, config.durable, config.batch_bytes, codec, ids.next, self._group_done
        )  # fmt: skip
        self.producer_id = ids.next() if config.acks == ACKS_ALL else -1
        """Its id, unique in the cluster; -1: it has none, because `acks` is not -1."""
        self._changed = threading.Condition()  # guards the fields below
        self._senders: dict[int, PartitionSender] = {}
        self._used_bytes = 0
        self._submitted = 0
        self._pending: dict[RecordGroup, int] = {}  # no outcome yet; values: numbers of the calls, ascending
        self._rooms: list[AppendFuture[None]] = []
        self._turn = itertools.count()
        super().__init__(f"producer of topic {topic}")
        requests.watch(self._metadata_changed)

    # ---- appends --------------------------------------------------------------------------------------------

    def submit(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, partition: int | None = None,
        headers: Headers = (), event_time: Time | None = None,
    ) -> AppendFuture[RecordPosition]:  # fmt: skip
        """Append one record without waiting for its outcome.

        Args:
            value: bytes-like; None: null.
            key: bytes-like; None: no key.
            partition: number of the partition; None: chosen by the key.
            headers: pairs of a name and a value, as bytes.
            event_time: time of the record; None: now.

        Returns:
            A future of its position. It fails with PartitionTimeoutError if the outcome is unknown,
            PartitionUnavailableError or AppendRefusedError if nothing was appended.

        Raises:
            WindowFullError: the window is full, and the caller is an event loop: await `room()` before.
            NoSuchPartitionError: the topic has no such partition.
            WrongTypeError, InvalidArgumentError: nothing was appended.
            ClosedError: the producer was closed.
        """
        values, keys = [_as_bytes("value", value)], [_as_bytes("key", key)]
        number = self._choose_partitions(keys)[0] if partition is None else self._check_partition(partition)
        pairs = [list(headers)]
        group = self._group(values, None if key is None else keys, [event_time], pairs if pairs[0] else None)
        self._admit([(number, group)])
        return transform(group.future, lambda offset: RecordPosition(number, offset))

    def submit_batch(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        partition: int | None = None, event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[list[RecordPosition]]:  # fmt: skip
        """Append several records without waiting for their outcome; records of one partition keep their order.

        Args:
            values: bytes-like, or None.
            keys: as many keys, each bytes-like or None; None: no keys.
            partition: number of the partition of all; None: chosen by the keys.
            event_times: as many times, or None; None: now.

        Returns:
            A future of their positions. If it fails, some may have been appended.

        Raises:
            ReplogError: the errors of `submit`.
        """
        value_list = [_as_bytes("value", value) for value in values]
        key_list = None if keys is None else [_as_bytes("key", key) for key in keys]
        times = [None] * len(value_list) if event_times is None else list(event_times)
        if len(times) != len(value_list) or (key_list is not None and len(key_list) != len(value_list)):
            raise InvalidArgumentError(f"expected as many keys and event times as values, found {len(value_list)}")
        future = AppendFuture[list[RecordPosition]]()
        if not value_list:
            set_result(future, [])
            return future
        if partition is not None:
            numbers = [self._check_partition(partition)] * len(value_list)
        elif key_list is None:
            numbers = [next(self._turn) % self._partitions] * len(value_list)
        else:
            numbers = self._choose_partitions(key_list)
        placed = self._group_by_partition(value_list, key_list, times, numbers)
        self._admit([(number, group) for number, group, _ in placed])
        positions = [RecordPosition(number, NO_OFFSET) for number in numbers]
        missing = itertools.count(len(placed) - 1, -1)  # `next` is atomic

        def done(number: int, rows: Sequence[int], offset: AppendFuture[int]) -> None:
            error = offset.exception()
            if error is not None:
                set_exception(future, error)
                return
            first = offset.result()
            if first >= 0:
                for at, row in enumerate(rows):
                    positions[row] = RecordPosition(number, first + at)
            if not next(missing):
                set_result(future, positions)

        for number, group, rows in placed:
            group.future.add_done_callback(lambda offset, number=number, rows=rows: done(number, rows, offset))  # type: ignore[misc]
        return future

    def append(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, partition: int | None = None,
        headers: Headers = (), event_time: Time | None = None,
    ) -> RecordPosition:  # fmt: skip
        """Append one record, and wait for its outcome.

        The arguments are those of `submit`.

        Returns:
            Where it was appended.

        Raises:
            ReplogError: the errors of `submit` and its future.
        """
        check_may_block("append")
        return self.submit(value, key, partition=partition, headers=headers, event_time=event_time).result()

    def append_batch(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        partition: int | None = None, event_times: Iterable[Time | None] | None = None,
    ) -> list[RecordPosition]:  # fmt: skip
        """Append several records, and wait for their outcome.

        The arguments are those of `submit_batch`.

        Returns:
            Where each was appended.

        Raises:
            ReplogError: the errors of `submit_batch` and its future.
        """
        check_may_block("append_batch")
        return self.submit_batch(values, keys, partition=partition, event_times=event_times).result()

    async def append_async(
        self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *, partition: int | None = None,
        headers: Headers = (), event_time: Time | None = None,
    ) -> RecordPosition:  # fmt: skip
        """Append one record, and await room for it and its outcome.

        The arguments are those of `submit`.

        Returns:
            Where it was appended.

        Raises:
            ReplogError: the errors of `submit` and its future.
        """
        while True:
            await self.room()
            try:
                future = self.submit(value, key, partition=partition, headers=headers, event_time=event_time)
            except WindowFullError:
                continue
            return await future

    async def append_batch_async(
        self, values: Iterable[ReadableBuffer | None], keys: Iterable[ReadableBuffer | None] | None = None, *,
        partition: int | None = None, event_times: Iterable[Time | None] | None = None,
    ) -> list[RecordPosition]:  # fmt: skip
        """Append several records, and await room for them and their outcome.

        The arguments are those of `submit_batch`.

        Returns:
            Where each was appended.

        Raises:
            ReplogError: the errors of `submit_batch` and its future.
        """
        value_list, key_list = list(values), None if keys is None else list(keys)
        times = None if event_times is None else list(event_times)
        while True:
            await self.room()
            try:
                future = self.submit_batch(value_list, key_list, partition=partition, event_times=times)
            except WindowFullError:
                continue
            return await future

    def _check_partition(self, partition: int) -> int:
        if type(partition) is not int or not 0 <= partition < self._partitions:
            expected = f"expected 0 to {self._partitions - 1}"
            raise NoSuchPartitionError(f"{self._topic}-{partition}", "", expected)
        return partition

    def _choose_partitions(self, keys: Sequence[bytes | None]) -> list[int]:
        chosen = partitions_of_keys(keys, self._partitions)
        return [next(self._turn) % self._partitions if number < 0 else number for number in chosen]

    def _group(
        self, values: list[bytes | None], keys: list[bytes | None] | None, times: Sequence[Time | None],
        headers: list[list[tuple[bytes, bytes | None]]] | None,
    ) -> RecordGroup:  # fmt: skip
        now_ms = self._clock.now_us() // 1000
        times_ms = [now_ms if at is None else as_microseconds("event_time", at) // 1000 for at in times]
        size = sum(len(value) for value in values if value is not None) + _OVERHEAD * len(values)
        if keys is not None:
            size += sum(len(key) for key in keys if key is not None)
        for pairs in headers or ():
            for name, value in pairs:
                if not isinstance(name, bytes) or not isinstance(value, bytes | None):
                    raise WrongTypeError(f"headers: expected pairs of bytes, found {name!r}, {value!r}")
                size += len(name) + len(value or b"") + 10
        return RecordGroup(values, keys, times_ms, headers, size, time.monotonic() + self.config.timeout_s)

    def _group_by_partition(
        self, values: list[bytes | None], keys: list[bytes | None] | None, times: Sequence[Time | None],
        numbers: Sequence[int],
    ) -> list[tuple[int, RecordGroup, Sequence[int]]]:  # fmt: skip
        """Return groups of at most `batch_bytes` each, with their partitions, and the indexes of their records in the
        call."""
        rows_of: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            rows_of.setdefault(number, []).append(row)
        placed: list[tuple[int, RecordGroup, Sequence[int]]] = []
        for number, all_rows in rows_of.items():
            rows: list[int] = []
            size = 0
            chunks: list[list[int]] = []
            for row in all_rows:
                record = len(values[row] or b"") + len((keys and keys[row]) or b"") + _OVERHEAD
                if rows and size + record > self.config.batch_bytes:
                    chunks.append(rows)
                    rows, size = [], 0
                rows.append(row)
                size += record
            for chunk in (*chunks, rows):
                chunk_keys = None if keys is None else [keys[row] for row in chunk]
                group = self._group([values[row] for row in chunk], chunk_keys, [times[row] for row in chunk], None)
                placed.append((number, group, chunk))
        return placed

    # ---- the window -----------------------------------------------------------------------------------------

    def _admit(self, placed: Sequence[tuple[int, RecordGroup]]) -> None:
        """Wait for room in the window, and pass groups to their senders. Groups larger than the window wait until it is
        empty."""
        size = sum(group.size for _, group in placed)
        with self._changed:
            self._check_open()
            if not self._has_room(size):
                if _get_running_loop() is not None or in_callback():
                    raise WindowFullError(f"{self._used_bytes} bytes are in flight: await room() before submit()")
                self._changed.wait_for(lambda: self._error is not None or self._has_room(size))
                self._check_open()
            self._used_bytes += size
            senders = []
            for number, group in placed:
                self._submitted += 1
                self._pending[group] = self._submitted
                senders.append(self._sender(number))
        for sender, (_, group) in zip(senders, placed, strict=True):
            sender.append(group)

    def _has_room(self, size: int) -> bool:
        return not self._used_bytes or self._used_bytes + size <= self.config.window_bytes

    def _sender(self, number: int) -> PartitionSender:
        sender = self._senders.get(number)
        if sender is None:
            name = TopicPartition(self._topic, number)
            sender = PartitionSender(name, self._topic_id, self._requests, self._settings, self.producer_id)
            self._senders[number] = sender
        return sender

    def _group_done(self, group: RecordGroup) -> None:
        with self._changed:
            del self._pending[group]
            self._used_bytes -= group.size
            rooms: list[AppendFuture[None]] = []
            if self._used_bytes < self.config.window_bytes:
                rooms, self._rooms = self._rooms, []
            self._changed.notify_all()
        for room in rooms:
            set_result(room, None)

    def room(self) -> AppendFuture[None]:
        """Return a future that is completed as soon as the window has room: await it before `submit` in a coroutine.

        Raises:
            ClosedError: the producer was closed.
        """
        future = AppendFuture[None]()
        with self._changed:
            self._check_open()
            if self._used_bytes >= self.config.window_bytes:
                self._rooms.append(future)
                return future
        set_result(future, None)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record submitted so far has an outcome. Failures are reported by the futures of the records.

        Args:
            timeout: seconds; None: no limit, but each append has its own.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: it timed out; the appends continue.
        """
        check_may_block("flush")
        with self._changed:
            last = self._submitted
            if not self._changed.wait_for(
                lambda: not self._pending or next(iter(self._pending.values())) > last, timeout
            ):
                raise OutcomeUnknownError(f"{len(self._pending)} appends have no outcome after {timeout} s")

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is completed when every record submitted so far has an outcome; see `flush`."""
        future = AppendFuture[None]()
        with self._changed:
            pending = list(self._pending)
        if not pending:
            set_result(future, None)
            return future
        missing = itertools.count(len(pending) - 1, -1)
        for group in pending:
            group.future.add_done_callback(lambda _: None if next(missing) else set_result(future, None))
        return future

    def _metadata_changed(self) -> None:
        with self._changed:
            senders = list(self._senders.values())
        for sender in senders:
            sender.metadata_changed()

    def _do_close(self) -> None:
        """Wait for the outcomes of submitted records, which their time-outs bound; then close the senders."""
        with self._changed:
            self._changed.notify_all()
            if not in_callback():
                self._changed.wait_for(lambda: not self._pending, self.config.timeout_s + 5.0)
            senders, rooms = list(self._senders.values()), self._rooms
            self._rooms = []
        error = ClosedError("the producer was closed")
        for sender in senders:
            sender.close(error)
        for room in rooms:
            set_exception(room, error)
        self._requests.unwatch(self._metadata_changed)


def _as_bytes(name: str, value: ReadableBuffer | None) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise WrongTypeError(f"{name}: expected bytes-like or None, found {type(value).__name__}") from None
