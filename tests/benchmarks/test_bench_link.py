"""The link of the geo rows: bytes arrive as they were sent, and as late as it says."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.delayed_link import delayed

DELAY_S = 0.02


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what comes on each connection, and ends with its client."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client:
            while data := client.recv(1 << 16):
                client.sendall(data)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connection(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30.0)


def receive(client: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count and (data := client.recv(1 << 16)):
        content += data
    return content


def test_bytes_arrive_late_and_as_they_were_sent(echo: str) -> None:
    data = random.randbytes(3 << 20)
    with delayed(echo, DELAY_S) as address, connection(address) as client, connection(address) as other:
        begin = time.monotonic()
        client.sendall(b"one")
        assert receive(client, 3) == b"one"
        assert time.monotonic() - begin >= 2 * DELAY_S
        writer = threading.Thread(target=client.sendall, args=(data,))
        writer.start()
        assert receive(client, len(data)) == data
        writer.join()
        other.sendall(b"two")
        assert receive(other, 3) == b"two"


def test_link_without_a_listener_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with delayed(address, DELAY_S) as link, connection(link) as client:
        assert receive(client, 1) == b""
