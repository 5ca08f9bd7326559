"""Topics over TCP for tests: servers, clients, and a wire between them that can be cut."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyreplog.cluster import Cluster
from pyreplog.net.channel import Channel
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.connection_pool import ConnectionPool
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.server.topic_server import TopicServer
from tests.topic.owners import until

PATIENCE_S = 30.0
PLAIN: dict[str, Any] = {"ensemble": 1, "durability": "appended", "retention_bytes": None}


def pool_of(remote: Client | RemoteTopic) -> ConnectionPool:
    """Return the connection pool of a client, or of a topic that it opened."""
    return remote._pool


def channels_of(remote: Client | RemoteTopic) -> list[Channel]:
    """Return its channels, whether they are connected or not."""
    return list(pool_of(remote)._channels.values())


def is_backing_off(client: Client) -> bool:
    """Return whether the client waits before it connects to a server again."""
    return bool(pool_of(client)._delayed)


def producers_of(topic: RemoteTopic) -> list[str]:
    """Return the names of the open producers of a topic; "" is its own."""
    return list(topic._publishers)


class ServedCluster:
    """A cluster in this process, a server of its topics, and clients of the server."""

    def __init__(self, path: Path, stack: ExitStack, **settings: Any) -> None:
        self.stack = stack
        self.cluster = stack.enter_context(Cluster.embedded(path, bookies=1))
        self.server = stack.enter_context(TopicServer(self.cluster, **settings))

    def client(self, address: str | None = None, **settings: Any) -> Client:
        return self.stack.enter_context(connect(f"pyreplog://{address or self.server.address}", **settings))


@contextmanager
def serve_cluster(path: Path, **settings: Any) -> Iterator[ServedCluster]:
    with ExitStack() as stack:
        yield ServedCluster(path, stack, **settings)


def receive(consumer: Consumer, count: int) -> list[bytes]:
    """Receive exactly so many values."""
    contents: list[bytes] = []
    while len(contents) < count:
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"{len(contents)} of {count} came"
        contents.append(message.value)
    return contents


class Wire:
    """Passes bytes between clients and a server, until it is cut.

    Attributes:
        made: how many connections were made.
        spoils: the first bytes that equal the first item are replaced by the second one, of the same length; then it is
            None.
    """

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._wake, self._woken = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._calls: list[Callable[[], None]] = []
        self._swallows = self._closed = self._refuses = False
        self.made = 0  # connections
        self.spoils: tuple[bytes, bytes] | None = None  # bytes to replace once, and their replacement
        self.swallowed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lead_to(self, target: str) -> None:
        """Make later connections to this server."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)

    def swallow(self) -> None:
        """Drop all bytes of the server until the next cut."""
        self._swallows = True

    def cut(self) -> None:
        """Cut all connections; new ones may be made."""
        done = threading.Event()

        def cut() -> None:
            self._drop()
            self._swallows = False
            self.swallowed.clear()
            done.set()

        self._calls.append(cut)
        self._wake.send(b"!")
        assert done.wait(PATIENCE_S)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Cut all connections, and accept new ones only at the end of the block."""
        self._refuses = True
        self.cut()
        yield
        self._refuses = False
        self._wake.send(b"!")

    def cut_and_mend(self) -> None:
        """Cut all connections, and wait until the clients are connected again."""
        wanted = self.made + len(self._clients)
        self.cut()
        until(lambda: self.made >= wanted)

    def _run(self) -> None:
        while not self._closed:
            listeners = [] if self._refuses else [self._listener]
            ready, _, _ = select.select([*listeners, self._woken, *self._pairs], [], [])
            for item in ready:
                if item is self._woken:
                    self._woken.recv(64)
                    while self._calls:
                        self._calls.pop(0)()
                elif item is self._listener:
                    if not self._refuses:
                        self._accept()
                elif item in self._pairs:
                    self._pass_on(item)
        self._drop()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        self._pairs[client], self._pairs[server] = server, client
        self.made += 1
        self._clients.add(client)

    def _pass_on(self, socket: socket.socket) -> None:
        other = self._pairs[socket]
        with suppress(OSError):
            data = socket.recv(1 << 16)
            if data:
                if self.spoils is not None and self.spoils[0] in data:
                    data = data.replace(*self.spoils)
                    self.spoils = None
                if self._swallows and other in self._clients:
                    self.swallowed.set()
                else:
                    other.sendall(data)
                return
        for gone in (socket, other):
            self._pairs.pop(gone, None)
            self._clients.discard(gone)
            gone.close()

    def _drop(self) -> None:
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()
        self._clients.clear()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._wake.send(b"!")
        self._thread.join(PATIENCE_S)
        for listener in (self._listener, self._wake, self._woken):
            listener.close()
