"""One connection of a client at a server, with a session for each of its producers and consumers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog.errors import ClosedError, InvalidMessageError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.net.server_connection import ServerConnection
from pyreplog.topic.client.publishing.forwarded import Forwarded
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.interfaces import DeliveredMessages, Noted
from pyreplog.topic.model.positions import done_ack, then
from pyreplog.topic.model.wire.batches import BATCH_BYTES, Delivered, cut, encode_delivered, size_of
from pyreplog.topic.model.wire.fields import checksum
from pyreplog.topic.model.wire.protocol import OK, PUBLISHED, STALE, Done, Reply, Resumed, encode_fault, encode_reply
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


SendReply = Callable[..., object]


class ProducerSession:
    """Any thread; steps take turns, and none waits. producer, client: as of `protocol.Open`."""

    def __init__(self, topic: Topic, producer: str, client: str, reply: SendReply) -> None:
        self.topic, self.producer, self.client = topic, producer, client
        self._publisher = topic.publisher
        self._reply = reply
        self._events = EventQueue()
        self._waiting: deque[tuple[int, Forwarded]] = deque()  # for room
        self._asks = False  # has asked for room
        self._over: bytes | None = None  # what is answered to all that comes
        self._left: Callable[[], object] | None = None  # nothing more comes

    def publish(self, request: int, entries: Sequence[bytes]) -> None:
        """Its answer comes when the entries have an outcome. Errors: those of Forwarded; nothing was published."""
        forwarded = Forwarded(self.topic.name, entries)

        def publish() -> None:
            self._waiting.append((request, forwarded))
            self._go_on()

        self._events.post(publish)

    def end(self, answer: bytes = bytes((STALE,))) -> AppendFuture[None]:
        """Nothing is published through it any more, once the AppendFuture is done; what waits is answered so."""
        done: AppendFuture[None] = AppendFuture()

        def end() -> None:
            self._over = self._over or answer
            self._go_on()
            done.complete(None)

        self._events.post(end)
        return done

    def leave(self, left: Callable[[], object]) -> None:
        """The client sends nothing more. What waits is published as there is room, or refused as soon as a quota holds
        publishers; left: called when nothing does any more."""

        def leave() -> None:
            self._left = left
            self._go_on()

        self._events.post(leave)

    def _go_on(self) -> None:
        while self._waiting:
            if self._left is not None and self._over is None and (held := self._publisher.held()) is not None:
                self._over = encode_fault(held)  # of what comes behind it none may be stored
            if self._over is not None:
                self._reply(self._waiting.popleft()[0], self._over)
                continue
            if self._asks:
                return
            try:
                if not self._publisher.has_room:
                    self._asks = True
                    self._publisher.room().add_done_callback(lambda _: self._events.post(self._has_room))
                    return
                self._forward(*self._waiting.popleft())
            except ReplogError as error:  # the topic was closed, or taken over: what comes later must not be stored
                self._over = encode_fault(error)
        if self._left is not None:
            left, self._left = self._left, None
            left()

    def _has_room(self) -> None:
        self._asks = False
        self._go_on()

    def _forward(self, request: int, forwarded: Forwarded) -> None:
        try:
            offsets = self._publisher.forward(forwarded)
        except ReplogError as error:
            self._reply(request, encode_fault(error))
            raise
        offsets.add_done_callback(partial(self._settled, request, forwarded))

    def _settled(self, request: int, forwarded: Forwarded, offsets: AppendFuture[range]) -> None:
        error = offsets.exception()
        self._reply(
            request, encode_fault(error) if error is not None else encode_published(forwarded, offsets.result())
        )


def encode_published(forwarded: Forwarded, offsets: range) -> bytes:
    """The reply to a PUBLISH: the offset of the first message that is stored, and which ones are, unless all."""
    total, kept = forwarded.messages_given, forwarded.kept
    head = bytes((OK,)) + PUBLISHED.encode((offsets[0] if offsets else -1, total, len(offsets)))
    return head if kept is None or not offsets else head + np.packbits(kept).tobytes()


logger = logging.getLogger(__name__)

WAITING_BYTES = 4 << 20
"""About so many bytes wait in an outlet: the consumer's permits are passed on as there is room."""
FETCHES_MAX = 3
_FIRST_SIZE = 16 << 10
"""A message is taken for so large before one has come."""


