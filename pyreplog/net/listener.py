"""Listener: accepts the connections of a port."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from pyreplog.net.reactor import READ, Reactor
from pyreplog.net.sockets import Address, address_family, resolve_address, set_socket_options, weak_callback

logger = logging.getLogger(__name__)

_BACKLOG = 512
_ACCEPTS_MAX = 16
_NO_DESCRIPTORS_S = 0.5


class Listener:
    """Listens at an address, and passes each connection on. Belongs to the reactor's driver from `begin` on.

    Connections wait in the backlog before `begin`, and while the process has no free descriptor or memory.

    Args:
        reactor: calls the listener.
        host: a name or an address.
        port: 0: a free one.
        accepted: called with each socket, with its options set, and the address of its peer; it must not keep the
            object of the listener alive.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
        InvalidArgumentError: the host does not exist.
    """

    def __init__(
        self, reactor: Reactor, host: str, port: int, accepted: Callable[[socket.socket, Address], None]
    ) -> None:
        self._reactor, self._accepted = reactor, accepted
        family = address_family(host)
        if family is None:
            family, (host, port) = resolve_address(host, port)
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self.address: Address = (name[0], name[1])

    @property
    def closed(self) -> bool:
        """Whether the port was closed."""
        return self._socket.fileno() < 0

    def begin(self) -> None:
        """Accept connections from now on."""
        self._reactor.register(self._socket.fileno(), weak_callback(self._accept), READ)

    def end(self) -> None:
        """Stop accepting connections, and close the port."""
        self._reactor.unregister(self._socket.fileno())
        self._socket.close()

    def close(self) -> None:
        """Close the port of a listener that did not begin, or whose process is a fork of the one that began."""
        self._socket.close()

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                sock, name = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            try:
                set_socket_options(sock)
            except OSError as error:
                logger.debug("%s: disconnected before it was accepted: %s", name[0], error)
                sock.close()
                continue
            self._accepted(sock, (name[0], name[1]))
            if self.closed:
                return

    def _accept_later(self, error: OSError) -> None:
        logger.error("no connection can be accepted for now: %s", error)
        self._reactor.modify(self._socket.fileno(), 0)
        self._reactor.call_later(_NO_DESCRIPTORS_S, weak_callback(self._accept_again))

    def _accept_again(self) -> None:
        if not self.closed:
            self._reactor.modify(self._socket.fileno(), READ)
