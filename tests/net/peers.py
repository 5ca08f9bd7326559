"""The other end of a connection, as tests need it."""

from __future__ import annotations

import gc
import select
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from pyreplog._native.net.frame import HEADER_SIZE, FrameBatch, FrameParser, encode
from pyreplog.errors import ReplogError
from pyreplog.net.channel import Channel
from pyreplog.net.connection import Connection
from pyreplog.net.handshake import ClientHandshake, NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server

TIMEOUT_S = 60.0
NODE = NodeIdentity(node="n1", incarnation=b"i" * 16, cluster="cluster", service="echo")


class Recorder:
    """A handler that remembers what happened, and answers with `answer`; not at all without one, nor with its None."""

    def __init__(self, answer: Callable[[bytes], bytes | None] | None = bytes) -> None:
        self.answer = answer
        self.connections: list[Connection] = []
        self.requests: list[tuple[Connection, int, bytes]] = []
        self.ends: list[ReplogError] = []
        self.drains = 0

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def frames(self, connection: Any, batch: FrameBatch) -> None:
        for correlation_id, body in batch:
            if body:
                self.requests.append((connection, correlation_id, bytes(body)))
                if self.answer is not None and (answer := self.answer(bytes(body))) is not None:
                    connection.reply(correlation_id, answer)

    def drained(self, connection: Connection) -> None:
        self.drains += 1

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self.ends.append(error)


def wait(reactor: Reactor, done: Callable[[], bool]) -> None:
    assert reactor.drive(done, TIMEOUT_S), "it never came"


def ask(reactor: Reactor, channel: Channel, body: bytes, timeout: float = TIMEOUT_S) -> memoryview | ReplogError:
    """A request and its outcome."""
    outcome: list[memoryview | ReplogError] = []
    channel.request(body, on_reply=outcome.append, timeout=timeout)
    wait(reactor, lambda: bool(outcome))
    assert len(outcome) == 1
    return outcome[0]


def call(reactor: Reactor, channel: Channel, body: bytes) -> bytes:
    """The reply to a request."""
    outcome = ask(reactor, channel, body)
    if isinstance(outcome, ReplogError):
        raise outcome
    return bytes(outcome)


def forgotten(reactor: Reactor, kept: list[Any], words: str) -> None:
    """Forget the handle in `kept`, and wait until it has said so; its sockets may say so too.

    Garbage is collected by this thread only: another one would be in the middle of it when the first has been said.
    """
    until = time.monotonic() + TIMEOUT_S
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            kept.clear()
            while not any(words in str(warning.message) for warning in warned):
                assert time.monotonic() < until, "somebody keeps it alive"
                gc.collect()
                rounds: list[None] = []
                reactor.call_soon(lambda: rounds.append(None))  # noqa: B023
                wait(reactor, lambda: bool(rounds))  # noqa: B023
    finally:
        gc.enable()


class RawClient:
    """A blocking socket behind a hello, for sending what no client of ours would."""

    def __init__(self, server: Server, *, secret: Secret | None = None, limits: Limits | None = None) -> None:
        self.sock = socket.create_connection(server.address, timeout=TIMEOUT_S)
        self.parser = FrameParser(max_body=1 << 26)
        self.inbox: list[tuple[int, bytes]] = []
        handshake = ClientHandshake(NodeIdentity(), NodeIdentity(), limits or Limits(), b"n" * 32, secret=secret)
        try:
            while handshake.peer is None:
                offset, body = self.receive()
                assert offset == -1
                for answer in handshake.receive(body):
                    self.send(-1, answer)
        except BaseException:
            self.sock.close()
            raise

    def send(self, offset: int, body: bytes) -> None:
        self.sock.sendall(encode(offset, body))

    def receive(self) -> tuple[int, bytes]:
        """The next frame; EOFError at the end."""
        while not self.inbox:
            data = self.sock.recv(HEADER_SIZE if self.parser.buffered == 0 else 1 << 16)
            if not data:
                raise EOFError
            self.inbox += [(offset, bytes(body)) for offset, body in self.parser.feed(data)]
        return self.inbox.pop(0)

    def reply(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while not (frame := self.receive())[1]:
            continue
        return frame

    def request(self, correlation_id: int, body: bytes) -> bytes:
        self.send(correlation_id, body)
        offset, answer = self.reply()
        assert offset == correlation_id
        return answer

    def flood(self, frames: Iterable[bytes], stopped: Callable[[], bool]) -> int:
        """Send until the server has `stopped` reading, for good, and nothing more is taken; how many frames left whole.

        A server that only stands still for a while has not stopped.
        """
        looking = select.poll()
        looking.register(self.sock, select.POLLOUT)
        self.sock.setblocking(False)
        try:
            for whole, frame in enumerate(frames):
                rest = memoryview(frame)
                while rest:
                    over = stopped()
                    if not looking.poll(100):
                        if over:
                            return whole
                        continue
                    rest = rest[self.sock.send(rest) :]
        finally:
            self.sock.settimeout(TIMEOUT_S)
        raise AssertionError("the server takes everything")

    def ended(self, heartbeats: float = inf) -> bool:
        """Whether the server closes, before it sends so many heartbeats: an idle connection ends, too, much later. Reads
        what was there before."""
        try:
            while heartbeats > 0:
                heartbeats -= not self.receive()[1]
        except (EOFError, ConnectionResetError):
            return True
        return False

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
