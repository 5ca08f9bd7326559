"""One connection of a client, with a session for each of its producers and consumers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.wire_fields import checksum
from pyreplog.errors import ClosedError, InvalidMessageError, ReplogError
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, completed_future, set_result, then
from pyreplog.net.server_connection import ServerConnection
from pyreplog.origins.origin import Origin
from pyreplog.topic.client.publishing.forwarded import ForwardedBatch
from pyreplog.topic.model.interfaces import AckedOffsets, DeliveredMessages
from pyreplog.topic.model.wire.batches import BATCH_BYTES, Delivered, cut, encode_delivered, size_of
from pyreplog.topic.model.wire.protocol import OK, PUBLISHED, STALE, Done, Reply, Resumed, encode_fault, encode_reply
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import ExchangePeer, Topic

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


SendReply = Callable[..., object]


class ProducerSession:
    """The session of a producer.

    Any thread; steps run one at a time, and none waits. producer, client: as in `protocol.Open`.
    """

    def __init__(self, topic: Topic, producer: str, client: str, reply: SendReply) -> None:
        self.topic, self.producer, self.client = topic, producer, client
        self._publisher = topic.publisher
        self._reply = reply
        self._events = EventQueue()
        self._waiting: deque[tuple[int, ForwardedBatch]] = deque()  # batches that wait for room
        self._awaits_room = False  # a future of `room` is pending
        self._refusal: bytes | None = None  # answer to all further requests
        self._left: Callable[[], object] | None = None  # the callback of `leave`

    def publish(self, request: int, entries: Sequence[bytes], attributes: Sequence[bytes | None] | None = None) -> None:
        """Publish entries, and answer when they have an outcome. attributes: as in ForwardedBatch.

        Raises the errors of ForwardedBatch; then nothing is published.
        """
        forwarded = ForwardedBatch(self.topic.name, entries, attributes)

        def publish() -> None:
            self._waiting.append((request, forwarded))
            self._advance()

        self._events.post(publish)

    def end(self, answer: bytes = bytes((STALE,))) -> AppendFuture[None]:
        """Publish nothing more, once the future is done; waiting requests get this answer."""
        done: AppendFuture[None] = AppendFuture()

        def end() -> None:
            self._refusal = self._refusal or answer
            self._advance()
            set_result(done, None)

        self._events.post(end)
        return done

    def leave(self, on_left: Callable[[], object]) -> None:
        """Publish the waiting batches, because the client sends no more, and call `on_left` when none waits.

        If a quota holds publishers, waiting batches are refused.
        """

        def leave() -> None:
            self._left = on_left
            self._advance()

        self._events.post(leave)

    def _advance(self) -> None:
        while self._waiting:
            if self._left is not None and self._refusal is None and (held := self._publisher.quota_error()) is not None:
                self._refusal = encode_fault(held)  # no later batch may be stored
            if self._refusal is not None:
                self._reply(self._waiting.popleft()[0], self._refusal)
                continue
            if self._awaits_room:
                return
            try:
                if not self._publisher.has_room:
                    self._awaits_room = True
                    self._publisher.room().add_done_callback(lambda _: self._events.post(self._has_room))
                    return
                self._forward(*self._waiting.popleft())
            except ReplogError as error:  # the topic was closed, or taken over: no later batch may be stored
                self._refusal = encode_fault(error)
        if self._left is not None:
            on_left, self._left = self._left, None
            on_left()

    def _has_room(self) -> None:
        self._awaits_room = False
        self._advance()

    def _forward(self, request: int, forwarded: ForwardedBatch) -> None:
        try:
            offsets = self._publisher.forward(forwarded)
        except ReplogError as error:
            self._reply(request, encode_fault(error))
            raise
        offsets.add_done_callback(partial(self._settled, request, forwarded))

    def _settled(self, request: int, forwarded: ForwardedBatch, offsets: AppendFuture[range]) -> None:
        error = offsets.exception()
        self._reply(
            request, encode_fault(error) if error is not None else encode_published(forwarded, offsets.result())
        )


def encode_published(forwarded: ForwardedBatch, offsets: range) -> bytes:
    """Return the reply to a PUBLISH: the offset of the first stored message, and which messages are stored, unless all
    are.
    """
    total, kept = forwarded.messages_submitted, forwarded.kept
    head = bytes((OK,)) + PUBLISHED.encode((offsets[0] if offsets else -1, total, len(offsets)))
    return head if kept is None or not offsets else head + np.packbits(kept).tobytes()


WAITING_BYTES = 4 << 20
"""Approximate bytes that wait in a ConsumerSession; the consumer's permits are passed on as there is room."""
FETCHES_MAX = 3
_FIRST_SIZE = 16 << 10
"""Assumed size of a message before the first one has arrived."""


