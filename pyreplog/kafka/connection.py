"""KafkaConnection: receives the requests of one client, and sends the responses in the order of the requests."""

from __future__ import annotations

import logging
import ssl
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pyreplog._native.kafka.request_parser import RequestParser
from pyreplog._native.net.send_queue import SendQueue
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    HandshakeError,
    PeerError,
    PeerTimeoutError,
    ReplogError,
    SlowPeerError,
)
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.receive_budget import SMALL_BYTES, ReceiveBudget
from pyreplog.net.reactor import BROKEN, READ, WRITE, Reactor
from pyreplog.net.sockets import Stream, size_of, weak_callback
from pyreplog.net.tls import TlsStream

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


class Answer:
    """The place of a response in the response queue of its connection. Made by `KafkaConnection.expect_answer`."""

    __slots__ = ("buffers", "size")

    def __init__(self) -> None:
        self.buffers: Sequence[ReadableBuffer] | None = None
        self.size = 0


class RequestHandler(Protocol):
    """Handles the requests of connections. All calls are made by the reactor's driver thread; none may block."""

    def request(self, connection: KafkaConnection, data: memoryview) -> None:
        """Handle a request, given without its size field. A ReplogError closes the connection."""
        ...

    def closed(self, connection: KafkaConnection) -> None:
        """Note that a connection was closed. This is its last call."""
        ...


