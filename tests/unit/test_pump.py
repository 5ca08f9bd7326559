"""Sockets that are handed to native code: what it sends and receives, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native import pump
from pyreplog._native.frame import FrameParser, encode
from pyreplog.errors import FrameError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def take_all(stream: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            found += stream.recv(1 << 20)
        except BlockingIOError:
            return found


def test_buffers_leave_in_their_order(pair: Pair) -> None:
    ours, theirs = pair
    parts = [b"one", bytearray(b"two"), memoryview(b"three")[1:], b""]
    assert pump.send(ours, parts) == 10
    assert take_all(theirs) == b"onetwohree"


def test_more_buffers_than_one_call_takes(pair: Pair) -> None:
    ours, theirs = pair
    most = os.sysconf("SC_IOV_MAX")
    assert pump.send(ours, [b"x"] * (most + 5)) == most
    assert take_all(theirs) == b"x" * most


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_what_does_not_fit_is_not_taken(pair: Pair, size: int) -> None:
    ours, theirs = pair
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += pump.send(ours, [bytes(size)])
    assert len(take_all(theirs)) == sent


def test_streams_that_are_no_more(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        pump.send(ours, [b"x"])
    assert pump.receive(ours, FrameParser())[0] == 0
    ours.close()
    for call in (lambda: pump.send(ours, [b"x"]), lambda: pump.receive(ours, FrameParser())):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_arguments_that_are_no_buffers(pair: Pair) -> None:
    ours, theirs = pair
    held = bytearray(b"held")
    with pytest.raises(TypeError):
        pump.send(ours, [held, "text"])  # type: ignore[list-item]
    held.append(0)  # nothing exports it any more
    with pytest.raises(BlockingIOError):
        pump.receive(theirs, FrameParser())


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_frames_come_as_they_were_sent(sizes: list[int], seed: int) -> None:
    """Cut anywhere; larger than a receive buffer, and than what is received with the GIL."""
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(encode(number, body) for number, body in enumerate(bodies))
    found: list[tuple[int, bytes]] = []
    parser, random = FrameParser(buffer_size=32 << 10), Random(seed)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = received = 0
        while received < len(stream):
            if sent < len(stream):
                with contextlib.suppress(BlockingIOError):  # full: what is there comes first
                    sent += ours.send(stream[sent : sent + random.randint(1, 60_000)])
            count, batch = pump.receive(theirs, parser)
            received += count
            found += [(number, bytes(body)) for number, body in batch]
    assert found == list(enumerate(bodies))
    assert parser.buffered == 0


def test_a_bad_frame_ends_the_stream(pair: Pair) -> None:
    ours, theirs = pair
    parser = FrameParser(max_body=10)
    ours.send(encode(1, b"good") + encode(2, bytes(11)))
    count, batch = pump.receive(theirs, parser)
    assert (count, [bytes(body) for _, body in batch]) == (39, [b"good"])
    assert isinstance(batch.error, FrameError)
    with pytest.raises(FrameError):
        pump.receive(theirs, parser)


def test_spinning_ends_with_an_event_or_with_its_time(pair: Pair) -> None:
    ours, theirs = pair
    with select.epoll() as epoll:
        epoll.register(theirs, select.EPOLLIN)
        assert not pump.spin(epoll.fileno(), 0)
        assert not pump.spin(epoll.fileno(), 100)
        ours.send(b"x")
        assert pump.spin(epoll.fileno(), 60_000_000)
        assert epoll.poll(0) == [(theirs.fileno(), select.EPOLLIN)]  # it is still told
        closed = epoll.fileno()
    with pytest.raises(OSError):
        pump.spin(closed, 0)
