"""What stands, at a server, for a consumer of a client: deliveries wait in it until a FETCH takes them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog.errors import ClosedError, InvalidMessageError, ReplogError
from pyreplog.topic.remote.batches import BATCH_BYTES, Delivered, cut, encode_delivered, sizes_of
from pyreplog.topic.remote.faults import encode_fault
from pyreplog.topic.source import Delivery
from pyreplog.topic.subscription import Subscription
from pyreplog.topic.turns import Events

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

WAITING_BYTES = 4 << 20
"""About so many bytes wait in an outlet: the consumer's permits are passed on as there is room."""
FETCHES_MAX = 2
_FIRST_SIZE = 16 << 10
"""A message is taken for so large before one has come."""


class Outlet:
    """A Receiver. Any thread; steps take turns, and none waits.

    reply: sends the answer to a request. generation: one more each time that messages which were delivered are not the
    consumer's any more.
    """

    def __init__(self, name: str, reply: Callable[..., object]) -> None:
        self.name = name
        self.generation = 0
        self._reply = reply
        self._events = Events()
        self._source: Subscription | None = None
        self._id = -1
        self._active = True
        self._fetches: deque[int] = deque()
        self._queue: deque[Delivery] = deque()
        self._queued_bytes = 0
        self._permits = 0  # the consumer's, not passed on yet
        self._granted = 0  # passed on, messages have not come yet
        self._message_bytes = _FIRST_SIZE  # what one has, about
        self._told = (0, True)  # generation and active, as the consumer knows them
        self._error: ReplogError | None = None

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
    def source(self) -> Subscription:
        """Where it is attached. ClosedError: nowhere."""
        if self._source is None or self._error is not None:
            raise self._error or ClosedError(f"consumer {self.name} is not attached")
        return self._source

    @property
    def number(self) -> int:
        """As its subscription knows it."""
        return self._id

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

    # ---- what the subscription says -------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        def deliver() -> None:
            count, size = len(delivery.batch), int(sizes_of(delivery.batch).sum())
            self._granted -= count
            self._message_bytes = max(1, size // max(count, 1), self._message_bytes // 2)
            self._queue.append(delivery)
            self._queued_bytes += size
            self._hand_out()

        self._events.post(deliver)

    def discard(self) -> None:
        def discard() -> None:
            self._permits += sum(len(delivery.batch) for delivery in self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            self.generation += 1
            self._hand_out()

        self._events.post(discard)

    def forget_acks(self) -> None:
        """It gathers none; the consumer will be told."""

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
            return encode_delivered(Delivered(*self._told, None, {}))
        batch, redelivered = self._queue.popleft()
        batch, rest = cut(batch, BATCH_BYTES)
        self._queued_bytes -= int(sizes_of(batch).sum())
        if rest is not None:
            self._queue.appendleft(Delivery(rest, redelivered))
        return encode_delivered(Delivered(*self._told, batch, redelivered))

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
