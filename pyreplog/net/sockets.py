"""Functions on sockets that connections need."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pyreplog._native.net import socket_io
from pyreplog._native.net.frame import FrameBatch, FrameParser
from pyreplog.arguments import check_text
from pyreplog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

Address = tuple[str, int]

_HOST_MAX, _PORT_DIGITS_MAX = 255, 5
_SHOWN_MAX = 300  # characters that no address has

_TCP_INFO = struct.Struct("=24xI28xI")
"""From Linux's tcp_info: tcpi_unacked, segments; tcpi_last_ack_recv, milliseconds."""


class Stream(Protocol):
    """A non-blocking stream socket, plain or with TLS. It raises BlockingIOError instead of waiting."""

    def fileno(self) -> int: ...

    def recv(self, count: int, /) -> bytes: ...

    def recv_into(self, buffer: WriteableBuffer, /) -> int: ...

    def sendmsg(self, buffers: Iterable[ReadableBuffer], /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def receiver(stream: Stream, parser: FrameParser) -> Callable[[], tuple[int, FrameBatch]]:
    """Return a function that reads as much as the parser has room for: (bytes, frames); 0 bytes at the end of the
    stream.

    It raises BlockingIOError, OSError, and FrameError after a bad frame.
    """
    if isinstance(stream, socket.socket):
        return partial(socket_io.receive, stream, parser)

    def receive() -> tuple[int, FrameBatch]:
        count = stream.recv_into(parser.get_buffer())
        return count, parser.received(count)

    return receive


def unread_bytes(stream: Stream) -> int:
    """Return the number of bytes that have arrived and were not read; with TLS, of those that it has not decrypted."""
    return int.from_bytes(fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def unacknowledged_s(stream: Stream) -> float:
    """Return for how many seconds the peer's machine has acknowledged no sent byte; 0: all were acknowledged.

    Heartbeats are sent even while this side does not read. So only this number shows that the peer's machine or network
    failed.
    """
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    if len(info) < _TCP_INFO.size:
        return 0.0
    unacknowledged, last_ack_ms = _TCP_INFO.unpack(info)
    return last_ack_ms / 1000 if unacknowledged else 0.0


def set_socket_options(sock: socket.socket) -> socket.socket:
    """Make a socket non-blocking, and disable Nagle's algorithm, because replies are small and awaited."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def address_family(host: str) -> socket.AddressFamily | None:
    """Return the family of a numeric address; None: a name, which has to be looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return family
    return None


def resolve_address(host: str, port: int) -> tuple[socket.AddressFamily, Address]:
    """Return family and numeric address of a host. Blocks. Raises InvalidArgumentError if the host does not exist."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"no address is known for host {host!r}: {error}") from None
    family, _, _, _, address = addresses[0]
    return family, (str(address[0]), int(address[1]))


def parse_address(text: str) -> Address:
    """Parse "host:port" or "[v6]:port".

    Raises:
        WrongTypeError: the address is no str.
        InvalidArgumentError: the address is malformed.
    """
    check_text("address", text)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_host = 0 < len(host) <= _HOST_MAX and host.isprintable()
    is_port = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS_MAX and 0 < int(port) < 65536
    if not is_host or not is_port:
        raise InvalidArgumentError(f"address: expected host:port, found {text[:_SHOWN_MAX]!r}")
    return host, int(port)


def address_text(address: Address) -> str:
    """Return "host:port", or "[v6]:port", which `parse_address` reads."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def size_of(buffers: Iterable[ReadableBuffer]) -> int:
    """Return the number of bytes in all buffers."""
    size = 0
    for buffer in buffers:
        size += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
    return size


def weak_callback(method: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that calls `method` as long as its object lives, and does not keep the object alive."""
    function = method.__func__  # type: ignore[attr-defined]  # a bound method
    ref = weakref.ref(method.__self__)  # type: ignore[attr-defined]

    def call(*args: Any) -> None:
        if (owner := ref()) is not None:
            function(owner, *args)

    return call
