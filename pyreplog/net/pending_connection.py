"""PendingConnection: a connection that is being established: connecting, TLS, hello. It cannot be used yet."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyreplog._native.net.frame import CONTROL_OFFSET, HEADER_SIZE, FrameParser, encode, heartbeat
from pyreplog.errors import (
    DisconnectedError,
    FrameError,
    HandshakeError,
    NotConnectedError,
    PeerTimeoutError,
    ReplogError,
    TlsMismatchError,
    TooManyConnectionsError,
)
from pyreplog.net import hello
from pyreplog.net.handshake import Peer, RefusedByPeerError, refusal
from pyreplog.net.reactor import READ, WRITE, Reactor
from pyreplog.net.sockets import Stream, weak_callback
from pyreplog.net.timers import Timer
from pyreplog.net.tls import TlsStream, handshake_error, tls_mismatch_error

FIRST_HEARTBEAT_S = 0.5
"""Seconds of silence after which a client without TLS sends a heartbeat.

The server sends first, but not one that waits for a TLS handshake. Such a server refuses the heartbeat, and its refusal
says that it wants TLS.
"""
_TLS_RECORDS = (b"\x16\x03", b"\x15\x03")  # the first bytes of a TLS handshake, and of an alert


class Handshake(Protocol):
    """`ServerHandshake` or `ClientHandshake`."""

    peer: Peer | None

    def begin(self) -> list[bytes]: ...

    def receive(self, body: bytes) -> list[bytes]: ...


class Established(NamedTuple):
    """A connection whose handshake is complete: its stream, and the other side."""

    stream: Stream
    peer: Peer


OnOutcome = Callable[["PendingConnection", Established | ReplogError], object]


class PendingConnection:
    """Performs a handshake over a non-blocking socket, and reports the stream or the error, once.

    The owner must keep this object, because the reactor does not.

    Args:
        timeout_s: seconds for the whole handshake.
        on_outcome: called by the driver with this object, and with the established connection or, after the socket was
            closed, the error.
        tls: makes the TLS stream of the connected socket; None: no TLS.
        is_client: whether this is the client's side.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        handshake: Handshake,
        timeout_s: float,
        on_outcome: OnOutcome,
        tls: Callable[[socket.socket], TlsStream] | None = None,
        *,
        is_client: bool = False,
    ) -> None:
        self._reactor, self._handshake, self._on_outcome = reactor, handshake, on_outcome
        self._sock = sock
        self._stream: Stream = sock
        self._make_tls = tls  # None after it was called
        self._tls_handshake: TlsStream | None = None  # until the TLS handshake is complete
        self._fd = sock.fileno()
        self._out = b""
        self._parser = FrameParser(max_body=hello.BODY_MAX, buffer_size=hello.BODY_MAX)
        self._ended = False
        self._connected = not is_client  # a client's socket is connected, or has failed, when it is first ready
        self._timeout_s = timeout_s
        self._timer = reactor.call_later(timeout_s, weak_callback(self._time_out))
        self._first_heartbeat: Timer | None = None
        if is_client and tls is None:
            self._first_heartbeat = reactor.call_later(FIRST_HEARTBEAT_S, weak_callback(self._send_first_heartbeat))
        self._is_client = is_client

    def begin(self) -> None:
        """Begin the handshake; the socket is connected, or is connecting. Called by the driver."""
        self._queue(self._handshake.begin())
        self._reactor.register(self._fd, weak_callback(self._on_events), READ | WRITE)

    def abandon(self) -> None:
        """Close, without a callback."""
        self._end()

    def evict(self) -> None:
        """Refuse the peer, to make room for newer connections: this one has waited longest."""
        self._refuse(
            TooManyConnectionsError("the server has too many connections whose hello is not complete; try again")
        )

    def _send_first_heartbeat(self) -> None:
        if not self._ended and not self._parser.received_bytes:
            self._out += heartbeat(0)
            self._reactor.modify(self._fd, READ | WRITE)

    def _on_events(self, _: int) -> None:
        try:
            self._advance()
        except BlockingIOError:
            return
        except HandshakeError as error:
            self._refuse(error)
        except FrameError as error:
            self._refuse(HandshakeError(f"expected a hello, found other bytes: {error}"))
        except ssl.SSLError as error:  # TLS 1.3 refuses a certificate after the handshake
            self._fail(handshake_error(error))
        except OSError as error:
            if not self._connected:
                self._fail(NotConnectedError(f"{os.strerror(error.errno or 0)}: is it running there, and reachable?"))
            else:
                self._fail(DisconnectedError(f"the connection was lost during the hello: {error}"))

    def _advance(self) -> None:
        """Continue the handshake as far as possible without blocking."""
        if not self._connected:
            self._check_connected()
        if self._make_tls is not None:
            self._begin_tls(self._make_tls)
        if self._tls_handshake is not None:
            events = self._tls_handshake.do_handshake()
            if events:
                self._reactor.modify(self._fd, events)
                return
            self._tls_handshake = None
        self._flush()
        while self._handshake.peer is None:
            self._read()
            self._flush()
        if not self._out:
            self._end(keep=True)
            self._on_outcome(self, Established(self._stream, self._handshake.peer))

    def _check_connected(self) -> None:
        """Raise OSError if the socket could not be connected."""
        failed = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
        self._connected = True

    def _begin_tls(self, make_tls: Callable[[socket.socket], TlsStream]) -> None:
        self._make_tls = None
        self._stream = self._tls_handshake = make_tls(self._sock)

    def _flush(self) -> None:
        while self._out:
            try:
                self._out = self._out[self._stream.sendmsg((self._out,)) :]
            except BlockingIOError:
                break
        self._reactor.modify(self._fd, READ | WRITE if self._out else READ)

    def _read(self) -> None:
        """Read no more than the next frame: the bytes after it belong to the connection."""
        pending = self._parser.pending
        wanted = HEADER_SIZE - self._parser.buffered if pending is None else pending[1] - pending[2]
        data = self._stream.recv(wanted)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the peer closed it")
        if not self._parser.received_bytes and data.startswith(_TLS_RECORDS):
            raise tls_mismatch_error("server" if self._is_client else "client")
        batch = self._parser.feed(data)
        for offset, body in batch:
            if not body:  # the first heartbeat of a client that received no hello for a while
                continue
            if offset != CONTROL_OFFSET:
                raise HandshakeError(f"expected a hello at offset {CONTROL_OFFSET}, found a frame at {offset}")
            self._queue(self._handshake.receive(bytes(body)))
        if batch.error is not None:
            raise batch.error

    def _queue(self, bodies: list[bytes]) -> None:
        self._out += b"".join(encode(CONTROL_OFFSET, body) for body in bodies)

    def _refuse(self, error: HandshakeError) -> None:
        """Send a refusal, if the socket accepts it without blocking."""
        self._queue(refusal(error))
        if self._tls_handshake is not None and isinstance(error, TlsMismatchError):
            self._tls_handshake.send_plainly(self._out)
        elif self._make_tls is None and self._tls_handshake is None and self._out:
            with contextlib.suppress(OSError):
                self._stream.sendmsg((self._out,))
        self._fail(error.error if isinstance(error, RefusedByPeerError) else error)

    def _time_out(self) -> None:
        self._fail(PeerTimeoutError(f"no connection and hello within {self._timeout_s:g} s"))

    def _fail(self, error: ReplogError) -> None:
        if not self._ended:
            self._end()
            self._on_outcome(self, error)

    def _end(self, *, keep: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        if self._first_heartbeat is not None:
            self._first_heartbeat.cancel()
        self._reactor.unregister(self._fd)
        if not keep:
            self._stream.close()
