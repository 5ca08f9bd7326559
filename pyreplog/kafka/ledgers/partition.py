"""LedgerPartition: one partition of a topic on ledgers, as the Kafka listener publishes to it and reads it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    ConfigError,
    InvalidArgumentError,
    InvalidRecordBatchError,
    MissingExtraError,
    NoSuchTopicError,
    NotConnectedError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    OutOfRangeError,
    RecordTooLargeError,
    ReplogError,
    SequenceError,
    TopicFencedError,
    TopicFullError,
    TopicOwnedError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture
from pyreplog.kafka.apis.refusals import RefusedError
from pyreplog.kafka.ledgers.producer_sequences import ProducerSequences, SequencedBatch, SequenceVerdict
from pyreplog.kafka.ledgers.records import ProducedRecords, decode_produced, encode_fetched
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import PartitionProduceResponse
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.remote.connection_pool import StaleError
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

AnyTopic: TypeAlias = "Topic | RemoteTopic"

SESSIONS_MAX = 256
"""Maximum number of idempotent producers of one partition that are known."""

TAIL_IDLE_S = 30.0
"""Seconds without a waiting fetch after which the subscription that tells of new messages is closed."""

INLINE_BYTES = 64 << 10
"""Size from which on batches are decoded and encoded in another thread."""

SEARCH_BYTES = 1 << 20
SEARCH_READS = 16
"""Maximum number of reads, of about SEARCH_BYTES each, of a search for a record by its timestamp."""

SKEW_MS = 10_000
"""Milliseconds by which the clock of a producer may be ahead for its timestamps to be found by `find_max_time`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_MS = 4_102_444_800_000
"""The year 2100: nothing was published later."""