class ConsumerSession:
    """A DeliveryTarget. Any thread; steps take turns, and none waits.

    reply: sends the answer to a request.
    """

    def __init__(self, name: str, reply: Callable[..., object]) -> None:
        self.name = name
        self.state: tuple[int, int | None] = (0, None)
        """The consumer's generation, one more each time that messages which were delivered are not its any more; and
        the era of these messages, None: it was not resumed."""
        self._reply = reply
        self._events = EventQueue()
        self._source: Subscription | None = None
        self._id = -1
        self._active = True
        self._fetches: deque[int] = deque()
        self._queue: deque[tuple[DeliveredMessages, int]] = deque()  # and its size
        self._queued_bytes = 0
        self._permits = 0  # the consumer's, not passed on yet
        self._granted = 0  # passed on, messages have not come yet
        self._message_bytes = _FIRST_SIZE  # what one has, about
        self._told = (0, True)  # generation and active, as the consumer knows them
        self._error: ReplogError | None = None
        self._seeks = 0  # of the subscription, since this is attached; changed in their steps
        self._known = (0, 0)  # those whose discard came, and the first generation behind these
        self._eras: deque[int] = deque()  # that begin with the others

    def attached(self, source: Subscription, number: int) -> None:
        """It belongs to a subscription now; detached since: it leaves."""

        def attached() -> None:
            self._source, self._id = source, number
            if isinstance(self._error, ClosedError):
                source.detach(number)
            else:
                self._pass_on()

        self._events.post(attached)

    @property
    def generation(self) -> int:
        return self.state[0]

    @property
    def source(self) -> Subscription:
        """Where it is attached. ClosedError: nowhere."""
        if self._source is None or self._error is not None:
            raise self._error or ClosedError(f"consumer {self.name} is not attached")
        return self._source

    @property
    def number(self) -> int:
        """As its subscription knows it."""
        return self._id

    def refuse_calls(self, error: ReplogError) -> None:
        """Refuse every request with `error` from now on, and tell nobody. For tests, as `Handle.refuse_calls`."""
        self._error = self._error or error

    # ---- what the client asks -------------------------------------------------------------------------------

    def fetch(self, request: int) -> None:
        """To be answered as soon as there is something. InvalidMessageError: too many wait already."""
        if len(self._fetches) >= FETCHES_MAX:
            raise InvalidMessageError(f"consumer {self.name}: expected {FETCHES_MAX} FETCHes at most")

        def fetch() -> None:
            self._fetches.append(request)
            self._hand_out()

        self._events.post(fetch)

    def flow(self, messages: int) -> None:
        def flow() -> None:
            self._permits += messages
            self._pass_on()

        self._events.post(flow)

    def detach(self, error: ReplogError, then: Callable[[], object] = lambda: None) -> None:
        """The client, or its connection, has gone. then: called when its place is free."""

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
        """See `protocol.Resume`. Done when the subscription knows what was acknowledged."""
        done: AppendFuture[Resumed] = AppendFuture()
        counts = False

        def resume() -> None:
            then(self.source.acknowledge_again(self._id, end, ranges, is_meant), done, lambda _: resumed())

        def is_meant() -> bool:
            """In a step of the subscription."""
            nonlocal counts
            now = 0 if self._eras else self.source.era  # a seek that is on its way here begins one
            if self.state[1] is None:  # the first time: no event changes it meanwhile
                self.state = self.generation, now
            counts = now == era and max(end, int(ranges[-1, 1]) if len(ranges) else 0) <= self.source.known_end
            return counts

        def resumed() -> None:
            generation, now = self.state
            done.complete(Resumed(generation, now or 0, counts))

        self._events.post(lambda: then(done_ack(), done, lambda _: resume()))
        return done

    def acknowledge(self, generation: int, noted: Noted) -> None:
        self.source.acknowledge_noted(self._id, lambda: noted if self._knew(generation) else None)

    def acknowledge_cumulative(self, generation: int, end: int) -> AppendFuture[None]:
        return self.source.acknowledge_cumulative(self._id, end, if_=lambda: self._knew(generation))

    def _knew(self, generation: int) -> bool:
        """Whether the consumer had been told of the last seek. In a step of the subscription."""
        seeks, first = self._known
        return seeks == self._seeks and generation >= first

    # ---- what the subscription says -------------------------------------------------------------------------

    def deliver(self, delivery: DeliveredMessages) -> None:
        def deliver() -> None:
            count, size = len(delivery.batch), size_of(delivery.batch)
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
        """It gathers none; those that are on their way here, from a consumer that has not been told, do not count."""
        self._seeks += 1
        self._eras.append(era)

    def became(self, active: bool) -> None:
        def became() -> None:
            self._active = active
            self._hand_out()

        self._events.post(became)

    def failed(self, error: ReplogError) -> None:
        self._events.post(lambda: self._end(error))

    def close(self) -> None:
        """The topic is closed here."""
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
            if not self._queue and self._told == (self.generation, self._active):
                break
            self._reply(self._fetches.popleft(), *self._next())
        self._pass_on()

    def _next(self) -> list[ReadableBuffer]:
        self._told = (self.generation, self._active)
        if not self._queue:
            return encode_delivered(Delivered(*self._told, None, {}, self.state[1]))
        (batch, redelivered), size = self._queue.popleft()
        self._queued_bytes -= size
        if size > BATCH_BYTES:
            batch, rest = cut(batch, BATCH_BYTES)
            if rest is not None:
                left = size - size_of(batch)
                self._queue.appendleft((DeliveredMessages(rest, redelivered), left))
                self._queued_bytes += left
        return encode_delivered(Delivered(*self._told, batch, redelivered, self.state[1]))

    def _pass_on(self) -> None:
        """Permits, while what waits, and may come, leaves room."""
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
DONE = encode_reply(Done())
NOT_KNOWN = bytes((STALE,))

