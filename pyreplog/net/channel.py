"""Channel: requests to one address and their replies, over a connection that is established again when it is lost."""

from __future__ import annotations

import logging
import random as _random
import secrets
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from pyreplog._native.net.add_replies import settle
from pyreplog._native.net.frame import FrameBatch
from pyreplog._native.system.mutex import Mutex
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    InvalidArgumentError,
    NotConnectedError,
    PeerTimeoutError,
    ReplogError,
)
from pyreplog.net.backoff import BACKOFF_FIRST_S, BACKOFF_MOST_S, Backoff
from pyreplog.net.connection import Connection
from pyreplog.net.dialer import Dialer
from pyreplog.net.endpoint import Endpoint
from pyreplog.net.handshake import NodeIdentity, Peer, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.pending_connection import Established
from pyreplog.net.pending_requests import OnReply, PendingRequests
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address, size_of, weak_callback
from pyreplog.net.timers import Timer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

OnLost: TypeAlias = Callable[[ReplogError], object]


class Channel(Endpoint):
    """Connects to `address` (host, port) in the background, and again whenever the connection is lost.

    Requests made before the first attempt has ended wait for it. After a failed attempt requests are refused at once,
    until an attempt succeeds. `close` disconnects: requests without an outcome get DisconnectedError, or
    NotConnectedError if they were never sent.

    Args:
        reactor: drives the connection.
        address: host and port of the server.
        expected: identity that the server must have.
        identity: identity of this node.
        secret: the server must know it too, and gets this side's proof only after its own.
        tls: a context for clients; the certificate must be for the host of `address`.
        limits: limits of the connection; None: the defaults.
        random: returns a number from 0 to 1, for the delays between attempts.
        nonce: returns random bytes.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: Address,
        *,
        expected: NodeIdentity | None = None,
        identity: NodeIdentity | None = None,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        random: Callable[[], float] = _random.random,
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.address = address
        self.limits = limits or Limits()
        self.unknown_replies = 0  # replies that arrived late, or belong to no request
        self.error: ReplogError | None = None  # of the last attempt to connect; None: it succeeded, or none has ended
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, random)
        self._dialer = Dialer(
            reactor, weak_callback(self._dialed), identity=identity or NodeIdentity(),
            expected=expected or NodeIdentity(),
            limits=self.limits, secret=secret, tls=tls, nonce=nonce,
        )  # fmt: skip
        self._connection: Connection | None = None
        self._proven: Connection | None = None  # the last connection on which a frame was received
        self._lock = Mutex()  # guards the requests and their order on the wire
        self.requests = PendingRequests(self._lock)
        self._deadline_timer: Timer | None = None
        self._unsent: dict[int, tuple[tuple[ReadableBuffer, ...], int]] = {}  # requests that wait for the first attempt
        self._unsent_bytes = 0
        self._watchers: list[OnLost] = []  # of the current connection
        self._now_us = reactor.clock.monotonic_us
        super().__init__(f"channel to {address[0]}:{address[1]}", reactor)
        reactor.call_soon(weak_callback(self._connect))

    @property
    def connected(self) -> bool:
        """Whether the channel is connected."""
        return self._connection is not None

    @property
    def peer(self) -> Peer | None:
        """The server; None: the channel is not connected."""
        connection = self._connection
        return None if connection is None else connection.peer

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        connection = self._connection
        return self._unsent_bytes if connection is None else connection.queued_bytes

    @property
    def inflight(self) -> int:
        """Number of requests without an outcome."""
        return len(self.requests.waiting)

    # ---- requests -------------------------------------------------------------------------------------------

    def request(self, *buffers: ReadableBuffer, on_reply: OnReply, timeout: float) -> int:
        """Send a request whose body consists of `buffers`. Never blocks; any thread may call it.

        The buffers are not copied, and must not change until the outcome is known. Requests are sent in the order in
        which they are made.

        Args:
            buffers: parts of the body.
            on_reply: called once, by the thread that drives the reactor, with the body of the reply (a view that pins a
                receive buffer), or with the error: PeerTimeoutError after `timeout`, DisconnectedError (with either the
                outcome is unknown), NotConnectedError, or InvalidArgumentError if the body is larger than the server
                accepts (nothing was sent). Ctrl-C during the call makes it be called again.
            timeout: seconds.

        Returns:
            The correlation id.

        Raises:
            InvalidArgumentError: the body is empty.
            ClosedError: the channel was closed.
        """
        size = size_of(buffers)
        if not size:
            raise InvalidArgumentError(
                "expected a request with a body, found none: a frame without a body is a heartbeat"
            )
        return self.ask(buffers, size, on_reply, self._now_us() + int(timeout * 1e6))

    def ask(self, buffers: tuple[ReadableBuffer, ...], size: int, on_reply: OnReply, deadline_us: int) -> int:
        """Send a request whose body has `size` bytes, more than 0; otherwise as `request`.

        deadline_us: time at which the request fails, on the reactor's clock.
        """
        requests = self.requests
        correlation_id = requests.ask(buffers, size, on_reply, deadline_us)
        if correlation_id >= 0:
            return correlation_id
        with self._lock:
            if self._error is not None:
                raise self._error
            correlation_id, connection = requests.number(), self._connection
            if connection is None:
                refusal = self._queue_unsent(correlation_id, buffers, size, on_reply, deadline_us)
            elif size > connection.peer.max_body_bytes:
                refusal = _too_large(connection, size)
            else:
                if requests.add(correlation_id, on_reply, deadline_us):
                    self._set_deadline_timer(deadline_us)
                if connection.send_frame(correlation_id, buffers, size):
                    return correlation_id
                del requests.waiting[correlation_id]
                refusal = self._not_connected()
        if refusal is not None:
            self._reactor.call_soon(lambda: on_reply(refusal))
        return correlation_id

    def _queue_unsent(
        self, correlation_id: int, buffers: tuple[ReadableBuffer, ...], size: int, on_reply: OnReply, deadline_us: int
    ) -> ReplogError | None:
        """Keep a request until the first connection; return an error if it is refused instead.

        Called under the lock.
        """
        if self.error is None:
            if self._unsent_bytes + size > self.limits.queued_bytes:
                wait = f"{self._unsent_bytes} of at most {self.limits.queued_bytes} bytes wait for it (queued_bytes)"
                return NotConnectedError(f"no {self._label} yet: {wait}")
            if self.requests.add(correlation_id, on_reply, deadline_us):
                self._set_deadline_timer(deadline_us)
            self._unsent[correlation_id] = buffers, size
            self._unsent_bytes += size
            return None
        return self._not_connected()

    def _not_connected(self) -> NotConnectedError:
        error = NotConnectedError(f"no {self._label}: {self.error or 'the connection was just lost'}")
        error.__cause__ = self.error
        return error

    def _settle(self, correlation_id: int, outcome: memoryview | ReplogError) -> bool:
        """Call a request's callback with its outcome, and then remove it, so that Ctrl-C loses no outcome.

        Called by the driver. Returns False if the request is unknown.
        """
        waiting = self.requests.waiting
        entry = waiting.get(correlation_id)
        if entry is None:
            return False
        try:
            entry[0](outcome)
        except Exception:
            logger.exception("an on_reply callback raised an exception")
        del waiting[correlation_id]
        return True

    def watch(self, on_lost: OnLost) -> None:
        """Call `on_lost` when the current connection is lost.

        Args:
            on_lost: called once, with the error, by the thread that drives the reactor; soon if the channel is not
                connected.
        """
        with self._lock:
            if self._connection is not None:
                self._watchers.append(on_lost)
                return
            error = self._not_connected()
        self._reactor.call_soon(lambda: on_lost(error))

    # ---- deadlines ------------------------------------------------------------------------------------------

    def _set_deadline_timer(self, deadline_us: int) -> None:
        """Set the timer for the deadlines, in place of the current one. Called under the lock.

        Each timer sets the next one, so two timers would run forever.
        """
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        delay_s = (deadline_us - self._reactor.clock.monotonic_us()) / 1e6
        self._deadline_timer = self._reactor.call_later(max(0.0, delay_s), weak_callback(self._check_deadlines))

    def _check_deadlines(self) -> None:
        now_us = self._reactor.clock.monotonic_us()
        with self._lock:
            overdue = self.requests.overdue(now_us)
        for correlation_id in overdue:
            with self._lock:
                unsent = self._unsent.pop(correlation_id, None)
                self._unsent_bytes -= 0 if unsent is None else unsent[1]
            if unsent is None:
                self._settle(correlation_id, PeerTimeoutError(f"no reply in time from the {self._label}"))
            else:
                self._settle(correlation_id, NotConnectedError(f"no {self._label} in time"))
        with self._lock:
            next_us = self.requests.next_check_us(now_us)
            if next_us is not None and self._error is None:
                self._set_deadline_timer(next_us)

    # ---- calls of the connection ----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Send the requests that waited, in order."""
        with self._lock:
            self._connection, self.error = connection, None
            unsent, self._unsent, self._unsent_bytes = self._unsent, {}, 0
            too_large: list[tuple[int, int]] = []
            for correlation_id, (buffers, size) in unsent.items():
                if size <= connection.peer.max_body_bytes:
                    connection.send_frame(correlation_id, buffers, size)
                else:
                    too_large.append((correlation_id, size))
            connection.attach(self.requests)
        for correlation_id, size in too_large:
            self._settle(correlation_id, _too_large(connection, size))

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Settle the requests whose replies have arrived."""
        if self._proven is not connection:
            self._proven = connection
            self._backoff.reset()
            connection.settle_plainly(self.requests.waiting)
        others, calls, soon = settle(batch, self.requests.waiting)
        for call in (*calls, *soon) if others else calls:  # notifications before the other replies after them
            try:
                call()
            except Exception:
                logger.exception("a callback of a reply raised an exception")
        if soon and not others:
            self._reactor.call_behind(soon)
        for correlation_id, body in others:
            if not self._settle(correlation_id, body):
                self.unknown_replies += 1

    def drained(self, connection: Connection) -> None:
        """Do nothing: requests wait only for their replies."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        """Fail the requests without a reply, and connect again after a delay."""
        with self._lock:
            self._connection = None
            self.requests.end()
            lost = [correlation_id for correlation_id in self.requests.waiting if correlation_id not in self._unsent]
            watchers, self._watchers = self._watchers, []
        if self._error is None:
            self._reactor.call_later(self._backoff.next_s(), weak_callback(self._connect))
        outcome = DisconnectedError(f"the {self._label} was lost: {error}")
        outcome.__cause__ = error
        for correlation_id in lost:
            self._settle(correlation_id, outcome)
        for on_lost in watchers:
            try:
                on_lost(outcome)
            except Exception:
                logger.exception("an on_lost callback raised an exception")

    # ---- connecting -----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._error is None and self._connection is None and not self._dialer.dialing:
            self._dialer.dial(self.address)

    def _dialed(self, outcome: Established | ReplogError) -> None:
        if isinstance(outcome, ReplogError):
            self._failed(outcome)
        else:
            Connection(self._reactor, outcome.stream, self, self.limits, outcome.peer).open()

    def _failed(self, error: ReplogError) -> None:
        """Fail the requests that waited for an attempt to connect."""
        with self._lock:
            self.error = error
            unsent, self._unsent, self._unsent_bytes = self._unsent, {}, 0
        if self._error is None:
            self._reactor.call_later(self._backoff.next_s(), weak_callback(self._connect))
        for correlation_id in unsent:
            self._settle(correlation_id, self._not_connected())

    # ---- the end --------------------------------------------------------------------------------------------

    def _is_released(self) -> bool:
        return self._connection is None and not self._dialer.dialing and not self.requests.waiting

    def _do_close(self) -> None:
        self.requests.end()
        super()._do_close()

    def _after_fork(self) -> None:
        super()._after_fork()
        self.requests.end()
        self._lock = self.requests.lock = Mutex()  # a thread of the parent process may have held it

    def _close_in_driver(self) -> None:
        self._dialer.abandon()
        if self._connection is not None:
            self._connection.close(ClosedError(f"the {self._label} was closed"))
        self._failed(ClosedError(f"the {self._label} was closed"))


def _too_large(connection: Connection, size: int) -> InvalidArgumentError:
    most = connection.peer.max_body_bytes
    return InvalidArgumentError(f"expected a request of at most {most} bytes on this connection, found {size}")
