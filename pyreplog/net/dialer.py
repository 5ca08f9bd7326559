"""Connecting to an address: name lookup, TLS, hello, and reconnecting after a lost connection."""

from __future__ import annotations

import errno
import random as _random
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pyreplog.errors import ClosedError, InvalidArgumentError, NotConnectedError, ReplogError
from pyreplog.net.backoff import BACKOFF_FIRST_S, BACKOFF_MOST_S, Backoff
from pyreplog.net.connection import Connection, Handler
from pyreplog.net.endpoint import Endpoint
from pyreplog.net.fast_path import FastPathConnection
from pyreplog.net.handshake import ClientHandshake, NodeIdentity, Secret
from pyreplog.net.hello import NONCE_BYTES
from pyreplog.net.limits import Limits
from pyreplog.net.pending_connection import Established, PendingConnection
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address, address_family, resolve_address, set_socket_options, weak_callback
from pyreplog.net.tls import TlsStream

if TYPE_CHECKING:
    from pyreplog._native.net.frame import FrameBatch


OnDialed = Callable[[Established | ReplogError], object]


class Dialer:
    """Connects to an address, one attempt at a time. The reactor's driver makes all calls.

    on_dialed: called with the established connection, or an error; not for an abandoned attempt. The other arguments
    are those of `Channel`.
    """

    def __init__(
        self,
        reactor: Reactor,
        on_dialed: OnDialed,
        *,
        identity: NodeIdentity,
        expected: NodeIdentity,
        limits: Limits,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._reactor, self._on_dialed = reactor, on_dialed
        self._identity, self._expected, self._limits = identity, expected, limits
        self._secret, self._tls, self._nonce = secret, tls, nonce
        self._pending: PendingConnection | None = None
        self._attempt: object = None  # identifies the current attempt

    @property
    def dialing(self) -> bool:
        return self._attempt is not None

    def dial(self, address: Address) -> None:
        """Begin an attempt."""
        self.abandon()
        attempt = self._attempt = object()
        family = address_family(address[0])
        if family is not None:
            self._connect(attempt, address[0], family, address)
        else:
            threading.Thread(target=self._look_up, args=(attempt, address), name="pyreplog-lookup", daemon=True).start()

    def abandon(self) -> None:
        """Abandon the current attempt, if there is one, without a callback."""
        self._attempt = None
        if self._pending is not None:
            self._pending.abandon()
            self._pending = None

    def _look_up(self, attempt: object, address: Address) -> None:
        """Look up the name of the host, in a thread of its own because it may block."""
        with suppress(ClosedError):  # the reactor was closed meanwhile
            try:
                family, resolved = resolve_address(*address)
                self._reactor.call_soon(lambda: self._connect(attempt, address[0], family, resolved))
            except InvalidArgumentError as error:
                failed = error
                self._reactor.call_soon(lambda: self._end(attempt, failed))

    def _connect(self, attempt: object, host: str, family: socket.AddressFamily, address: Address) -> None:
        if attempt is not self._attempt:
            return
        try:
            sock = set_socket_options(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:  # no descriptor is left
            self._end(attempt, NotConnectedError(f"{address}: {error}"))
            return
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._end(attempt, NotConnectedError(f"{address}: {errno.errorcode.get(code, code)}"))
            return
        wrap = None if self._tls is None else partial(TlsStream, self._tls, host=host)
        handshake = ClientHandshake(
            self._identity, self._expected, self._limits, self._nonce(NONCE_BYTES), secret=self._secret,
            tls=wrap is not None,
        )  # fmt: skip
        on_outcome = weak_callback(self._handshake_done)
        self._pending = PendingConnection(
            self._reactor, sock, handshake, self._limits.handshake_ms / 1000, on_outcome, wrap, is_client=True
        )
        self._pending.begin()

    def _handshake_done(self, _: PendingConnection, outcome: Established | ReplogError) -> None:
        self._pending = None
        self._end(self._attempt, outcome)

    def _end(self, attempt: object, outcome: Established | ReplogError) -> None:
        if attempt is self._attempt:
            self._attempt = None
            self._on_dialed(outcome)


class ReconnectingConnection(Endpoint):
    """Keeps a connection to `address` (host, port) for `handler`.

    It connects again, with a growing delay, whenever the connection is lost or cannot be established. `redirect`
    changes the address. The delay is reset after the handler has called `succeeded`. The arguments are those of
    `Channel`. Any thread may call any method.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: Address,
        handler: Handler,
        *,
        identity: NodeIdentity | None = None,
        expected: NodeIdentity | None = None,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.address = address
        self.limits = limits or Limits()
        self.error: ReplogError | None = None  # the last error; None: connected, or no attempt has ended
        self._handler, self.fast_path = handler, getattr(handler, "fast_path", None)
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, random)
        self._connection: Connection | None = None
        self._is_reporting_loss = False  # while the handler's `closed` runs
        self._dialer = Dialer(
            reactor, weak_callback(self._dialed), identity=identity or NodeIdentity(),
            expected=expected or NodeIdentity(),
            limits=self.limits, secret=secret, tls=tls,
        )  # fmt: skip
        super().__init__(f"link to {address[0]}:{address[1]}", reactor)
        reactor.call_soon(weak_callback(self._dial))

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def redirect(self, address: Address) -> None:
        """Connect to another address from now on, and close the current connection."""
        self._check_open()
        if address != self.address:
            self.address = address
            self._reactor.call_soon(weak_callback(self._redirected))

    def succeeded(self) -> None:
        """Reset the delay, because the connection is useful."""
        self._backoff.reset()

    def _redirected(self) -> None:
        self._backoff.reset()
        if self._connection is not None:
            self._connection.close(ClosedError("the address has changed"))
        else:
            self._dialer.abandon()
            self._dial()

    def _dial(self) -> None:
        if self._error is None and self._connection is None and not self._dialer.dialing:
            self._dialer.dial(self.address)

    def _dialed(self, outcome: Established | ReplogError) -> None:
        if isinstance(outcome, ReplogError):
            self._lost(outcome)
        else:
            FastPathConnection(self._reactor, outcome.stream, self, self.limits, outcome.peer).open()

    def _lost(self, error: ReplogError) -> None:
        self.error = error
        if self._error is None:
            self._reactor.call_later(self._backoff.next_s(), weak_callback(self._dial))

    # ---- calls of the connection ----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connection, self.error = connection, None
        self._handler.opened(connection)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        self._handler.frames(connection, batch)

    def drained(self, connection: Connection) -> None:
        self._handler.drained(connection)

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self._is_reporting_loss = True
        try:
            self._connection = None
            self._lost(error)
            self._handler.closed(connection, error)
        finally:
            self._is_reporting_loss = False

    # ---- the end --------------------------------------------------------------------------------------------

    def _is_released(self) -> bool:
        return self._connection is None and not self._dialer.dialing and not self._is_reporting_loss

    def _close_in_driver(self) -> None:
        self._dialer.abandon()
        if self._connection is not None:
            self._connection.close(ClosedError(f"the {self._label} was closed"))
