"""One connection of a client, at a server: its lanes and consumers, and the answers to what it asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyreplog.errors import ClosedError, InvalidMessageError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.net.server_connection import ServerConnection
from pyreplog.topic.model.wire.error_codec import encode_fault
from pyreplog.topic.model.wire.fields import checksum
from pyreplog.topic.model.wire.protocol import STALE, Done, Reply, encode_reply
from pyreplog.topic.server.consumer_session import ConsumerSession
from pyreplog.topic.server.producer_session import ProducerSession

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

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