class ConsumerSession:
    """A DeliveryTarget that stands for a remote consumer. Any thread; steps run one at a time, and none waits.

    reply: sends the answer to a request.
    """

    def __init__(self, name: str, reply: Callable[..., object]) -> None:
        self.name = name
        self.state: tuple[int, int | None] = (0, None)
        """The consumer's generation, raised each time it loses its delivered messages; and the era of its messages,
        None: it was not resumed."""
        self._reply = reply
        self._events = EventQueue()
        self._source: Subscription | None = None
        self._id = -1
        self._active = True
        self._fetches: deque[int] = deque()
        self._queue: deque[tuple[DeliveredMessages, int]] = deque()  # (delivery, size)
        self._queued_bytes = 0
        self._permits = 0  # of the consumer, not passed on yet
        self._granted = 0  # passed on, whose messages have not arrived
        self._message_bytes = _FIRST_SIZE  # estimated size of a message
        self._reported = (0, True)  # generation and active, as the consumer knows them
        self._error: ReplogError | None = None
        self._seeks = 0  # seeks of the subscription since the attachment, changed in their steps
        self._known = (0, 0)  # seeks whose discard arrived, and the first generation after these
        self._eras: deque[int] = deque()  # eras of the other seeks

    def attached(self, source: Subscription, number: int) -> None:
        """Note the subscription; if the consumer was detached meanwhile, leave it."""

        def attached() -> None:
            self._source, self._id = source, number
            if isinstance(self._error, ClosedError):
                source.detach(number)
            else:
                self._pass_permits_on()

        self._events.post(attached)

    def check_attached(self) -> None:
        """Raise ClosedError if the consumer was detached before it is attached."""
        if self._error is not None:
            raise ClosedError(f"consumer {self.name}: {self._error}")

    @property
    def generation(self) -> int:
        return self.state[0]

    @property
    def source(self) -> Subscription:
        """The subscription. Raises ClosedError if it is not attached."""
        if self._source is None or self._error is not None:
            raise self._error or ClosedError(f"consumer {self.name} is not attached")
        return self._source

    @property
    def number(self) -> int:
        """Number of the consumer at its subscription."""
        return self._id

    def refuse_calls(self, error: ReplogError) -> None:
        """Refuse every request with `error` from now on. For tests, as `Handle.refuse_calls`."""
        self._error = self._error or error

    # ---- requests of the client -------------------------------------------------------------------------------

    def fetch(self, request: int) -> None:
        """Answer a FETCH as soon as there is something to report.

        Raises InvalidMessageError if too many are pending.
        """
        if len(self._fetches) >= FETCHES_MAX:
            raise InvalidMessageError(f"consumer {self.name}: expected at most {FETCHES_MAX} pending FETCH requests")

        def fetch() -> None:
            self._fetches.append(request)
            self._hand_out()

        self._events.post(fetch)

    def flow(self, messages: int) -> None:
        def flow() -> None:
            self._permits += messages
            self._pass_permits_on()

        self._events.post(flow)

    def detach(self, error: ReplogError, then: Callable[[], object] = lambda: None) -> None:
        """Detach the consumer, because the client, or its connection, has gone. then: called when its place is free."""

        def detach() -> None:
            source = self._source if self._error is None else None
            self._end(error)
            try:
                if source is not None:
                    source.detach(self._id)
            finally:
                then()

        self._events.post(detach)

    def resume(self, era: int, end: int, ranges: NDArray[np.int64]) -> AppendFuture[Resumed]:
        """Repeat acknowledgements, see `protocol.Resume`. The future is done when the subscription has them."""
        done: AppendFuture[Resumed] = AppendFuture()
        counts = False

        def resume() -> None:
            then(self.source.acknowledge_again(self._id, end, ranges, is_meant), done, resumed)

        def is_meant() -> bool:
            """Called in a step of the subscription."""
            nonlocal counts
            now = 0 if self._eras else self.source.era  # 0: a seek that is not reported yet begins another era
            if self.state[1] is None:  # the first time; no event changes it meanwhile
                self.state = self.generation, now
            counts = now == era and max(end, int(ranges[-1, 1]) if len(ranges) else 0) <= self.source.known_end
            return counts

        def resumed(has_all: bool) -> None:
            generation, now = self.state
            set_result(done, Resumed(generation, now or 0, counts and has_all))

        self._events.post(lambda: then(completed_future(), done, lambda _: resume()))
        return done

    def acknowledge(self, generation: int, noted: AckedOffsets) -> None:
        self.source.acknowledge_noted(self._id, lambda: noted if self._is_current(generation) else None)

    def acknowledge_cumulative(self, generation: int, end: int) -> AppendFuture[None]:
        return self.source.acknowledge_cumulative(self._id, end, if_=lambda: self._is_current(generation))

    def _is_current(self, generation: int) -> bool:
        """Return whether the consumer knows of the last seek. Called in a step of the subscription."""
        seeks, first = self._known
        return seeks == self._seeks and generation >= first

    # ---- calls of the subscription -------------------------------------------------------------------------

    def deliver(self, delivery: DeliveredMessages) -> None:
        def deliver() -> None:
            batch = delivery.batch
            count, size = len(batch), batch.stored_bytes if batch.is_whole else size_of(batch)
            self._granted -= count
            self._message_bytes = max(1, size // max(count, 1), self._message_bytes // 2)
            self._queue.append((delivery, size))
            self._queued_bytes += size
            self._hand_out()

        self._events.post(deliver)

    def discard(self, *, sought: bool = False) -> None:
        def discard() -> None:
            self._permits += sum(len(delivery.batch) for delivery, _ in self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            generation, era = self.generation + 1, self.state[1]
            if sought:
                self._known = (self._known[0] + 1, generation)
                era = None if era is None else self._eras[0]
                self._eras.popleft()
            self.state = generation, era
            self._hand_out()

        self._events.post(discard)

    def forget_acks(self, era: int) -> None:
        """Note a seek: acknowledgements in flight, from a consumer that does not know of the seek, do not count."""
        self._seeks += 1
        self._eras.append(era)

    def set_active(self, active: bool) -> None:
        def set_active() -> None:
            self._active = active
            self._hand_out()

        self._events.post(set_active)

    def failed(self, error: ReplogError) -> None:
        self._events.post(lambda: self._end(error))

    def close(self) -> None:
        """Detach the consumer, because the topic is closed here."""
        self.detach(ClosedError(f"consumer {self.name}: its topic was closed at this server"))

    def _end(self, error: ReplogError) -> None:
        self._error = self._error or error
        self._queue.clear()
        self._queued_bytes = 0
        self._hand_out()

    # ---- deliveries -----------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._fetches:
            if self._error is not None:
                self._reply(self._fetches.popleft(), encode_fault(self._error))
                continue
            if not self._queue and self._reported == (self.state[0], self._active):
                break
            self._reply(self._fetches.popleft(), *self._next())
        self._pass_permits_on()

    def _next(self) -> list[ReadableBuffer]:
        self._reported = (self.state[0], self._active)
        if not self._queue:
            return encode_delivered(Delivered(*self._reported, None, {}, self.state[1]))
        (batch, redelivered), size = self._queue.popleft()
        self._queued_bytes -= size
        if size > BATCH_BYTES:
            batch, rest = cut(batch, BATCH_BYTES)
            if rest is not None:
                rest_size = size - size_of(batch)
                self._queue.appendleft((DeliveredMessages(rest, redelivered), rest_size))
                self._queued_bytes += rest_size
        return encode_delivered(Delivered(*self._reported, batch, redelivered, self.state[1]))

    def _pass_permits_on(self) -> None:
        """Pass permits on, if waiting and expected messages leave room."""
        if self._source is None or self._error is not None or not self._permits:
            return
        room = WAITING_BYTES - self._queued_bytes - self._granted * self._message_bytes
        if 2 * room < WAITING_BYTES and (self._granted or self._queue):
            return
        messages = min(self._permits, max(room // self._message_bytes, 1))
        self._permits -= messages
        self._granted += messages
        self._source.flow(self._id, messages)


LANES_MAX = CONSUMERS_MAX = 4096
ORIGINS_MAX = 1 << 16
DONE = encode_reply(Done())
NOT_KNOWN = bytes((STALE,))

T = TypeVar("T")


class OriginSession(NamedTuple):
    """A session of an origin that the client replicates into a topic."""

    topic: Topic
    origin: Origin
    session: int


class ClientSession:
    """One connection. Any thread. Lanes and consumers have the handles that the client chose."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._answer = connection.reply
        self._checked: set[int] = set()  # requests whose replies get a checksum
        self._lock = threading.Lock()  # guards the tables; never held while anything waits
        self._producers: dict[int, ProducerSession] = {}
        self._consumers: dict[int, ConsumerSession] = {}
        self._origins: dict[int, OriginSession] = {}
        self._origin_handles: dict[tuple[str, Origin], int] = {}
        self._exchanges: dict[int, ExchangePeer] = {}
        self._error: ReplogError | None = None

    # ---- answers --------------------------------------------------------------------------------------------

    def checks(self, request: int) -> None:
        """Note that a request had a checksum, so its reply gets one."""
        self._checked.add(request)

    def reply(self, request: int, *buffers: ReadableBuffer) -> bool:
        """Answer a request; buffers after the first one have checksums of their own."""
        if request not in self._checked:
            return self._answer(request, *buffers)
        self._checked.discard(request)
        return self._answer(request, buffers[0], checksum(buffers[0]), *buffers[1:])

    def done(self, request: int) -> None:
        self.reply(request, DONE)

    def fail(self, request: int, error: BaseException, address: str = "") -> None:
        if not isinstance(error, ReplogError):
            logger.error("a request failed", exc_info=error)
        self.reply(request, encode_fault(error, address))

    def answer(self, request: int, future: AppendFuture[T], reply: Callable[[T], Reply]) -> None:
        """Answer a request with the result of a future, or its error."""

        def settled(_: AppendFuture[T]) -> None:
            error = future.exception()
            if error is not None:
                self.fail(request, error)
            else:
                self.reply(request, encode_reply(reply(future.result())))

        future.add_done_callback(settled)

    # ---- sessions -----------------------------------------------------------------------------------------

    def producer_session(self, handle: int) -> ProducerSession | None:
        return self._producers.get(handle)

    def consumer_session(self, handle: int) -> ConsumerSession | None:
        return self._consumers.get(handle)

    def add_producer(self, handle: int, session: ProducerSession) -> None:
        """Add the session of a producer. Raises InvalidMessageError; ClosedError if the connection is closed."""
        self._add(self._producers, handle, session, LANES_MAX)

    def add_consumer(self, handle: int, consumer_session: ConsumerSession) -> None:
        """Add a consumer. Raises the errors of `add_producer`."""
        self._add(self._consumers, handle, consumer_session, CONSUMERS_MAX)

    def origin(self, handle: int) -> OriginSession | None:
        return self._origins.get(handle)

    def add_origin(self, handle: int, opened: OriginSession) -> None:
        """Add a session of an origin, in place of an older one. Raises the errors of `add_producer`."""
        with self._lock:
            key = opened.topic.name, opened.origin
            self._origins.pop(self._origin_handles.get(key, 0), None)
            self._origin_handles[key] = handle
        self._add(self._origins, handle, opened, ORIGINS_MAX)

    def add_exchange(self, session: int, peer: ExchangePeer) -> None:
        """Add a session about replicated subscriptions. Raises the errors of `add_producer`."""
        self._add(self._exchanges, session, peer, ORIGINS_MAX)

    def _add(self, table: dict[int, Any], handle: int, session: object, most: int) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            if handle in table or len(table) >= most:
                raise InvalidMessageError(f"handle {handle}: expected one of at most {most}, not in use")
            table[handle] = session

    def remove_producer(self, handle: int) -> ProducerSession | None:
        with self._lock:
            return self._producers.pop(handle, None)

    def remove_consumer(self, handle: int, only: ConsumerSession | None = None) -> ConsumerSession | None:
        """Remove a consumer, and return it. only: leave another one that has its handle."""
        with self._lock:
            if only is not None and self._consumers.get(handle) is not only:
                return None
            return self._consumers.pop(handle, None)

    def detach_consumers(self, error: ReplogError) -> None:
        """Detach all consumers, and answer their FETCH requests with the error, so that they go to another server."""
        with self._lock:
            consumers, self._consumers = list(self._consumers.values()), {}
        for consumer_session in consumers:
            consumer_session.detach(error)

    def end(self, error: ReplogError) -> list[ProducerSession]:
        """End all sessions, because the connection is closed; return those of producers."""
        with self._lock:
            self._error = ClosedError(f"the connection was lost: {error}")
            sessions, self._producers = list(self._producers.values()), {}
            self._origins.clear()
            exchanges, self._exchanges = self._exchanges, {}
        self.detach_consumers(self._error)
        for session in sessions:
            session.end()
        for number, peer in exchanges.items():
            peer.connection_lost(number)
        return sessions
