"""A network link of a chosen one-way delay, in a process of its own: what it takes is no work of ours."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from benchmarks.proc import job

_READ_BYTES = 1 << 18
_WAITING_BYTES = 64 << 20
"""Most bytes of one direction that are on their way: more than a window of 16 MiB."""


@contextmanager
def delayed(address: str, delay_s: float) -> Iterator[str]:
    """A proxy to the server at an address: its own address. delay_s: of each direction."""
    with job("delay", address, delay_s) as proxy:
        yield proxy.answer()


class DelayedLink:
    """Passes on bytes between clients and a server, each so long after it came. One thread, without end.

    Args:
        address: of the server.
        delay_s: one way, in seconds.
    """

    def __init__(self, address: str, delay_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._delay_s = (host, int(port)), delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._others: dict[socket.socket, socket.socket] = {}
        self._waiting: dict[socket.socket, deque[tuple[float, memoryview]]] = {}  # to that socket
        self._sizes: dict[socket.socket, int] = {}
        self._ended: set[socket.socket] = set()

    def run(self) -> NoReturn:
        """Serve."""
        while True:
            now = time.monotonic()
            due = [end for end, waiting in self._waiting.items() if waiting and waiting[0][0] <= now]
            first = min((waiting[0][0] for waiting in self._waiting.values() if waiting), default=now + 60.0)
            if due:  # what cannot be written yet says so itself
                later = [waiting[0][0] for waiting in self._waiting.values() if waiting and waiting[0][0] > now]
                first = min(later, default=now + 60.0)
            sources = [
                source
                for source, end in self._others.items()
                if source not in self._ended and self._sizes[end] < _WAITING_BYTES
            ]
            ready, writable, _ = select.select([self._listener, *sources], due, [], max(first - now, 0.0))
            for item in ready:
                if item is self._listener:
                    self._accept()
                elif item in self._others:
                    self._read(item)
            for end in writable:
                if end in self._waiting:
                    self._write(end)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
            self._others[one], self._waiting[one], self._sizes[one] = other, deque(), 0

    def _read(self, source: socket.socket) -> None:
        try:
            data = source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        end = self._others[source]
        if not data:
            self._ended.add(source)  # the other end is told as late as of bytes
        self._waiting[end].append((time.monotonic() + self._delay_s, memoryview(data)))
        self._sizes[end] += len(data)

    def _write(self, end: socket.socket) -> None:
        waiting, now = self._waiting[end], time.monotonic()
        try:
            while waiting and waiting[0][0] <= now:
                at, data = waiting[0]
                if not data:
                    self._drop(end)
                    return
                sent = end.send(data)
                self._sizes[end] -= sent
                if sent < len(data):
                    waiting[0] = (at, data[sent:])
                    return
                waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        for one in (end, self._others[end]):
            del self._others[one], self._waiting[one], self._sizes[one]
            self._ended.discard(one)
            one.close()