T = TypeVar("T")


class ClientSession:
    """Any thread. Lanes and consumers by the handles that the client gave them."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._answer = connection.reply
        self._checked: set[int] = set()  # requests whose replies have a checksum
        self._lock = threading.Lock()  # of the tables; never while anything waits
        self._producers: dict[int, ProducerSession] = {}
        self._consumers: dict[int, ConsumerSession] = {}
        self._error: ReplogError | None = None

    # ---- answers --------------------------------------------------------------------------------------------

    def checks(self, request: int) -> None:
        """It came with a checksum, and so will its reply."""
        self._checked.add(request)

    def reply(self, request: int, *buffers: ReadableBuffer) -> bool:
        """Answer a request; what follows the first buffer has checksums of its own."""
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

    def answer(self, request: int, future: AppendFuture[T], made: Callable[[T], Reply]) -> None:
        """With what an AppendFuture gives, or why it failed."""

        def settled(_: AppendFuture[T]) -> None:
            error = future.exception()
            if error is not None:
                self.fail(request, error)
            else:
                self.reply(request, encode_reply(made(future.result())))

        future.add_done_callback(settled)

    # ---- lanes and consumers --------------------------------------------------------------------------------

    def lane(self, handle: int) -> ProducerSession | None:
        return self._producers.get(handle)

    def consumer_session(self, handle: int) -> ConsumerSession | None:
        return self._consumers.get(handle)

    def add_producer(self, handle: int, lane: ProducerSession) -> None:
        """Errors: InvalidMessageError; ClosedError, the connection has gone."""
        self._add(self._producers, handle, lane, LANES_MAX)

    def add_consumer(self, handle: int, consumer_session: ConsumerSession) -> None:
        """Errors: as add_producer."""
        self._add(self._consumers, handle, consumer_session, CONSUMERS_MAX)

    def _add(self, table: dict[int, Any], handle: int, what: object, most: int) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            if handle in table or len(table) >= most:
                raise InvalidMessageError(f"handle {handle}: expected one of at most {most}, not in use")
            table[handle] = what

    def remove_producer(self, handle: int) -> ProducerSession | None:
        with self._lock:
            return self._producers.pop(handle, None)

    def remove_consumer(self, handle: int) -> ConsumerSession | None:
        with self._lock:
            return self._consumers.pop(handle, None)

    def lanes(self) -> list[ProducerSession]:
        with self._lock:
            return list(self._producers.values())

    def let_consumers_go(self, error: ReplogError) -> None:
        """Their FETCHes are answered with the error: they are to go elsewhere."""
        with self._lock:
            outlets, self._consumers = list(self._consumers.values()), {}
        for consumer_session in outlets:
            consumer_session.detach(error)

    def end(self, error: ReplogError) -> list[ProducerSession]:
        """The connection has gone. Returns its lanes."""
        with self._lock:
            self._error = ClosedError(f"the connection was lost: {error}")
            lanes, self._producers = list(self._producers.values()), {}
        self.let_consumers_go(self._error)
        for lane in lanes:
            lane.end()
        return lanes
