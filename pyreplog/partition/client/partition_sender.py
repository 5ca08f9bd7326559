"""PartitionSender: sends the batches of one producer for one partition, one at a time, with retries until they time
out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.errors import (
    NoSuchPartitionError,
    NotConnectedError,
    PartitionTimeoutError,
    PartitionUnavailableError,
    ReplogError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.partition.client.leader_requests import REQUEST_TIMEOUT_S, RETRY_S, LeaderRequests
from pyreplog.partition.client.responses import RETRIED, UNKNOWN_OUTCOME, error_of
from pyreplog.partition.client_wire import ProduceRequest
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.producers import SEQUENCES
from pyreplog.partition.requests import PartitionProduceResponse, ProduceResponses
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.compression import compress

NO_OFFSET = -1
"""The offset of a record with acks=0, which gets no answer."""
_EPOCH_MAX = (1 << 15) - 1
_RECORDS_MAX = 1 << 20
_REPLY_S = 1.0
"""Seconds that an answer may take in addition to the broker's wait for replicas."""

Headers = Iterable[tuple[bytes, bytes | None]]


class RecordGroup:
    """Records that are appended together, in one batch.

    Args:
        values: bytes, or None.
        keys: as many keys; None: no keys.
        timestamps_ms: as many times, ms since 1970.
        headers: as many lists of headers; None: no headers.
        size: upper bound of their bytes in a batch.
        deadline: when they time out, seconds of the monotonic clock.
    """

    __slots__ = ("deadline", "future", "headers", "keys", "size", "timestamps_ms", "values")

    def __init__(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None, size: int, deadline: float,
    ) -> None:  # fmt: skip
        self.values, self.keys, self.timestamps_ms, self.headers = values, keys, timestamps_ms, headers
        self.size, self.deadline = size, deadline
        self.future = AppendFuture[int]()  # result: offset of the first record

    def __len__(self) -> int:
        return len(self.values)


class SenderSettings:
    """Settings of all senders of one producer.

    Args:
        acks: -1, 0 or 1.
        durable: see `ReplicaManager.append_records`.
        batch_bytes: approximate size of a batch.
        codec: number of the compression codec.
        next_producer_id: allocates an id of a producer.
        settled: called with each group after its future was completed.
    """

    __slots__ = ("acks", "batch_bytes", "codec", "durable", "next_producer_id", "settled")

    def __init__(
        self, acks: int, durable: bool, batch_bytes: int, codec: int, next_producer_id: Callable[[], int],
        settled: Callable[[RecordGroup], object],
    ) -> None:  # fmt: skip
        self.acks, self.durable, self.batch_bytes, self.codec = acks, durable, batch_bytes, codec
        self.next_producer_id, self.settled = next_producer_id, settled


class _Batch:
    """A batch in flight.

    Attributes:
        groups: its groups of records.
        count: number of its records.
        data: its bytes, the same in each attempt.
        sequence: sequence number of its first record.
        deadline: when its first group times out.
        attempt: number of the latest attempt.
        leader: the broker of the latest attempt.
        is_sent: whether an attempt is under way.
        is_unknown: whether an attempt may have appended the records.
        reason: the error of the latest attempt.
    """

    __slots__ = (
        "attempt", "count", "data", "deadline", "groups", "is_sent", "is_unknown", "leader", "reason", "sequence",
    )  # fmt: skip

    def __init__(self, groups: list[RecordGroup], count: int, data: bytes, sequence: int) -> None:
        self.groups, self.count, self.data, self.sequence = groups, count, data, sequence
        self.deadline = min(group.deadline for group in groups)
        self.attempt, self.leader = 0, ""
        self.is_sent = self.is_unknown = False
        self.reason: ReplogError | None = None