class KafkaConnection:
    """A connection of a Kafka client.

    Requests are handled as they arrive, without waiting for earlier responses: produces append at once, and a waiting
    fetch does not delay other requests. Responses are sent in the order of the requests. While too many responses are
    outstanding, or are queued because the client does not read them, the connection stops reading, and requests that
    were already read stay in the backlog.

    All methods are called by the reactor's driver thread, except `expect_answer`, `answer`, `mute`, `release` and
    `close`, which any thread may call.

    Args:
        reactor: reports events of the socket, and runs callbacks.
        stream: the accepted, non-blocking socket; the connection owns it.
        peer: the client's address, for log messages.
        handler: handles the requests.
        config: settings of the listener.
        session: state of the handler for this client.
        budget: memory for incomplete requests, which the connections of the listener share.
    """

    def __init__(
        self, reactor: Reactor, stream: Stream, peer: str, handler: RequestHandler, config: KafkaConfig,
        session: object, budget: ReceiveBudget,
    ) -> None:  # fmt: skip
        self.peer, self.session = peer, session
        self.error: ReplogError | None = None
        """Why the connection is closed or closing; None: it is open."""
        self.is_trusted = True
        """False: the client has to authenticate within `request_ms`."""
        self._reactor, self._stream, self._handler, self._config = reactor, stream, handler, config
        self._fd = stream.fileno()
        self._handshaking = stream if isinstance(stream, TlsStream) else None
        self._pending = stream.pending if isinstance(stream, TlsStream) else None
        self._parser = RequestParser(max_request_bytes=config.max_request_bytes)
        self._budget = budget
        self._reserved = 0  # bytes of the budget, if more than SMALL_BYTES
        self._backlog: deque[memoryview] = deque()  # requests that were read but not handled yet
        self._lock = allocate_lock()  # guards the fields below
        self._queue = SendQueue(stream.sendmsg)
        self._answers: deque[Answer] = deque()  # responses that were not sent, oldest first
        self._waiting_bytes = 0  # of responses that wait for an earlier one
        self._events = READ
        self._is_paused = False
        self._holds = 0  # calls of `hold` without one of `release`
        self._awaits_memory = False
        self._muted_until_us = 0
        self._is_finished = False
        now_us = reactor.clock.monotonic_us()
        self._opened_us = self._idle_since_us = self._partial_us = self._progress_us = now_us
        self._progress = 0  # number of sent bytes at `_progress_us`

    def open(self) -> None:
        """Start to read requests."""
        self._reactor.register(self._fd, weak_callback(self._on_events), READ)

    @property
    def requests(self) -> int:
        """Number of requests whose responses were not handed to the kernel yet."""
        return len(self._answers)

    @property
    def queued_bytes(self) -> int:
        """Bytes of responses that were not sent yet."""
        return self._queue.queued_bytes + self._waiting_bytes

    # ---- receiving ------------------------------------------------------------------------------------------

    def _on_events(self, events: int) -> None:
        if self.error is not None:
            return
        try:
            if self._handshaking is not None:
                self._continue_handshake(self._handshaking)
                return
            if events & WRITE:
                self._flush()
            if events & READ and self._events & READ:
                self._receive()
            elif events & BROKEN:
                self._stream.recv(1)  # raises the socket's error
                raise DisconnectedError("the client closed the connection")
        except BlockingIOError:
            return
        except Exception as error:
            self._fail(error)

    def _continue_handshake(self, stream: TlsStream) -> None:
        events = stream.do_handshake()
        if events:
            self._reactor.modify(self._fd, events)
            return
        self._handshaking = None
        self._reactor.modify(self._fd, self._events)
        self._read_pending()

    def _receive(self) -> None:
        """Read once, so that other connections get their turn before the next read."""
        if not self._reserve_memory():
            return
        try:
            count = self._stream.recv_into(self._parser.get_buffer())
        except BlockingIOError:
            self._parser.received(0)
            self._free_memory()
            raise
        if not count:
            cut = f", {self._parser.buffered} bytes into a request" if self._parser.buffered else ""
            raise DisconnectedError(f"the client closed the connection{cut}")
        requests = self._parser.received(count)
        self._free_memory()
        if requests:
            self._idle_since_us = self._partial_us = self._reactor.clock.monotonic_us()
            self._backlog.extend(requests)
            del requests  # views pin the receive buffer
            self._handle_backlog()
        elif self._parser.buffered == count:  # the first bytes of a request
            self._partial_us = self._reactor.clock.monotonic_us()
        if self._parser.error is not None:
            raise self._parser.error
        if self._pending is not None and self._pending():
            self._reactor.call_soon(weak_callback(self._read_pending))

    def _reserve_memory(self) -> bool:
        """Reserve the memory that the next read needs. Returns False: nothing is read until there is some."""
        size = self._parser.next_memory
        if size <= SMALL_BYTES and not self._reserved:
            return True
        if self._budget.acquire(self, size, weak_callback(self._schedule_receiving)):
            self._reserved = size
            return True
        if not self._parser.buffered:
            self._parser.begin_small()
            return True
        with self._lock:
            self._awaits_memory = True
            self._update_events()
        return False

    def _free_memory(self) -> None:
        size = self._parser.memory
        if size < self._reserved:
            self._budget.release(self, size)
            self._reserved = size if size > SMALL_BYTES else 0

    def _schedule_receiving(self) -> None:
        with suppress(ReplogError):  # the reactor was closed
            self._reactor.call_soon(weak_callback(self._resume_receiving))

    def _resume_receiving(self) -> None:
        """Read again, if there is memory for the rest of the request."""
        if self.error is not None or not self._awaits_memory or not self._reserve_memory():
            return
        with self._lock:
            self._awaits_memory = False
            self._update_events()
        if self._pending is not None:
            self._read_pending()

    def _read_pending(self) -> None:
        """Read bytes that TLS has buffered, which epoll does not report."""
        self._on_events(READ)

    def _handle_backlog(self) -> None:
        while self._backlog and self.error is None:
            with self._lock:
                if self._is_full():
                    self._is_paused = True
                    self._update_events()
                    return
            self._handler.request(self, self._backlog.popleft())

    def _is_full(self) -> bool:
        config = self._config
        if self._holds:
            return True
        if self._muted_until_us and self._reactor.clock.monotonic_us() < self._muted_until_us:
            return True
        return len(self._answers) >= config.inflight_requests or self.queued_bytes > config.queued_bytes

    def _resume(self) -> None:
        """Continue to handle requests, if there is room for their responses."""
        if self.error is not None:
            return
        with self._lock:
            if self._is_full():
                return
            self._is_paused = False
        try:
            self._handle_backlog()
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            if self._is_paused:
                return
            self._partial_us = self._reactor.clock.monotonic_us()
            self._update_events()
        if self._pending is not None:
            self._reactor.call_soon(weak_callback(self._read_pending))

    def mute(self, duration_ms: int) -> None:
        """Stop reading and handling requests for a while, because the client exceeded its quota.

        Responses are still sent.

        Any thread may call it. Of several calls the one that ends last applies.

        Args:
            duration_ms: duration, milliseconds.
        """
        with self._lock:
            until_us = self._reactor.clock.monotonic_us() + duration_ms * 1000
            if self.error is not None or until_us <= self._muted_until_us:
                return
            self._muted_until_us, self._is_paused = until_us, True
            self._update_events()
        with suppress(ReplogError):  # the reactor was closed: no more requests are read
            self._reactor.call_later(duration_ms / 1000, weak_callback(self._resume))

    def hold(self) -> None:
        """Handle no further request until `release`: a thread still works on the one before, and their order counts.

        After several calls, it takes as many of `release`.
        """
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """Handle requests again after `hold`. Any thread may call it."""
        with self._lock:
            self._holds -= 1
            may_resume = self._is_paused and self.error is None and not self._is_full()
        if may_resume:
            with suppress(ReplogError):  # the reactor was closed
                self._reactor.call_soon(weak_callback(self._resume))

    # ---- responses ------------------------------------------------------------------------------------------

    def expect_answer(self) -> Answer:
        """Return the place of the response to the request that is being handled, after all earlier responses."""
        answer = Answer()
        with self._lock:
            self._answers.append(answer)
        return answer

    def answer(self, answer: Answer, buffers: Sequence[ReadableBuffer]) -> None:
        """Set the response to a request. It is sent once all earlier responses were sent.

        The call never blocks and does not copy: the buffers must not change until they were sent. Any thread may call
        it.

        Args:
            answer: place of the response.
            buffers: the encoded response with its size field.
        """
        size = size_of(buffers)
        with self._lock:
            if self.error is not None:
                return
            answer.buffers, answer.size = buffers, size
            self._waiting_bytes += size
            if self._answers[0] is not answer:
                return
            try:
                self._send_answers()
            except OSError as error:
                self._close_soon(DisconnectedError(f"the connection was lost: {error}"))
                return
            self._update_events()
            may_resume = self._is_paused and not self._is_full()
        if may_resume:
            self._reactor.call_soon(weak_callback(self._resume))

    def _send_answers(self) -> None:
        """Send the responses at the front of the queue that are set. Called with the lock held."""
        buffers: list[ReadableBuffer] = []
        size = 0
        answers = self._answers
        while answers and (ready := answers[0].buffers) is not None:
            buffers.extend(ready)
            size += answers.popleft().size
        self._waiting_bytes -= size
        if not self._queue.queued_bytes:
            self._progress_us, self._progress = self._reactor.clock.monotonic_us(), self._queue.sent_bytes
        self._queue.send(buffers, size)

    def _flush(self) -> None:
        with self._lock:
            self._queue.flush()
            self._update_events()
            may_resume = self._is_paused and not self._is_full()
        if may_resume:
            self._resume()

    def _update_events(self) -> None:
        """Register the events that are needed now with the reactor. Called with the lock held."""
        events = (0 if self._is_paused or self._awaits_memory else READ) | (WRITE if self._queue.queued_bytes else 0)
        if events != self._events and self.error is None:
            self._events = events
            self._reactor.modify(self._fd, events)

    # ---- time-outs ------------------------------------------------------------------------------------------

    def check_time(self, now_us: int) -> None:
        """Close the connection if its client is idle, or reads responses or sends a request too slowly.

        It is called periodically.

        Args:
            now_us: monotonic time, microseconds.
        """
        config, queue = self._config, self._queue
        if self.error is not None:
            return
        if queue.sent_bytes != self._progress or not queue.queued_bytes:
            self._progress_us, self._progress = now_us, queue.sent_bytes
        is_partial = self._handshaking is not None or (self._parser.buffered > 0 and not self._is_paused)
        if now_us - self._progress_us > config.stall_ms * 1000:
            self.close(SlowPeerError(f"the client did not receive {queue.queued_bytes} bytes of answers"))
        elif is_partial and now_us - self._partial_us > config.request_ms * 1000:
            part = "a TLS handshake" if self._handshaking is not None else f"{self._parser.buffered} bytes of a request"
            self.close(PeerTimeoutError(f"{part} without an end within {config.request_ms / 1000:g} s"))
        elif not self.is_trusted and now_us - self._opened_us > config.request_ms * 1000:
            self.close(PeerTimeoutError(f"no authentication within {config.request_ms / 1000:g} s"))
        elif self._answers or self._backlog or self._holds or now_us < self._muted_until_us:
            self._idle_since_us = now_us
        elif now_us - self._idle_since_us > config.idle_ms * 1000:
            self.close(ClosedError(f"no request for {config.idle_ms / 1000:g} s"))

    # ---- closing --------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Close the connection after an error of receiving or handling a request."""
        if isinstance(error, ReplogError):
            self.close(error)
        elif isinstance(error, ssl.SSLError):
            self.close(HandshakeError(f"TLS: {error.reason}"))
        elif isinstance(error, OSError):
            self.close(DisconnectedError(f"the connection was lost: {error}"))
        else:
            logger.error("Kafka client %s: a request failed, its connection is closed", self.peer, exc_info=error)
            self.close(PeerError(f"{type(error).__name__} in a request"))

    def close(self, error: ReplogError) -> None:
        """Close the connection; unsent responses are dropped. Any thread may call it; the first error is kept."""
        with self._lock:
            self._close_soon(error)

    def _close_soon(self, error: ReplogError) -> None:
        """Schedule the close on the reactor's driver thread. Called with the lock held."""
        if self.error is not None:
            return
        self.error = error.with_traceback(None)  # the traceback's frames refer to this object: avoid a reference cycle
        if self._reactor.in_driver():
            call = self._finish
        else:
            call = weak_callback(self._finish)
        try:
            self._reactor.call_soon(call)
        except ReplogError:  # the reactor was closed
            return

    def _finish(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        self._log_end()
        self._reactor.unregister(self._fd)
        self._stream.close()
        with self._lock:
            self._answers.clear()
            self._queue.clear()
            self._waiting_bytes = 0
        self._backlog.clear()
        self._budget.release(self)
        self._handler.closed(self)

    def _log_end(self) -> None:
        error = self.error
        quiet = isinstance(error, (DisconnectedError, ClosedError))
        log: Callable[..., None] = logger.debug if quiet else logger.warning
        log("Kafka client %s: the connection is closed: %s: %s", self.peer, type(error).__name__, error)
