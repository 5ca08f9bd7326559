"""Requests that their handler answers at once: what it raises, what it leaves, and a connection that is not to be read."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pyreplog._native.net.frame import FrameBatch, encode
from pyreplog.errors import DisconnectedError, ForkedError, PeerError, ReplogError
from pyreplog.net.reactor import Reactor
from tests.net.peers import Recorder, ask, call, wait


class Quick(Recorder):
    """Answers one-byte requests at once, with the same; the others later, as a Recorder."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self.error: BaseException | None = None

    def fast_path(self, _: Any, batch: FrameBatch) -> bytes | None:
        ((number, body),) = batch
        if not body:  # a heartbeat
            return None
        self.asked.append(bytes(body))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return encode(number, bytes(body)) if len(body) == 1 else None


def test_request_that_the_fast_path_does_not_answer_takes_the_normal_path(
    reactor: Reactor, serve: Any, connect: Any
) -> None:
    handler = Quick()
    channel = connect(serve(handler))
    bodies = [b"a", b"longer", b"b", bytes(1 << 20), b"c"]
    assert [call(reactor, channel, body) for body in bodies] == bodies
    assert handler.asked == bodies and [body for _, _, body in handler.requests] == [b"longer", bytes(1 << 20)]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ForkedError("planted"), ForkedError),
        (RuntimeError("planted"), PeerError),
        (OSError("planted"), DisconnectedError),
    ],
)
def test_exception_of_the_fast_path_ends_only_its_own_connection(
    reactor: Reactor, serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, raised: Exception,
    told: type[ReplogError],
) -> None:  # fmt: skip
    handler = Quick()
    server = serve(handler)
    channel, other = connect(server), connect(server)
    assert call(reactor, other, b"x") == b"x" == call(reactor, channel, b"x")
    handler.error = raised
    with caplog.at_level(logging.CRITICAL):
        assert isinstance(ask(reactor, channel, b"x"), DisconnectedError)
    wait(reactor, lambda: bool(handler.ends))
    assert [type(error) for error in handler.ends] == [told]
    assert call(reactor, other, b"y") == b"y" and len(handler.ends) == 1


def test_a_connection_that_is_paused_is_not_read(reactor: Reactor, serve: Any, connect: Any) -> None:
    """The reactor may have found it readable before it was."""
    handler = Quick()
    channel = connect(serve(handler))
    assert call(reactor, channel, b"x") == b"x"
    (connection,) = handler.connections
    replies: list[object] = []
    values: list[object] = []

    def pause() -> None:
        connection.pause()
        callback = reactor._callbacks[connection._stream.fileno()]
        channel.request(b"y", on_reply=replies.append, timeout=60.0)
        callback(1)
        values.extend(handler.asked)
        connection.resume()

    reactor.call_soon(pause)
    wait(reactor, lambda: bool(replies))
    assert values == [b"x"] and handler.asked == [b"x", b"y"]
