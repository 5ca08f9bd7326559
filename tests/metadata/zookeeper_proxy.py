"""A proxy in front of ZooKeeper: the part that accepts connections, for proxies that disturb them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class ZooKeeperProxy:
    """Accepts connections for a server of this machine until it is closed. A derived class relays them.

    port: of ZooKeeper on this machine.
    """

    def __init__(self, port: int) -> None:
        self.server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def hosts(self) -> str:
        """For the URL of a store."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def accepted(self, client: socket.socket) -> None:
        """Take a new connection; the thread that accepts calls it."""
        raise NotImplementedError

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                self.accepted(self._listener.accept()[0])
