"""Connection: receives frames and sends buffers over one socket."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pyreplog import handles
from pyreplog._native.net.add_replies import Replies
from pyreplog._native.net.frame import HEADER_SIZE, FrameBatch, FrameParser, encode_header, heartbeat
from pyreplog._native.net.frame_feed_base import FrameFeedBase
from pyreplog._native.net.pending_requests_base import PendingRequestsBase
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog.errors import ClosedError, DisconnectedError, PeerError, PeerTimeoutError, ReplogError, SlowPeerError
from pyreplog.net.handshake import Peer
from pyreplog.net.keep_alive import KeepAlive, KeepAliveAction
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import BROKEN, HALF_CLOSED, READ, WRITE, Reactor
from pyreplog.net.sockets import Stream, address_text, receiver, size_of, unacknowledged_s, unread_bytes, weak_callback
from pyreplog.net.timers import Timer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

BUFFER_BYTES = 256 << 10
_HEARTBEAT = heartbeat(0)
_SHORTEST_HEARTBEAT_S = 0.01

# Reasons why a connection does not read; it reads when there is none.
ASKED, QUEUE_FULL, INFLIGHT_FULL, SERVER_FULL, JOBS_FULL = 1, 2, 4, 8, 16


class Handler(Protocol):
    """Callbacks of connections. The reactor's driver makes all calls, one at a time; none may block.

    An exception closes the connection that it came from, and no other.
    """

    def opened(self, connection: Connection) -> None:
        """The hello is complete; `connection.peer` describes the other side."""

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Frames have arrived. Those without a body are heartbeats; those at offset -1 are control bodies.

        Bodies are views that pin a receive buffer of 256 KiB or more: release them soon, or copy them.
        """

    def drained(self, connection: Connection) -> None:
        """The send queue is empty: a stream may send more."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        """The connection has ended with this error. It is the last call."""


class Connection:
    """A connection after the hello. Its owner must keep it, because the reactor does not.

    Any thread may call `send`, `pause`, `resume` and `close`. The native callbacks of the reactor (`Replies`,
    `FastPathReceiver`) receive for the connection, and use some attributes, in the driver's thread.

    Attributes:
        peer: the other side, from its hello.
        send_queue: buffers to send; its lock guards `reasons`, too.
        parser: parses the received bytes.
        reasons: bits (ASKED and so on) of the reasons not to read; 0: the connection reads.
        waiting: requests without a reply, by correlation id (`settle_plainly`).
    """

    def __init__(self, reactor: Reactor, stream: Stream, handler: Handler, limits: Limits, peer: Peer) -> None:
        self.peer = peer
        self.limits = limits
        self._reactor, self._stream, self._handler = reactor, stream, handler
        self.parser = FrameParser(max_body=limits.max_body_bytes, buffer_size=BUFFER_BYTES)
        self._receive = receiver(stream, self.parser)
        self._pending = getattr(
            stream, "pending", None
        )  # TLS: returns the number of decrypted bytes that were not read
        self.send_queue = FrameSendQueue(stream, weak_callback(self._queue_grew))
        self._lock = self.send_queue.lock  # guards the reasons and the events, too
        self.reasons = 0
        self._events = READ
        self._closed = self._is_shutting_down = False
        self._timer: Timer | None = None
        self.waiting: dict[int, Any] = {}
        heartbeat_s = min(limits.heartbeat_ms / 1000, max(peer.silence_s / 3, _SHORTEST_HEARTBEAT_S))
        self._keep_alive = KeepAlive(
            reactor.clock.monotonic_us(),
            heartbeat_s=heartbeat_s,
            silence_s=limits.silence_ms / 1000,
            stall_s=limits.stall_ms / 1000,
        )
        handles.opened(self)

    def open(self) -> None:
        """Call the handler, and start to read. Called by the driver."""
        self._reactor.register(self._stream.fileno(), self._event_callback(), READ)
        self._timer = self._reactor.call_later(self._keep_alive.interval_s, weak_callback(self._check_keep_alive))
        self._handler.opened(self)
        if self._pending is not None:
            self._reactor.call_soon(weak_callback(self._read_pending))

    def _event_callback(self) -> Callable[[int], object]:
        """Return the reactor's callback, which does not keep this object alive."""
        return weak_callback(self.handle_events)

    @property
    def error(self) -> ReplogError | None:
        """The error with which the connection was closed, or is about to be; None: it is open."""
        return self.send_queue.error

    @error.setter
    def error(self, error: ReplogError | None) -> None:
        self.send_queue.error = error

    @property
    def remote_address(self) -> str:
        """HOST:PORT of the other end's socket; "" after it was closed."""
        try:
            with socket.socket(fileno=os.dup(self._stream.fileno())) as copy:
                host, port = copy.getpeername()[:2]
        except OSError:
            return ""
        return address_text((host, port))

    @property
    def received_bytes(self) -> int:
        return self.parser.received_bytes

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self.send_queue.queued_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that have arrived and were not read; the handler is about to be called with them. For the driver."""
        return unread_bytes(self._stream)

    def attach(self, sender: PendingRequestsBase | FrameFeedBase) -> None:
        """Let requests or feeds send through this connection directly."""
        sender.begin(self.send_queue, self.peer.max_body_bytes)

    def settle_plainly(self, waiting: dict[int, Any]) -> None:
        """Settle plain OK replies to requests in `waiting` before frames reach the handler (`Replies`).

        Called by the driver.
        """
        if self.send_queue.plain:
            self.waiting = waiting
            self._reactor.replace(self._stream.fileno(), Replies(weakref.ref(self), self._reactor.call_behind))

    # ---- sending --------------------------------------------------------------------------------------------

    def send(self, *buffers: ReadableBuffer) -> bool:
        """Send whole frames, their parts in order, without bytes of another thread between them.

        Never blocks and does not copy: the buffers must not change until they are sent. Returns False if the connection
        is closed, so that nothing was sent; True if the frames were sent, or will be unless the connection is closed
        before.
        """
        with self._lock:
            return self._send_or_queue(buffers, size_of(buffers))

    def send_frame(self, offset: int, body: tuple[ReadableBuffer, ...], size: int) -> bool:
        """Send one frame with a body of `size` bytes, as `send` does."""
        with self._lock:
            return self._send_or_queue_frame(offset, body, size)

    def _send_or_queue_frame(self, offset: int, body: tuple[ReadableBuffer, ...], size: int) -> bool:
        """Send or queue one frame. Called under the lock."""
        send_queue = self.send_queue
        if send_queue.corked or send_queue.error is not None or send_queue.queued_bytes:
            return self._send_or_queue((encode_header(offset, size), *body), size + HEADER_SIZE)
        try:
            send_queue.send_frame(offset, body, size)
        except BaseException as error:
            return self._not_sent(error)
        if send_queue.queued_bytes:
            self._queue_grew()
        return True

    def _send_or_queue(self, buffers: tuple[ReadableBuffer, ...], size: int) -> bool:
        """Send or queue buffers. Called under the lock."""
        send_queue = self.send_queue
        if send_queue.error is not None:
            return False
        if send_queue.corked:
            send_queue.put(buffers, size)
            return True
        try:
            send_queue.send(buffers, size)
        except BaseException as error:
            return self._not_sent(error)
        if send_queue.queued_bytes:
            self._queue_grew()
        return True

    def _not_sent(self, error: BaseException) -> bool:
        if isinstance(error, OSError):
            self._break(self._loss(error))
            return False
        self._break(DisconnectedError("sending was interrupted"))  # Ctrl-C: how much of it was sent is unknown
        raise error

    def _queue_grew(self) -> None:
        if self.send_queue.queued_bytes > self.limits.queued_bytes:
            self.reasons |= QUEUE_FULL
        self._update_events()

    def _flush(self) -> None:
        """Pass queued buffers to the kernel, as many as it takes."""
        with self._lock:
            self.send_queue.flush()
            if self.send_queue.queued_bytes <= self.limits.queued_bytes:
                self.reasons &= ~QUEUE_FULL
            self._update_events()
        self._flushed()

    def _flushed(self) -> None:
        """Call the handler if the queue is empty. Called after queued buffers were sent."""
        if not self.send_queue.queued_bytes:
            self._handler.drained(self)

    def _update_events(self) -> None:
        """Register for the events that are needed now."""
        events = (0 if self.reasons else READ) | (WRITE if self.send_queue.queued_bytes else 0)
        if self.reasons & JOBS_FULL:
            events |= HALF_CLOSED  # jobs of a disconnected peer need not run
        if events != self._events and self.error is None:
            try:
                self._reactor.modify(self._stream.fileno(), events)
            except OSError:
                if self.error is None:
                    raise
                return  # another thread has closed the socket
            self._events = events

    # ---- receiving ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self.hold(ASKED)

    def resume(self) -> None:
        """Read again, unless there is another reason not to read."""
        self.release(ASKED)

    def hold(self, reason: int) -> None:
        """Add a reason not to read."""
        with self._lock:
            self.reasons |= reason
            self._update_events()

    def release(self, reason: int) -> None:
        """Remove a reason not to read."""
        with self._lock:
            held = self.reasons & reason
            self.reasons &= ~reason
            self._update_events()
        if held and self._pending is not None and self.error is None:
            self._reactor.call_soon(weak_callback(self._read_pending))

    def handle_events(self, events: int, taken: tuple[int, FrameBatch] | None = None) -> None:
        """Handle events of the socket. taken: (bytes, frames) that were received already."""
        if self.send_queue.error is not None:
            return
        try:
            if events & WRITE:
                self._flush()
            if taken is not None:
                self._received(*taken)
            elif events & READ and not self.reasons:
                self._received(*self._receive())
            elif events & (BROKEN | HALF_CLOSED):
                self._stream.recv(1)  # raises the error of the socket
                self._lost(ConnectionResetError("the peer closed it"))
        except BaseException as error:
            self.handle_error(error)

    def handle_error(self, error: BaseException) -> None:
        """Close the connection after an error of receiving. BlockingIOError (no bytes) is ignored."""
        if isinstance(error, BlockingIOError):
            return
        if isinstance(error, OSError):
            self._lost(error)
        elif isinstance(error, ReplogError):
            self.close(error)
        elif isinstance(error, Exception):
            logger.error("a connection is closed because its handler raised an exception", exc_info=error)
            self.close(PeerError(f"the handler raised {type(error).__name__}"))
        else:  # Ctrl-C: bytes may have been taken from the stream and not parsed
            self.close(DisconnectedError("receiving was interrupted"))
            raise error

    def _received(self, count: int, batch: FrameBatch) -> None:
        """Handle the frames of one read; other connections get their turn before the next read."""
        if not count:
            cut = f", {self.parser.buffered} bytes into a frame" if self.parser.buffered else ""
            raise DisconnectedError(f"{self._peer_name()} closed the connection{cut}")
        frames = len(batch)
        if frames == 1:
            self._dispatch(batch)
        elif frames:
            self._dispatch_corked(batch)
        if batch.error is not None:
            raise batch.error
        if self._pending is not None and self._pending():
            self._reactor.call_soon(weak_callback(self._read_pending))

    def _dispatch(self, batch: FrameBatch) -> None:
        self._handler.frames(self, batch)

    def _dispatch_corked(self, batch: FrameBatch) -> None:
        """Call the handler, and send all its frames together."""
        self.send_queue.corked = True
        try:
            self._dispatch(batch)
        finally:
            self._uncork()

    def _uncork(self) -> None:
        with self._lock:
            self.send_queue.corked = False
            if not self.send_queue.queued_bytes:
                return
            self.send_queue.flush()  # sends also the frames before an error
            if self.error is not None:
                return
            self._queue_grew()
        self._flushed()

    def _read_pending(self) -> None:
        """Read bytes that TLS has decrypted, which epoll does not see."""
        self.handle_events(READ)

    # ---- keep-alive -----------------------------------------------------------------------------------------

    def _check_keep_alive(self) -> None:
        if self.error is not None:
            return
        action = self._keep_alive.check(
            self._reactor.clock.monotonic_us(), received=self.received_bytes, sent=self.send_queue.sent_bytes,
            listening=not self.reasons, full=self.send_queue.queued_bytes > self.limits.queued_bytes,
            unheard_s=unacknowledged_s(self._stream) if self.reasons else 0.0,
        )  # fmt: skip
        if action is KeepAliveAction.SILENT:
            self.close(PeerTimeoutError(f"{self._peer_name()} was silent for {self.limits.silence_ms / 1000:g} s"))
        elif action is KeepAliveAction.STALLED:
            self.close(
                SlowPeerError(f"{self._peer_name()} does not receive the {self.queued_bytes} bytes in its queue")
            )
        else:
            if action is KeepAliveAction.SEND and not self.queued_bytes:
                self.send(_HEARTBEAT)
            self._timer = self._reactor.call_later(self._keep_alive.interval_s, weak_callback(self._check_keep_alive))

    # ---- the end --------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Send nothing more, and let the peer receive what is being sent. Called by the driver.

        Received bytes are dropped until the peer closes, or `close` is called. Closing a socket with unread bytes would
        discard what has not arrived at the peer.
        """
        if self.error is not None:
            return
        self.error, self._is_shutting_down = ClosedError("the connection is being closed"), True
        try:
            with self._lock:  # no thread is sending a part of a frame
                fd = self._stream.fileno()
                self._stream.shutdown(socket.SHUT_WR)
                self._reactor.unregister(fd)
                self._reactor.register(fd, weak_callback(self._drop), READ)
        except OSError as error:  # the peer has closed it already
            self._lost(error)

    def _drop(self, _: int) -> None:
        try:
            if self._stream.recv(BUFFER_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # the peer has reset it
        self.close()

    def close(self, error: ReplogError | None = None) -> None:
        """Close soon, and drop what is queued. The driver calls the handler. A second call does nothing."""
        if self.error is not None and not self._is_shutting_down:
            return
        self._is_shutting_down = False
        error = error or ClosedError("the connection was closed")
        self.error = error.with_traceback(None)  # avoids a cycle of references through its frames
        try:
            self._reactor.call_soon(self._finish)
        except ReplogError:  # the reactor was closed before
            self._finish()

    def _break(self, error: ReplogError) -> None:
        """Close the connection, under the lock.

        Without a driver its owner closes it later, because handlers take locks.
        """
        if self.error is not None:
            return
        self.error = error.with_traceback(None)
        try:
            self._reactor.call_soon(self._finish)
        except ReplogError:  # the reactor was closed before
            self.error = None

    def _lost(self, error: OSError) -> None:
        self.close(self._loss(error))

    def _loss(self, error: OSError) -> DisconnectedError:
        return DisconnectedError(f"the connection to {self._peer_name()} was lost: {error}")

    def _finish(self) -> None:
        if self._closed:
            return
        with self._lock:  # no thread may use the descriptor after this, because it may be reused at once
            self._reactor.unregister(self._stream.fileno())
            self._stream.close()
        if self._timer is not None:
            self._timer.cancel()
        self.send_queue.clear()
        self._handler.closed(self, self.error or ClosedError("the connection was closed"))
        self._closed = True

    def _peer_name(self) -> str:
        return repr(self.peer.identity.node) if self.peer.identity.node else "the peer"

    def _after_fork(self) -> None:
        self.error = ClosedError("the connection belongs to the parent process")
        self._stream.close()
