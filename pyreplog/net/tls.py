"""TLS around a non-blocking socket, with the methods of a plain socket.

The user's context decides on versions, certificates, and whether a client needs one. `Connection` handles two
differences: decrypted bytes may wait where epoll does not see them (`pending`), and OpenSSL allows one thread at a
time, so there is a lock.
"""

from __future__ import annotations

import socket
import ssl
from _thread import allocate_lock
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pyreplog.errors import AuthenticationError, HandshakeError, TlsMismatchError
from pyreplog.net.reactor import READ, WRITE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_RECORD_BYTES = 16 << 10
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons for bytes that are no TLS record. OpenSSL sends no alert for them."""
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


TLS_REFUSED = "TLS: "
"""How the text of an AuthenticationError about certificates begins."""


class TlsContext(ssl.SSLContext):
    """A TLS context that may be replaced by another one, for later connections."""

    _current: ssl.SSLContext

    def __new__(cls, context: ssl.SSLContext) -> Self:
        return super().__new__(cls, context.protocol)

    def __init__(self, context: ssl.SSLContext) -> None:
        self._current = context

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another context for later connections. Any thread may call it."""
        self._current = context

    @property
    def verify_mode(self) -> int:  # type: ignore[override]
        return self._current.verify_mode

    def wrap_socket(self, *arguments: Any, **more: Any) -> ssl.SSLSocket:
        return self._current.wrap_socket(*arguments, **more)


class TlsStream:
    """A TLS stream over a connected socket, which it owns. host: name of the server; None: on the server's side."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, host: str | None) -> None:
        self._lock = allocate_lock()
        self._sock = context.wrap_socket(
            sock, server_side=host is None, do_handshake_on_connect=False, server_hostname=host
        )

    def do_handshake(self) -> int:
        """Continue the handshake; return the events to wait for; 0: it is complete.

        Raises AuthenticationError, HandshakeError and OSError when it fails.
        """
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except ssl.SSLError as error:
            if error.reason in _NO_TLS:
                raise tls_mismatch_error("server" if self._sock.server_side else "client") from None
            raise handshake_error(error) from None
        return 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, count: int, /) -> bytes:
        buffer = bytearray(count)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: WriteableBuffer, /) -> int:
        """Read as much as is available; a record holds at most 16 KiB."""
        view = memoryview(buffer)
        got = 0
        with self._lock:
            while got < view.nbytes:
                try:
                    count = self._sock.recv_into(view[got:])
                except _LATER:
                    break
                if not count:
                    return got
                got += count
        if not got:
            raise BlockingIOError
        return got

    def sendmsg(self, buffers: Iterable[ReadableBuffer], /) -> int:
        sent = 0
        with self._lock:
            for chunk in _chunks(buffers):
                try:
                    count = self._sock.send(chunk)
                except _LATER:
                    break
                sent += count
                if count < memoryview(chunk).nbytes:
                    break
        if not sent:
            raise BlockingIOError
        return sent

    def send_plainly(self, data: bytes) -> None:
        """Send bytes without TLS after a failed handshake, if the socket accepts them without blocking.

        Received bytes are read, because closing a socket with unread bytes may discard what has not arrived at the
        peer.
        """
        with suppress(OSError):
            socket.socket.send(self._sock, data)
            socket.socket.recv(self._sock, _RECORD_BYTES)

    def pending(self) -> int:
        """Return the number of decrypted bytes that were not read."""
        return self._sock.pending()

    def shutdown(self, how: int, /) -> None:
        """Shut down. Bytes that are received later are not decrypted."""
        with self._lock:
            self._sock.shutdown(how)

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return self._sock.getsockopt(level, option, size)

    def close(self) -> None:
        self._sock.close()


def tls_mismatch_error(speaker: str) -> TlsMismatchError:
    """Return the error for a side without TLS. speaker: the side that uses TLS, "client" or "server"."""
    return TlsMismatchError(f"the {speaker} speaks TLS, the {'client' if speaker == 'server' else 'server'} does not")


def handshake_error(error: ssl.SSLError) -> HandshakeError:
    """Return the error for a failed TLS handshake."""
    reason = error.reason or str(error)
    if "CERT" in reason or "UNKNOWN_CA" in reason:
        return AuthenticationError(f"{TLS_REFUSED}{reason}: {error}")
    return HandshakeError(f"TLS: {reason}")


def _chunks(buffers: Iterable[ReadableBuffer]) -> Iterator[ReadableBuffer]:
    """Yield the same bytes in pieces that fill TLS records.

    Small buffers are joined, and large ones are sent without a copy.
    """
    small: list[ReadableBuffer] = []
    size = 0
    for buffer in buffers:
        length = memoryview(buffer).nbytes
        if size and size + length > _RECORD_BYTES:
            yield b"".join(small)
            small, size = [], 0
        if length > _RECORD_BYTES:
            yield buffer
        else:
            small.append(buffer)
            size += length
    if size:
        yield b"".join(small)