_CODES: tuple[tuple[tuple[type[BaseException], ...], ErrorCode], ...] = (
    ((NoSuchTopicError,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ((RecordTooLargeError,), ErrorCode.MESSAGE_TOO_LARGE),
    ((BacklogFullError, TopicFullError), ErrorCode.POLICY_VIOLATION),
    ((WindowFullError, NotEnoughBookiesError), ErrorCode.NOT_ENOUGH_REPLICAS),
    ((OutOfRangeError,), ErrorCode.OFFSET_OUT_OF_RANGE),
    ((MissingExtraError,), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ((ConfigError,), ErrorCode.KAFKA_STORAGE_ERROR),
    ((TopicOwnedError, TopicFencedError, SequenceError), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ((NotConnectedError, ClosedError), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ((OutcomeUnknownError, TimeoutError), ErrorCode.REQUEST_TIMED_OUT),
    ((InvalidArgumentError, WrongTypeError), ErrorCode.INVALID_RECORD),
    ((ReplogError,), ErrorCode.KAFKA_STORAGE_ERROR),
)  # fmt: skip
"""Kafka's code of an error of a topic: that of the first row with a class of it."""

_REOPENED = (ClosedError, NoSuchTopicError, TopicFencedError, TopicOwnedError)
"""Errors after which the topic is opened again."""

_DUPLICATE = PartitionProduceResponse(
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER, message="all records of the batch are stored already"
)
"""The response to a batch whose offsets are no longer known, which clients take for a success."""

_UNKNOWN = (OutcomeUnknownError, TopicFencedError, SequenceError, ClosedError)
"""Errors after which nothing is known of a producer: its next batch asks the topic."""


def code_of(error: BaseException) -> ErrorCode:
    """Return Kafka's error code for an error of a topic on ledgers."""
    if isinstance(error, InvalidRecordBatchError):
        return ErrorCode(error.error_code)
    if isinstance(error, RefusedError):
        return error.code
    return next((code for classes, code in _CODES if isinstance(error, classes)), ErrorCode.UNKNOWN_SERVER_ERROR)


class FoundOffset(NamedTuple):
    """A message that was searched by its timestamp.

    Attributes:
        offset: its offset.
        time_ms: its timestamp, milliseconds since 1970.
    """

    offset: int
    time_ms: int


class _SearchedRange(NamedTuple):
    """Messages that were searched for the maximum timestamp.

    Attributes:
        latest: the first message with the maximum.
        published_ms: when the first message of the range was published, milliseconds since 1970.
        stored_bytes: bytes of the entries that were read.
        reads: number of reads.
    """

    latest: FoundOffset
    published_ms: int
    stored_bytes: int
    reads: int


class _Session(NamedTuple):
    """An idempotent producer of Kafka.

    Attributes:
        sequences: its sequence numbers.
        producer: the producer of the topic that publishes its batches; None: the topic does not deduplicate.
    """

    sequences: ProducerSequences
    producer: Producer | None


def _timestamps_ms(batch: MessageBatch) -> Any:
    """Return the timestamps that Kafka clients see: of a message without an event time that of its publication."""
    event_times, publish_times = batch.event_time, batch.publish_time
    times_ms = event_times.clip(min=0) // 1000
    has_none = event_times < -(1 << 62)
    times_ms[has_none] = publish_times[has_none] // 1000
    return times_ms


def _take_error(task: asyncio.Task[None]) -> None:
    """Take the error of a task for which nobody may wait any more: asyncio logs errors that nobody has taken."""
    if not task.cancelled():
        task.exception()


async def _close(consumer: Consumer) -> None:
    with suppress(ReplogError):
        await consumer.close_async()


class LedgerPartition:
    """One partition of a topic on ledgers. All methods run in one event loop, of which they block nothing.

    Batches are published in the order of the calls of `append`. The topic is opened at the first call, and again after
    another process owned it. It is never closed here: the cluster or client that opened it has other users of it.

    Args:
        name: name of the partition, for messages.
        open_topic: opens the topic; blocks. It raises the errors of `Cluster.topic`.
        producer_prefix: how the names of idempotent producers begin. Producer ids are unique behind it.
    """

    def __init__(self, name: str, open_topic: Callable[[], AnyTopic], producer_prefix: str) -> None:
        self._name, self._open_topic, self._producer_prefix = name, open_topic, producer_prefix
        self._topic: AnyTopic | None = None
        self._opening = asyncio.Lock()
        self._order = asyncio.Lock()  # held from the arrival of a batch until it is submitted
        self._sessions: OrderedDict[tuple[int, int], _Session] = OrderedDict()
        self._tail: asyncio.Task[None] | None = None
        self._tail_start = 0  # offset for whose message it waits
        self._waiting = 0
        self._closings: set[asyncio.Task[None]] = set()  # of subscriptions that told of a message
        self._warned = ""  # the last warning
        self.used_at = asyncio.get_running_loop().time()
        """When it was last used, on the clock of the event loop."""

    async def _opened(self) -> AnyTopic:
        self.used_at = asyncio.get_running_loop().time()
        async with self._opening:
            if self._topic is None or self._topic.is_closing:
                self._forget_topic()
                self._topic = await asyncio.to_thread(self._open_topic)
            return self._topic

    @property
    def is_open(self) -> bool:
        """Whether the topic is open here."""
        return self._topic is not None and not self._topic.is_closing

    def _forget_topic(self) -> None:
        self._topic = None
        for key in list(self._sessions):
            self._end_session(key)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, _REOPENED):
            self._forget_topic()
        is_strange = code_of(error) in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if is_strange and str(error) != self._warned:  # clients repeat their requests
            self._warned = str(error)
            logger.warning("topic %s on ledgers: %s", self._name, error)

    async def config(self) -> TopicConfig:
        """Return the settings of the topic.

        Raises:
            ReplogError: as `Cluster.topic`.
        """
        return (await self._opened()).config

    # ---- publishing -----------------------------------------------------------------------------------------

    async def append(self, data: bytes, timeout_s: float) -> PartitionProduceResponse:
        """Publish a record batch.

        Args:
            data: the records of a Produce request.
            timeout_s: seconds to wait for room in the topic, and for the outcome.

        Returns:
            The response for the client; no error is raised.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with self._order:
                    submitted = await self._submit(data)
                if isinstance(submitted, PartitionProduceResponse):
                    return submitted
                offsets = await submitted
        except TimeoutError as error:
            if not isinstance(error, ReplogError):
                text = f"no outcome within {timeout_s:g} s"
                return PartitionProduceResponse(ErrorCode.REQUEST_TIMED_OUT, message=text)
            self._note(error)
            return PartitionProduceResponse(code_of(error), message=str(error))
        except Exception as error:
            self._note(error)
            return PartitionProduceResponse(code_of(error), message=str(error))
        if not len(offsets):  # the topic had them already
            return _DUPLICATE
        return PartitionProduceResponse(ErrorCode.NONE, int(offsets[0]), int(offsets[-1]) + 1)

    async def _submit(self, data: bytes) -> AppendFuture[range] | PartitionProduceResponse:
        """Submit a batch, and return the future of its offsets; or the response, if nothing is to be submitted."""
        if len(data) < INLINE_BYTES:
            records = decode_produced(data)
        else:
            records = await asyncio.to_thread(decode_produced, data)
        header = records.header
        if header.transactional:
            return PartitionProduceResponse(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                message="a topic on ledgers has no transactions: use a producer without transactional.id",
            )
        topic = await self._opened()
        if header.producer_id < 0:
            await topic.room()
            return topic.submit_batch(
                records.values, records.keys, properties=records.properties, event_times=records.event_times
            )
        return await self._submit_sequenced(topic, records)

    async def _submit_sequenced(
        self, topic: AnyTopic, records: ProducedRecords
    ) -> AppendFuture[range] | PartitionProduceResponse:  # fmt: skip
        header = records.header
        key = header.producer_id, header.producer_epoch
        if header.base_sequence < 0:
            return PartitionProduceResponse(
                ErrorCode.INVALID_RECORD, message=f"sequence: expected 0 or more, found {header.base_sequence}"
            )
        if any(producer_id == key[0] and epoch > key[1] for producer_id, epoch in self._sessions):
            return PartitionProduceResponse(
                ErrorCode.INVALID_PRODUCER_EPOCH, message=f"producer {key[0]} has a later epoch than {key[1]}"
            )
        session = await self._session(topic, key)
        verdict = session.sequences.check(header.base_sequence, header.count)
        if verdict is SequenceVerdict.OUT_OF_ORDER and session.producer is not None and not session.sequences.is_busy:
            self._end_session(key)  # the producer may have used another listener meanwhile: ask the topic
            session = await self._session(topic, key)
            verdict = session.sequences.check(header.base_sequence, header.count)
        if verdict is SequenceVerdict.NEW:
            await topic.room()
            session = await self._session(topic, key)
            verdict = session.sequences.check(header.base_sequence, header.count)  # an earlier batch may have failed
        if isinstance(verdict, SequencedBatch):
            return verdict.outcome
        if verdict is SequenceVerdict.DUPLICATE:
            return _DUPLICATE
        if verdict is SequenceVerdict.OUT_OF_ORDER:
            return PartitionProduceResponse(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                message=f"producer {key[0]}, epoch {key[1]}: batches are missing before {header.base_sequence}",
            )
        if session.producer is None:
            outcome = topic.submit_batch(
                records.values, records.keys, properties=records.properties, event_times=records.event_times
            )
        else:
            first = session.sequences.number_of(header.base_sequence)
            outcome = session.producer.submit_batch(
                records.values, records.keys, properties=records.properties, event_times=records.event_times,
                sequences=range(first, first + header.count),
            )  # fmt: skip
        pushed = session.sequences.push(header.base_sequence, header.count, outcome)
        loop = asyncio.get_running_loop()

        def settle(_: AppendFuture[Any]) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._settled, key, session, pushed)

        outcome.add_done_callback(settle)
        return outcome

    def _settled(self, key: tuple[int, int], session: _Session, batch: SequencedBatch) -> None:
        """Note the outcome of a batch: after an unknown one, the topic is asked which records it has."""
        error = batch.outcome.exception()
        if error is None:
            return
        if isinstance(error, _UNKNOWN):
            if self._sessions.get(key) is session:
                self._end_session(key)
        else:
            session.sequences.failed(batch)

    async def _session(self, topic: AnyTopic, key: tuple[int, int]) -> _Session:
        session = self._sessions.get(key)
        if session is None:
            if topic.config.deduplicate:
                producer = await topic.producer_async(f"{self._producer_prefix}-{key[0]}-{key[1]}")
                session = _Session(ProducerSequences(producer.last_sequence + 1, deduplicates=True), producer)
            else:
                session = _Session(ProducerSequences(None, deduplicates=False), None)
            self._sessions[key] = session
            for other in [other for other in self._sessions if other[0] == key[0] and other[1] < key[1]]:
                self._end_session(other)  # batches of an earlier epoch are refused from now on
            idle = [other for other, each in self._sessions.items() if not each.sequences.is_busy and other != key]
            for other in idle[: max(len(self._sessions) - SESSIONS_MAX, 0)]:
                self._end_session(other)
        self._sessions.move_to_end(key)
        return session

    def _end_session(self, key: tuple[int, int]) -> None:
        producer = self._sessions.pop(key).producer
        if producer is not None:
            with suppress(ReplogError):  # in an event loop it does not wait
                producer.close()

    # ---- reading --------------------------------------------------------------------------------------------

    async def offsets(self) -> range:
        """Return the offsets of the messages that are kept; the stop is the high watermark.

        Raises:
            ReplogError: as `Cluster.topic`, and `Topic.offsets`.
        """
        topic = await self._opened()
        try:
            return topic.offsets() if isinstance(topic, Topic) else await topic.offsets_async()
        except ReplogError as error:
            self._note(error)
            raise

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return one record batch with the messages at an offset and behind it; b"": there is none.

        Args:
            offset: offset of the first message.
            max_bytes: about so many bytes, but at least one entry of the topic.

        Raises:
            ReplogError: as `Topic.read`.
        """
        batch = await self._read_at(offset, max(max_bytes, 1))
        if batch is None:
            return b""
        return (
            encode_fetched(batch)
            if batch.stored_bytes < INLINE_BYTES
            else await asyncio.to_thread(encode_fetched, batch)
        )

    async def published_us(self, offset: int) -> int | None:
        """Return when a message was published, microseconds since 1970; None: there is none at the offset yet.

        Args:
            offset: the offset.

        Raises:
            ReplogError: as `Topic.read`.
        """
        batch = await self._read_at(offset, 1)
        return None if batch is None else int(batch.publish_time[0])

    async def _read_at(self, offset: int, bytes_max: int) -> MessageBatch | None:
        """Read the messages at an offset and behind it; None: there is none yet.

        A topic that its server has not opened, as after a restart of the server, is opened and read again.
        """
        topic = await self._opened()
        try:
            try:
                return await topic.read_at(offset, bytes_max=bytes_max)
            except StaleError:
                await topic.offsets_async()
                return await topic.read_at(offset, bytes_max=bytes_max)
        except ReplogError as error:
            self._note(error)
            raise

    async def find_time(self, time_ms: int, end: int) -> FoundOffset | None:
        """Search for the first message whose timestamp is not below a time; None: there is none.

        The search begins with the first message that was published at that time or later, and ends after SEARCH_READS
        reads, with the message behind them.

        Args:
            time_ms: milliseconds since 1970.
            end: the high watermark.

        Raises:
            ReplogError: as `Topic.offset_of`.
        """
        topic = await self._opened()
        start = _EPOCH + timedelta(milliseconds=min(max(time_ms, 0), _TIME_MAX_MS))
        try:
            offset = await topic.offset_of_async(start)
        except ReplogError as error:
            self._note(error)
            raise
        for _ in range(SEARCH_READS):
            batch = None if offset >= end else await self._read_at(offset, SEARCH_BYTES)
            if batch is None:
                return None
            times_ms = _timestamps_ms(batch)
            found = (times_ms >= time_ms).nonzero()[0]
            if len(found):
                return FoundOffset(int(batch.offset[found[0]]), int(times_ms[found[0]]))
            offset = batch.end
        return FoundOffset(offset, time_ms)

    async def find_max_time(self, offsets: range) -> FoundOffset | None:
        """Search for the first message with the maximum timestamp; None: there are no messages.

        It goes back from the end, in at most SEARCH_READS reads of about SEARCH_BYTES, and ends where all earlier
        messages were published more than SKEW_MS before the maximum: no timestamp is later than its publication but by
        the clock of its producer.

        Args:
            offsets: offsets of the messages that are kept.

        Raises:
            RefusedError: the reads did not suffice: many messages are much older than their publication.
            ReplogError: as `Topic.read`.
        """
        best: FoundOffset | None = None
        low, published_ms, size, reads = offsets.stop, _TIME_MAX_MS, 1, 0
        while low > offsets.start:
            start = max(low - size, offsets.start)
            searched = await self._search_range(range(start, low), SEARCH_READS - reads)
            if searched is None:
                break
            if best is None or searched.latest.time_ms >= best.time_ms:
                best = searched.latest
            if searched.published_ms < best.time_ms - SKEW_MS:
                return best
            low, published_ms, reads = start, searched.published_ms, reads + searched.reads
            size = max(min(4 * size, size * SEARCH_BYTES // max(searched.stored_bytes, 1)), 1)
        else:
            return best
        if best is not None and published_ms < best.time_ms:
            return best
        raise RefusedError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"no message of the last {SEARCH_READS} MiB has a timestamp near its publication: ask for a time instead",
        )

    async def _search_range(self, offsets: range, reads_max: int) -> _SearchedRange | None:
        """Search a range for the maximum timestamp; None: it needs more reads."""
        latest, published_ms, at, stored_bytes = FoundOffset(-1, -1), 0, offsets.start, 0
        for reads in range(1, reads_max + 1):
            batch = await self._read_at(at, SEARCH_BYTES)
            if batch is None:
                return None
            times_ms = _timestamps_ms(batch)
            index = int(times_ms.argmax())
            if times_ms[index] > latest.time_ms:
                latest = FoundOffset(int(batch.offset[index]), int(times_ms[index]))
            if reads == 1:
                published_ms = int(batch.publish_time[0]) // 1000
            at, stored_bytes = batch.end, stored_bytes + batch.stored_bytes
            if at >= offsets.stop:
                return _SearchedRange(latest, published_ms, stored_bytes, reads)
        return None

    # ---- waiting --------------------------------------------------------------------------------------------

    async def wait_beyond(self, end: int) -> None:
        """Wait until there is a message at an offset: the topic tells it, nothing is polled.

        Args:
            end: the high watermark that the caller has read.

        Raises:
            ReplogError: the topic was deleted, or cannot be watched.
        """
        if self._tail is None:
            self._tail, self._tail_start = asyncio.create_task(self._watch(end)), end
            self._tail.add_done_callback(_take_error)
        elif end < self._tail_start:  # another reader has seen more
            return
        tail = self._tail
        self._waiting += 1
        try:
            await asyncio.shield(tail)
        except asyncio.CancelledError:
            if not tail.cancelled():  # otherwise this object was closed: the caller looks for the topic again
                raise
        finally:
            self._waiting -= 1

    async def _watch(self, end: int) -> None:
        """Wait for the message at an offset, with a subscription that is not stored."""
        consumer: Consumer | None = None
        try:
            topic = await self._opened()
            consumer = await topic.subscribe_async(
                f"kafka-fetch-{secrets.token_hex(8)}", start=end, durable=False, queue=1
            )
            while True:
                try:
                    async with asyncio.timeout(TAIL_IDLE_S):
                        await consumer.receive_batch_async()
                    return
                except TimeoutError as error:
                    if isinstance(error, ReplogError):
                        raise
                    if not self._waiting:
                        return
        finally:
            self._tail = None
            if consumer is not None:  # readers do not wait for that
                closing = asyncio.create_task(_close(consumer))
                self._closings.add(closing)
                closing.add_done_callback(self._closings.discard)

    # ---- the end --------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a fetch waits, or a batch has no outcome yet."""
        return bool(self._waiting) or self._order.locked() or any(
            session.sequences.is_busy for session in self._sessions.values()
        )  # fmt: skip

    async def close(self) -> None:
        """Close the producers and subscriptions of this object."""
        tail = self._tail
        if tail is not None:
            tail.cancel()
            with suppress(asyncio.CancelledError, ReplogError):
                await tail
        if self._closings:
            await asyncio.wait(self._closings)
        self._forget_topic()
