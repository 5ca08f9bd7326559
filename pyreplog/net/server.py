"""Server: accepts connections, takes requests and sends replies, within its limits."""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyreplog._native.net.frame import CONTROL_OFFSET, encode
from pyreplog.errors import ClosedError, ReplogError, TooManyConnectionsError
from pyreplog.net.connection import ASKED, SERVER_FULL, Handler
from pyreplog.net.endpoint import Endpoint
from pyreplog.net.handshake import NodeIdentity, Secret, ServerHandshake, refusal
from pyreplog.net.hello import NONCE_BYTES
from pyreplog.net.limits import Limits
from pyreplog.net.listener import Listener
from pyreplog.net.pending_connection import Established, PendingConnection
from pyreplog.net.pending_connections import PendingConnections
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import Budget, ServerConnection
from pyreplog.net.sockets import Address, weak_callback
from pyreplog.net.tls import TlsStream

logger = logging.getLogger(__name__)

_PARTING_S = 2.0


class Server(Endpoint):
    """Serves `handler` at `address` until `drain` or `close`.

    Above `limits.connection_inflight_bytes` and `inflight_bytes` the server does not read from that connection, or from
    any, until replies were sent. It never refuses a request. `close` closes the port and all connections without
    waiting for replies.

    Args:
        reactor: drives the server.
        handler: handles `ServerConnection`s.
        host: address to listen at; the default is loopback.
        port: 0: a free one.
        identity: identity of this node.
        secret: clients must know it, and get a proof that this server does.
        limits: limits of the connections; None: the defaults.
        tls: a context for servers; with verify_mode CERT_REQUIRED and no secret, certificates authenticate both sides.
        random: returns `count` random bytes.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
        InvalidArgumentError: the host does not exist.
    """

    def __init__(
        self,
        reactor: Reactor,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        identity: NodeIdentity | None = None,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.limits = limits or Limits()
        self.identity = identity or NodeIdentity()
        self.connections: set[ServerConnection] = set()
        self.refused = 0  # connections above the limit, and those whose hello failed
        self._handler = handler
        self._secret, self._tls, self._random = secret, tls, random
        self._wrap = None if tls is None else partial(TlsStream, tls, host=None)
        self._pending = PendingConnections(self.limits.pending_connections, self.limits.pending_per_address)
        self._budget = Budget(self.limits.inflight_bytes, weak_callback(self._budget_changed))
        self._listener = Listener(reactor, host, port, weak_callback(self._begin_handshake))
        self.address = self._listener.address
        super().__init__(f"server at {self.address[0]}:{self.address[1]}", reactor)
        self._listener.begin()

    @property
    def handshakes(self) -> int:
        """Number of connections whose handshake is not complete."""
        return len(self._pending)

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that were read and whose replies were not sent."""
        return self._budget.used_bytes

    # ---- accepting ------------------------------------------------------------------------------------------

    def _begin_handshake(self, sock: socket.socket, address: Address) -> None:
        if len(self.connections) >= self.limits.connections:
            self._refuse_surplus(sock)
            return
        handshake = ServerHandshake(
            self.identity,
            self.limits,
            self._random(NONCE_BYTES),
            secret=self._secret,
            mutual_tls=self._tls is not None and self._tls.verify_mode == ssl.CERT_REQUIRED,
        )
        pending = PendingConnection(
            self._reactor,
            sock,
            handshake,
            self.limits.handshake_ms / 1000,
            weak_callback(self._handshake_done),
            self._wrap,
        )
        former = self._pending.add(pending, address[0])
        if former is not None:
            former.evict()
        pending.begin()

    def _refuse_surplus(self, sock: socket.socket) -> None:
        self.refused += 1
        error = TooManyConnectionsError(f"the server has {self.limits.connections} connections, the most that it takes")
        with sock, suppress(OSError):  # the peer may have closed it already
            if self._tls is None:
                sock.send(b"".join(encode(CONTROL_OFFSET, body) for body in refusal(error)))

    def _handshake_done(self, pending: PendingConnection, outcome: Established | ReplogError) -> None:
        self._pending.discard(pending)
        if isinstance(outcome, ReplogError):
            self.refused += 1
            logger.info("%s: a handshake failed: %s", self._label, outcome)
            return
        stream, peer = outcome
        if len(self.connections) >= self.limits.connections:  # several handshakes ended at the same time
            self.refused += 1
            stream.close()
            return
        connection = ServerConnection(
            self._reactor, stream, self._handler, self.limits, peer, self._budget, weak_callback(self._ended)
        )
        self.connections.add(connection)
        if self._budget.full:
            connection.hold(SERVER_FULL)
        connection.open()

    # ---- limits ---------------------------------------------------------------------------------------------

    def _budget_changed(self) -> None:
        if self._reactor.in_driver():
            self._apply_budget()
        else:
            self._reactor.call_soon(weak_callback(self._apply_budget))

    def _apply_budget(self) -> None:
        for connection in self.connections:
            if self._budget.full:
                connection.hold(SERVER_FULL)
            else:
                connection.release(SERVER_FULL)

    # ---- closing --------------------------------------------------------------------------------------------

    def _ended(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)

    def drain(self, timeout: float) -> bool:
        """Accept no more connections and requests, send the remaining replies, and close, within `timeout` seconds.

        The last quarter of this time, at most 2 s, is left for clients to receive the replies, and to close.

        Returns:
            Whether all replies were sent.

        Raises:
            InvalidArgumentError: a callback called it.
        """
        self._check_open()
        parting_s = min(_PARTING_S, timeout / 4)
        self._reactor.call_soon(self._stop_accepting)
        try:
            replied = self._reactor.drive(self._all_replied, timeout - parting_s)
            self._reactor.call_soon(self._shut_down_connections)
            self._reactor.drive(self._is_released, parting_s)
            return replied
        finally:
            self.close()

    def _all_replied(self) -> bool:
        return self._listener.closed and all(connection.idle for connection in list(self.connections))

    def _stop_accepting(self) -> None:
        self._listener.end()
        for pending in self._pending:
            pending.abandon()
        self._pending.clear()
        for connection in self.connections:
            connection.hold(ASKED)

    def _shut_down_connections(self) -> None:
        for connection in list(self.connections):
            if connection.idle:
                connection.shut_down()
            else:
                connection.close(ClosedError("the server was closed"))

    def _is_released(self) -> bool:
        return self._listener.closed and not self.connections

    def _close_in_driver(self) -> None:
        self._stop_accepting()
        for connection in list(self.connections):
            connection.close(ClosedError("the server was closed"))

    def _after_fork(self) -> None:
        super()._after_fork()
        self._listener.close()
