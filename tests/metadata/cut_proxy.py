"""A proxy in front of ZooKeeper whose connections can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.metadata.zookeeper_proxy import ZooKeeperProxy


class CutProxy(ZooKeeperProxy):
    """Relays connections to a port of this machine. From `cut` to `mend` there are none."""

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._is_cut = False
        self._sockets: list[socket.socket] = []
        super().__init__(port)

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                _shut(each)
            self._sockets.clear()

    def mend(self) -> None:
        """Relay new connections again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        super().close()

    def accepted(self, client: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                client.close()
                return
            server = socket.create_connection(self.server)
            self._sockets = [each for each in self._sockets if each.fileno() >= 0]
            self._sockets += client, server
        threading.Thread(target=_relay_both, args=(client, server), daemon=True).start()


def _relay_both(client: socket.socket, server: socket.socket) -> None:
    with client, server:
        answers = threading.Thread(target=_relay, args=(server, client), daemon=True)
        answers.start()
        _relay(client, server)
        answers.join()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        _shut(each)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
