"""A client's link to one address: requests and their replies over a connection that is made again when it is lost."""

from __future__ import annotations

import logging
import random as _random
import secrets
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog._native.net.answers import settle
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
from pyreplog.net.pending_requests import OnReply, PendingRequests
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address, Stream, size_of, weak_callback
from pyreplog.net.timers import Timer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


class Channel(Endpoint):
    """Connects to `address` (host, port) in the background, and again whenever the connection is lost.

    expected: what the server must be. identity: what we are. secret: the server must know it too, and is told so
    only after it has shown that. tls: a context for clients; the certificate must be for `address`'s host.
    random: a number from 0 to 1, for the delays between attempts.

    `close` disconnects: requests without an outcome get DisconnectedError, or NotConnectedError if never sent.

    Requests made before the first attempt has ended wait for it. After an attempt that failed, requests are refused
    at once until one succeeds.
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
        self.unknown_replies = 0  # to nobody: late, or never asked for
        self.error: ReplogError | None = None  # of the last attempt to connect; None: it succeeded, or is the first
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, random)
        self._dialer = Dialer(
            reactor, weak_callback(self._dialed), identity=identity or NodeIdentity(),
            expected=expected or NodeIdentity(),
            limits=self.limits, secret=secret, tls=tls, nonce=nonce,
        )  # fmt: skip
        self._connection: Connection | None = None
        self._proven: Connection | None = None  # the last one that anything came from
        self._lock = Mutex()  # of the requests and of their order on the wire
        self.requests = PendingRequests(self._lock)
        self._look: Timer | None = None  # at their deadlines
        self._unsent: dict[int, tuple[tuple[ReadableBuffer, ...], int]] = {}  # wait for the first attempt
        self._unsent_bytes = 0
        self._now_us = reactor.clock.monotonic_us
        super().__init__(f"channel to {address[0]}:{address[1]}", reactor)
        reactor.call_soon(weak_callback(self._connect))

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def peer(self) -> Peer | None:
        """The server, while there is a connection."""
        connection = self._connection
        return None if connection is None else connection.peer

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        connection = self._connection
        return self._unsent_bytes if connection is None else connection.queued_bytes

    @property
    def inflight(self) -> int:
        """Requests without an outcome."""
        return len(self.requests.waiting)

    # ---- requests -------------------------------------------------------------------------------------------

    def request(self, *buffers: ReadableBuffer, on_reply: OnReply, timeout: float) -> int:
        """Send a request, with a body made of `buffers`; its correlation id. Any thread; never blocks.

        The buffers are not copied and must not change until the outcome is there. Requests leave in the order in
        which they were made.

        on_reply: called once, by the thread that drives the reactor, with the reply's body (a view that pins a
        receive buffer) or with the error: PeerTimeoutError after `timeout` seconds, DisconnectedError (with both the
        outcome is unknown), NotConnectedError, or InvalidArgumentError when it is larger than the server takes (nothing
        was sent). Ctrl-C in the middle of
        the call makes it be called again.

        Errors: InvalidArgumentError, an empty body; ClosedError.
        """
        size = size_of(buffers)
        if not size:
            raise InvalidArgumentError("a request has a body: a frame without one is a heartbeat")
        return self.ask(buffers, size, on_reply, self._now_us() + int(timeout * 1e6))

    def ask(self, buffers: tuple[ReadableBuffer, ...], size: int, on_reply: OnReply, deadline_us: int) -> int:
        """`request`, of a body of `size` bytes, more than 0, that is to be answered by `deadline_us` on the reactor's
        clock."""
        requests = self.requests
        correlation_id = requests.ask(buffers, size, on_reply, deadline_us)
        if correlation_id >= 0:
            return correlation_id
        with self._lock:
            if self._error is not None:
                raise self._error
            correlation_id, connection = requests.number(), self._connection
            if connection is None:
                refusal = self._put_off(correlation_id, buffers, size, on_reply, deadline_us)
            elif size > connection.peer.max_body_bytes:
                refusal = _too_large(connection, size)
            else:
                if requests.add(correlation_id, on_reply, deadline_us):
                    self._arm(deadline_us)
                if connection.send_frame(correlation_id, buffers, size):
                    return correlation_id
                del requests.waiting[correlation_id]
                refusal = self._not_connected()
        if refusal is not None:
            self._reactor.call_soon(lambda: on_reply(refusal))
        return correlation_id

    def _put_off(
        self, correlation_id: int, buffers: tuple[ReadableBuffer, ...], size: int, on_reply: OnReply, deadline_us: int
    ) -> ReplogError | None:
        """Under the lock, without a connection. Returns why not."""
        if self.error is None:
            if self._unsent_bytes + size > self.limits.queued_bytes:
                wait = f"{self._unsent_bytes} bytes wait for it, of {self.limits.queued_bytes} that may (queued_bytes)"
                return NotConnectedError(f"no {self._what} yet: {wait}")
            if self.requests.add(correlation_id, on_reply, deadline_us):
                self._arm(deadline_us)
            self._unsent[correlation_id] = buffers, size
            self._unsent_bytes += size
            return None
        return self._not_connected()

    def _not_connected(self) -> NotConnectedError:
        error = NotConnectedError(f"no {self._what}: {self.error or 'the connection was just lost'}")
        error.__cause__ = self.error
        return error

    def _settle(self, correlation_id: int, outcome: memoryview | ReplogError) -> bool:
        """Tell whoever waits; False: nobody does. By the driver. Forgotten when it was told: Ctrl-C loses none."""
        waiting = self.requests.waiting
        entry = waiting.get(correlation_id)
        if entry is None:
            return False
        try:
            entry[0](outcome)
        except Exception:
            logger.exception("an on_reply raised")
        del waiting[correlation_id]
        return True

    # ---- deadlines ------------------------------------------------------------------------------------------

    def _arm(self, deadline_us: int) -> None:
        """Under the lock. In place of the look to come: each sets the next one, and two would do so for ever."""
        if self._look is not None:
            self._look.cancel()
        delay_s = (deadline_us - self._reactor.clock.monotonic_us()) / 1e6
        self._look = self._reactor.call_later(max(0.0, delay_s), weak_callback(self._check_deadlines))

    def _check_deadlines(self) -> None:
        now_us = self._reactor.clock.monotonic_us()
        with self._lock:
            overdue = self.requests.overdue(now_us)
        for correlation_id in overdue:
            with self._lock:
                unsent = self._unsent.pop(correlation_id, None)
                self._unsent_bytes -= 0 if unsent is None else unsent[1]
            if unsent is None:
                self._settle(correlation_id, PeerTimeoutError(f"no reply in time from the {self._what}"))
            else:
                self._settle(correlation_id, NotConnectedError(f"no {self._what} in time"))
        with self._lock:
            next_us = self.requests.next_check_us(now_us)
            if next_us is not None and self._error is None:
                self._arm(next_us)

    # ---- what the connection tells --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Send what waited, in order."""
        with self._lock:
            self._connection, self.error = connection, None
            unsent, self._unsent, self._unsent_bytes = self._unsent, {}, 0
            too_large: list[tuple[int, int]] = []
            for correlation_id, (buffers, size) in unsent.items():
                if size <= connection.peer.max_body_bytes:
                    connection.send_frame(correlation_id, buffers, size)
                else:
                    too_large.append((correlation_id, size))
            connection.carry(self.requests)
        for correlation_id, size in too_large:
            self._settle(correlation_id, _too_large(connection, size))

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        if self._proven is not connection:
            self._proven = connection
            self._backoff.reset()
            connection.settle_plainly(self.requests.waiting)
        others, calls, soon = settle(batch, self.requests.waiting)
        for call in (*calls, *soon) if others else calls:  # news before other answers that came behind
            try:
                call()
            except Exception:
                logger.exception("what an answer led to raised")
        if soon and not others:
            self._reactor.call_behind(soon)
        for correlation_id, body in others:
            if not self._settle(correlation_id, body):
                self.unknown_replies += 1

    def drained(self, connection: Connection) -> None:
        """Requests wait for nothing but their replies."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        with self._lock:
            self._connection = None
            self.requests.end()
            lost = [correlation_id for correlation_id in self.requests.waiting if correlation_id not in self._unsent]
        if self._error is None:
            self._reactor.call_later(self._backoff.next_s(), weak_callback(self._connect))
        for correlation_id in lost:
            outcome = DisconnectedError(f"the {self._what} was lost: {error}")
            outcome.__cause__ = error
            self._settle(correlation_id, outcome)

    # ---- connecting -----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._error is None and self._connection is None and not self._dialer.dialing:
            self._dialer.dial(self.address)

    def _dialed(self, stream: Stream | None, peer: Peer | None, error: ReplogError | None) -> None:
        if stream is None or peer is None:
            self._failed(error or NotConnectedError("no connection"))
            return
        Connection(self._reactor, stream, self, self.limits, peer).open()

    def _failed(self, error: ReplogError) -> None:
        """An attempt failed: whoever waited for it is told."""
        with self._lock:
            self.error = error
            unsent, self._unsent, self._unsent_bytes = self._unsent, {}, 0
        if self._error is None:
            self._reactor.call_later(self._backoff.next_s(), weak_callback(self._connect))
        for correlation_id in unsent:
            self._settle(correlation_id, self._not_connected())

    # ---- the end --------------------------------------------------------------------------------------------

    def _gone(self) -> bool:
        return self._connection is None and not self._dialer.dialing and not self.requests.waiting

    def _let_go(self) -> None:
        self.requests.end()
        super()._let_go()

    def _forked(self) -> None:
        super()._forked()
        self.requests.end()
        self._lock = self.requests.lock = Mutex()  # a thread that is not here may have held it

    def _shut(self) -> None:
        self._dialer.abandon()
        if self._connection is not None:
            self._connection.close(ClosedError(f"the {self._what} was closed"))
        self._failed(ClosedError(f"the {self._what} was closed"))


def _too_large(connection: Connection, size: int) -> InvalidArgumentError:
    most = connection.peer.max_body_bytes
    return InvalidArgumentError(f"a request has at most {most} bytes on this connection, this one {size}")
