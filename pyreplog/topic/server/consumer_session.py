"""What stands, at a server, for a consumer of a client: deliveries wait in it until a FETCH takes them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyreplog.errors import ClosedError, InvalidMessageError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.interfaces import DeliveredMessages, Noted
from pyreplog.topic.model.positions import done_ack, then
from pyreplog.topic.model.wire.batches import BATCH_BYTES, Delivered, cut, encode_delivered, size_of
from pyreplog.topic.model.wire.error_codec import encode_fault
from pyreplog.topic.model.wire.protocol import Resumed
from pyreplog.topic.owner.subscription import Subscription

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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