class PartitionSender:
    """The batches of one producer for one partition: ONE is in flight, so that their order is kept after all failures.

    With acks=-1 a batch has the id, the epoch and a sequence number of its producer, and is retried with the same bytes
    until it has an outcome: the log has it once. When a batch with an unknown outcome times out, the sender continues
    in a higher epoch, which fences attempts that are still in flight.

    Events are handled one at a time, in the thread that reports them. Any thread may call it.

    Args:
        name: name of the partition.
        topic_id: id of its topic.
        requests: requests to leaders.
        settings: settings of the producer.
        producer_id: id of the producer; -1: it is not idempotent.
    """

    def __init__(
        self, name: TopicPartition, topic_id: str, requests: LeaderRequests, settings: SenderSettings, producer_id: int
    ) -> None:  # fmt: skip
        self._name, self._topic_id, self._requests, self._settings = name, topic_id, requests, settings
        self._producer_id, self._epoch, self._sequence = producer_id, 0 if producer_id >= 0 else -1, 0
        self._waiting: deque[RecordGroup] = deque()
        self._batch: _Batch | None = None
        self._closed: ReplogError | None = None
        self._queue = EventQueue()

    def append(self, group: RecordGroup) -> None:
        """Append a group after all earlier ones; its future gets the offset of the first record."""
        self._queue.post(partial(self._enqueue, group))

    def metadata_changed(self) -> None:
        """Send the batch in flight to a new leader, if there is one."""
        self._queue.post(self._check_leader)

    def close(self, error: ReplogError) -> None:
        """Fail all groups without an outcome: with the error, or as unknown if they were sent."""
        self._queue.post(partial(self._close, error))

    # ---- steps ----------------------------------------------------------------------------------------------

    def _enqueue(self, group: RecordGroup) -> None:
        if self._closed is not None:
            self._fail_group(group, self._closed)
            return
        self._waiting.append(group)
        self._send_next()

    def _send_next(self) -> None:
        """Send the next batch, if none is in flight."""
        while self._batch is None and self._waiting and self._closed is None:
            now = time.monotonic()
            groups: list[RecordGroup] = []
            size = count = 0
            while self._waiting:
                group = self._waiting[0]
                if group.deadline <= now:
                    self._waiting.popleft()
                    unsent = "its timeout passed before it could be sent"
                    self._fail_group(group, PartitionUnavailableError(str(self._name), "", unsent))
                    continue
                if groups and (size + group.size > self._settings.batch_bytes or count + len(group) > _RECORDS_MAX):
                    break
                groups.append(self._waiting.popleft())
                size, count = size + group.size, count + len(group)
            if not groups:
                return
            try:
                self._batch = _Batch(groups, count, self._encode(groups, count), self._sequence)
            except ReplogError as error:
                for group in groups:
                    self._fail_group(group, error)
                continue
            if self._producer_id >= 0:
                self._sequence = (self._sequence + count) % SEQUENCES
            expire = partial(self._queue.post, partial(self._expire, self._batch))
            self._requests.timers.call_later(self._batch.deadline - now, expire)
            self._send(self._batch)

    def _encode(self, groups: list[RecordGroup], count: int) -> bytes:
        values = list(chain.from_iterable(group.values for group in groups))
        times = list(chain.from_iterable(group.timestamps_ms for group in groups))
        keys: list[bytes | None] | None = None
        if any(group.keys is not None for group in groups):
            keys = list(chain.from_iterable(group.keys or [None] * len(group) for group in groups))
        headers: list[Headers] | None = None
        if any(group.headers is not None for group in groups):
            headers = list(chain.from_iterable(group.headers or [()] * len(group) for group in groups))
        codec = self._settings.codec
        return encode_batch(
            compress(codec, encode_records(values, keys, times, headers)), count, base_timestamp=times[0],
            max_timestamp=max(times), codec=codec, producer_id=self._producer_id, producer_epoch=self._epoch,
            base_sequence=self._sequence if self._producer_id >= 0 else -1,
        )  # fmt: skip

    def _send(self, batch: _Batch) -> None:
        leader = self._requests.leader(self._name, self._topic_id)
        left_s = batch.deadline - time.monotonic()
        if leader is None:
            self._fail(batch, NoSuchPartitionError(str(self._name), "", "the topic was deleted"))
            return
        batch.attempt += 1
        batch.is_sent = False
        if not leader or left_s <= 0:
            self._retry(batch)
            return
        attempt_s = min(left_s, REQUEST_TIMEOUT_S)
        settings = self._settings
        request = ProduceRequest(settings.acks, int(attempt_s * 1000) + 1, settings.durable, {self._name: batch.data})
        try:
            future = self._requests.transport.produce(leader, request, attempt_s + _REPLY_S)
        except ReplogError as error:
            batch.reason = error
            self._retry(batch)
            return
        batch.leader, batch.is_sent = leader, True
        attempt = batch.attempt
        future.add_done_callback(lambda done: self._queue.post(partial(self._answered, batch, attempt, leader, done)))

    def _retry(self, batch: _Batch) -> None:
        again = partial(self._queue.post, partial(self._send_again, batch, batch.attempt))
        self._requests.timers.call_later(RETRY_S, again)

    def _send_again(self, batch: _Batch, attempt: int) -> None:
        if self._batch is batch and batch.attempt == attempt and not batch.is_sent:
            self._send(batch)

    def _check_leader(self) -> None:
        """Send the batch to a new leader. If an earlier attempt succeeded, the log detects the duplicate."""
        batch = self._batch
        if batch is None:
            return
        leader = self._requests.leader(self._name, self._topic_id)
        if leader is None or (leader and not batch.is_sent):
            self._send(batch)
        elif leader and leader != batch.leader and self._producer_id >= 0:
            batch.is_unknown = True
            self._send(batch)

    def _answered(self, batch: _Batch, attempt: int, leader: str, future: AppendFuture[ProduceResponses]) -> None:
        if self._batch is not batch:
            return
        error = future.exception()
        if error is None:
            response = future.result().get(self._name, PartitionProduceResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
            if response.code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._succeed(batch, response.base_offset)
                return
            batch.is_unknown |= response.base_offset >= 0 or response.code is ErrorCode.UNKNOWN_SERVER_ERROR
            failure = error_of(self._name, response.code, response.message or f"broker {leader} refused")
            is_retried = response.code in RETRIED or response.code in UNKNOWN_OUTCOME
            is_lost = response.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not batch.is_unknown
        else:
            batch.is_unknown |= not isinstance(error, NotConnectedError)
            failure = PartitionUnavailableError(str(self._name), "", f"broker {leader}: {error}")
            is_retried, is_lost = True, False
        if attempt != batch.attempt:
            return  # another attempt is under way
        batch.is_sent, batch.reason = False, failure
        if is_lost:  # the log lost this producer's state, and has no attempt of the batch
            self._fence()
            batch.data, batch.sequence = self._encode(batch.groups, batch.count), self._sequence
            self._sequence = (self._sequence + batch.count) % SEQUENCES
            self._retry(batch)
        elif is_retried and (self._producer_id >= 0 or not batch.is_unknown):
            self._retry(batch)
        else:
            self._fail(batch, failure)

    def _succeed(self, batch: _Batch, offset: int) -> None:
        self._batch = None
        is_known = offset >= 0 and self._settings.acks != 0
        for group in batch.groups:
            set_result(group.future, offset if is_known else NO_OFFSET)
            self._settings.settled(group)
            offset += len(group)
        self._send_next()

    def _expire(self, batch: _Batch) -> None:
        if self._batch is not batch:
            return
        batch.is_unknown |= batch.is_sent
        self._fail(batch, batch.reason or PartitionUnavailableError(str(self._name), "", "no broker leads it"))

    def _fail(self, batch: _Batch, error: ReplogError) -> None:
        """Fail a batch. Its sequence numbers are reused, or, if the outcome is unknown, a new epoch begins."""
        self._batch = None
        if batch.is_unknown:
            error = PartitionTimeoutError(str(self._name), "", f"the outcome of an append is unknown: {error}")
            self._fence()
        else:
            self._sequence = batch.sequence
        for group in batch.groups:
            self._fail_group(group, error)
        self._send_next()

    def _fence(self) -> None:
        """Begin a higher epoch of this producer, in this partition."""
        if self._producer_id < 0:
            return
        self._epoch, self._sequence = self._epoch + 1, 0
        if self._epoch > _EPOCH_MAX:
            self._producer_id, self._epoch = self._settings.next_producer_id(), 0

    def _close(self, error: ReplogError) -> None:
        self._closed = error
        if self._batch is not None:
            self._batch.is_unknown |= self._batch.is_sent
            self._fail(self._batch, error)
        while self._waiting:
            self._fail_group(self._waiting.popleft(), error)

    def _fail_group(self, group: RecordGroup, error: ReplogError) -> None:
        set_exception(group.future, error)
        self._settings.settled(group)
