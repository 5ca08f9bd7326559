"""Sockets that are handed to native code: what it sends and receives, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.net import socket_io
from pyreplog._native.net.frame import HEADER_SIZE, MAX_BODY, FrameParser, encode
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog.errors import FrameError, InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def take_all(stream: socket.socket) -> bytes:
    actual = b""
    while True:
        try:
            actual += stream.recv(1 << 20)
        except BlockingIOError:
            return actual


def test_buffers_leave_in_their_order(pair: Pair) -> None:
    ours, theirs = pair
    parts = [b"one", bytearray(b"two"), memoryview(b"three")[1:], b""]
    assert socket_io.send(ours, parts) == 10
    assert take_all(theirs) == b"onetwohree"


def test_more_buffers_than_one_call_takes(pair: Pair) -> None:
    ours, theirs = pair
    most = os.sysconf("SC_IOV_MAX")
    assert socket_io.send(ours, [b"x"] * (most + 5)) == most
    assert take_all(theirs) == b"x" * most


@given(st.lists(st.binary(max_size=40), max_size=9), st.integers(0, (1 << 63) - 1))
def test_a_frame_is_its_header_and_its_parts(parts: list[bytes], offset: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        body = b"".join(parts)
        assert socket_io.send_frame(ours, offset, tuple(parts), len(body)) == HEADER_SIZE + len(body)
        assert take_all(theirs) == encode(offset, body)


def test_no_more_than_a_frame_holds(pair: Pair) -> None:
    ours, theirs = pair
    most = os.sysconf("SC_IOV_MAX")
    for parts, size in (((), -1), ((), MAX_BODY + 1), ((b"x",) * most, most)):
        with pytest.raises(InvalidArgumentError):
            socket_io.send_frame(ours, 1, parts, size)
    held = bytearray(b"held")
    with pytest.raises(TypeError):
        socket_io.send_frame(ours, 1, (held, "text"), 8)  # type: ignore[arg-type]
    held.append(0)  # nothing exports it any more
    assert take_all(theirs) == b""


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 1 << 32)
)
def test_frames_that_a_socket_takes_in_pieces_leave_whole(bodies: list[list[bytes]], seed: int) -> None:
    """Of each call a random part is taken, often nothing."""
    random, taken = Random(seed), bytearray()

    class Stream:
        def fileno(self) -> int:
            raise AssertionError("it is no plain socket")

        def sendmsg(self, buffers: Iterable[ReadableBuffer], /) -> int:
            data = b"".join(bytes(buffer) for buffer in buffers)
            count = random.randint(0, len(data))
            if not count:
                raise BlockingIOError
            taken.extend(data[:count])
            return count

    outbox = FrameSendQueue(Stream(), print)
    frames = [(number, b"".join(parts)) for number, parts in enumerate(bodies)]
    for (number, body), parts in zip(frames, bodies, strict=True):
        while outbox.queued_bytes:
            outbox.flush()
        outbox.send_frame(number, tuple(parts), len(body))
        assert outbox.queued_bytes + outbox.sent_bytes == sum(
            HEADER_SIZE + len(body) for _, body in frames[: number + 1]
        )
    while outbox.queued_bytes:
        outbox.flush()
    assert taken == b"".join(encode(number, body) for number, body in frames)


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_send_to_a_full_socket_raises_blocking_io_error(pair: Pair, size: int) -> None:
    ours, theirs = pair
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += socket_io.send(ours, [bytes(size)])
    assert len(take_all(theirs)) == sent


def test_streams_that_are_no_more(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        socket_io.send(ours, [b"x"])
    assert socket_io.receive(ours, FrameParser())[0] == 0
    ours.close()
    for call in (lambda: socket_io.send(ours, [b"x"]), lambda: socket_io.receive(ours, FrameParser())):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_arguments_that_are_no_buffers(pair: Pair) -> None:
    ours, theirs = pair
    held = bytearray(b"held")
    with pytest.raises(TypeError):
        socket_io.send(ours, [held, "text"])  # type: ignore[list-item]
    held.append(0)  # nothing exports it any more
    with pytest.raises(BlockingIOError):
        socket_io.receive(theirs, FrameParser())


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_frames_come_as_they_were_sent(sizes: list[int], seed: int) -> None:
    """Cut anywhere; larger than a receive buffer, and than what is received with the GIL."""
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(encode(number, body) for number, body in enumerate(bodies))
    rows: list[tuple[int, bytes]] = []
    parser, random = FrameParser(buffer_size=32 << 10), Random(seed)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = received = 0
        while received < len(stream):
            if sent < len(stream):
                with contextlib.suppress(BlockingIOError):  # full: what is there comes first
                    sent += ours.send(stream[sent : sent + random.randint(1, 60_000)])
            count, batch = socket_io.receive(theirs, parser)
            received += count
            rows += [(number, bytes(body)) for number, body in batch]
    assert rows == list(enumerate(bodies))
    assert parser.buffered == 0


def test_a_bad_frame_ends_the_stream(pair: Pair) -> None:
    ours, theirs = pair
    parser = FrameParser(max_body=10)
    ours.send(encode(1, b"good") + encode(2, bytes(11)))
    count, batch = socket_io.receive(theirs, parser)
    assert (count, [bytes(body) for _, body in batch]) == (39, [b"good"])
    assert isinstance(batch.error, FrameError)
    with pytest.raises(FrameError):
        socket_io.receive(theirs, parser)
