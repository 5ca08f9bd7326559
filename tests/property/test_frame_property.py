"""Arbitrary frames, cuts and bytes; tests/fuzz/fuzz_frame.py has the twin in plain Python to agree with."""

import asyncio
import importlib.util
import socket
import struct
import tracemalloc
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.ha.slave_offsets import SlaveOffsetParser
from pyreplog._native.net import frame
from pyreplog._native.net.frame import FrameBatch, FrameParser
from tests.crash.process import in_process


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = load(Path(__file__).parents[1] / "fuzz" / "fuzz_frame.py")

Frames = list[tuple[int, bytes]]

offsets = st.integers(-(2**63), 2**63 - 1)
frames = st.lists(st.tuples(offsets, st.binary(max_size=150)), max_size=20)
unhurried = settings(deadline=None)  # no verdict hangs on the speed of the machine

SOME = [(0, b"first"), (5, b""), (5, b"x" * 40), (-1, b"control"), (45, b"\0" * 12), (57, b"end")]
buffer_sizes = st.sampled_from([64, 65, 100, 256, 65536])


def stream_of(given_frames: Frames) -> bytes:
    return b"".join(struct.pack(">qI", offset, len(body)) + body for offset, body in given_frames)


def copied(batch: FrameBatch) -> Frames:
    return [(offset, bytes(body)) for offset, body in batch]


def receive_all(parser: FrameParser, data: bytes) -> Frames:
    """As many reads of a socket as it takes."""
    frames: Frames = []
    while data:
        batch, count = fuzz.put(parser, data, through_buffer=True)
        frames += copied(batch)
        data = data[count:]
    return frames


@unhurried
@given(frames)
def test_encoding_agrees_with_struct(given_frames: Frames) -> None:
    expected = stream_of(given_frames)
    assert b"".join(frame.encode(offset, body) for offset, body in given_frames) == expected
    split = zip(*given_frames, strict=True) if given_frames else ((), ())
    assert frame.encode_many(*split) == expected
    assert b"".join(frame.encode_header(o, len(body)) + body for o, body in given_frames) == expected


@unhurried
@given(frames, buffer_sizes, st.data())
def test_any_frames_in_any_cuts_are_the_same_frames(
    given_frames: Frames, buffer_size: int, data: st.DataObject
) -> None:
    stream, at = stream_of(given_frames), 0
    parser = FrameParser(buffer_size=buffer_size, max_body=150)
    frames: Frames = []
    held: list[tuple[FrameBatch, Frames]] = []
    while at < len(stream):
        piece = stream[at : at + data.draw(st.integers(1, 400))]
        batch, count = fuzz.put(parser, piece, through_buffer=data.draw(st.booleans()))
        at += count
        frames += copied(batch)
        assert batch.error is None
        assert parser.capacity <= 2 * max(buffer_size, 12 + 150)
        if data.draw(st.booleans()):
            held.append((batch, copied(batch)))
        elif held:
            before, copy = held.pop(data.draw(st.integers(0, len(held) - 1)))
            assert copied(before) == copy
    assert frames == given_frames
    assert parser.buffered == 0
    assert all(copied(batch) == copy for batch, copy in held)


@unhurried
@given(st.integers(64, 20_000), st.integers(1, 40), st.sampled_from([64, 100, 4096]))
def test_large_frames_of_one_size_are_received_in_place(size: int, reads: int, buffer_size: int) -> None:
    stream = frame.encode(1, bytes(max(size, buffer_size)))  # smaller ones share a buffer: the last may move
    parser, step = FrameParser(buffer_size=buffer_size), len(stream) // reads + 1
    for n in range(6):
        starts, at = set(), 0
        while at < len(stream):
            window = parser.get_buffer()
            starts.add(np.frombuffer(window, np.uint8).ctypes.data - at)
            at += fuzz.put(parser, stream[at : at + step], through_buffer=True)[1]
        assert n == 0 or len(starts) == 1


@unhurried
@given(frames, st.data())
def test_bodies_taken_in_part_are_the_same_bodies(given_frames: Frames, data: st.DataObject) -> None:
    stream, at = stream_of(given_frames), 0
    parser = FrameParser(buffer_size=64)
    frames: Frames = []
    parts: list[tuple[memoryview, bytes]] = []
    while at < len(stream):
        batch, count = fuzz.put(parser, stream[at : at + data.draw(st.integers(1, 100))], through_buffer=True)
        frames += copied(batch)
        at += count
        pending = parser.pending
        if pending is not None and data.draw(st.booleans()):
            taken = parser.take_partial()
            assert taken is not None
            offset, size, part = taken
            assert pending == (offset, size, len(part))
            parts.append((part, bytes(part)))
            rest = size - len(part)
            frames.append((offset, bytes(part) + stream[at : at + rest]))
            at += rest
    assert frames == given_frames
    assert all(part == copy for part, copy in parts)


@unhurried
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_frames_or_refused(data: bytes) -> None:
    fuzz.check(data)


@unhurried
@given(
    st.binary(min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(-2, 60), st.binary(max_size=60)), max_size=10),
    st.integers(0, 11),
    st.integers(0, 255),
)
def test_any_frames_with_one_byte_wrong(choice: bytes, given_frames: Frames, where: int, byte: int) -> None:
    stream = bytearray(stream_of(given_frames))
    if stream:
        header = len(stream_of(given_frames[: where % len(given_frames)]))
        stream[header + where] = byte
    fuzz.check(choice + bytes(stream))


@unhurried
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=10), st.integers(0, 2**40), st.data())
def test_a_log_stream_with_a_jump(bodies: list[bytes], start: int, data: st.DataObject) -> None:
    ends = [start]
    for body in bodies:
        ends.append(ends[-1] + len(body))
    bad = data.draw(st.integers(0, len(bodies) - 1))
    jump = data.draw(st.integers(-start, 2**40).filter(bool))
    stream = frame.encode_many([end + jump * (i >= bad) for i, end in enumerate(ends[:-1])], bodies)
    batch = FrameParser(offsets="contiguous", start=start).feed(stream)
    assert copied(batch) == list(zip(ends, bodies, strict=False))[:bad]
    assert batch.error is not None
    assert batch.error.offset == 12 * bad + ends[bad] - start


@unhurried
@given(st.lists(offsets, max_size=20), st.lists(st.integers(0, 160), max_size=10))
def test_progress_reports_in_any_cuts(reports: list[int], cuts: list[int]) -> None:
    stream = struct.pack(f">{len(reports)}q", *reports)
    edges = [0, *sorted(cuts), len(stream)]
    parser = SlaveOffsetParser()
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert [offset for piece in pieces for offset in parser.feed(piece)] == reports


def test_frames_in_reads_of_0_8_and_2_3_and_3_7() -> None:
    body = b"b" * 88  # 100 bytes a frame
    stream = frame.encode_many(range(7), [body] * 7)
    parser, reads = FrameParser(), []
    for start, end in pairwise([0, 80, 310, 680, 700]):
        reads.append((len(receive_all(parser, stream[start:end])), parser.buffered, parser.pending))
    assert reads == [(0, 80, (0, 88, 68)), (3, 10, None), (3, 80, (6, 88, 68)), (1, 0, None)]


def test_frames_cut_anywhere_are_whole() -> None:
    stream = stream_of(SOME)
    for cut in range(len(stream) + 1):
        for through_buffer in (False, True):
            parser = FrameParser(offsets="contiguous", start=0)
            pieces = [fuzz.put(parser, piece, through_buffer)[0] for piece in (stream[:cut], stream[cut:])]
            assert [pair for batch in pieces for pair in copied(batch)] == SOME
            assert parser.buffered == 0


@pytest.mark.parametrize("buffer_size", [64, 100, 65536])
def test_frames_fed_in_small_steps_are_whole(buffer_size: int) -> None:
    stream = stream_of(SOME * 5)
    for step in range(1, 100):
        parser, actual = FrameParser(buffer_size=buffer_size), []
        for at in range(0, len(stream), step):
            actual += receive_all(parser, stream[at : at + step])
        assert actual == SOME * 5


def test_memory_in_use_stays_bounded(tmp_path: Path) -> None:
    stream = frame.encode_many(range(1000), [b"b" * (n * 97 % 5000) for n in range(1000)])

    def receive() -> None:
        parser = FrameParser(buffer_size=8192, max_body=5000)
        tracemalloc.start()
        count = sum(len(receive_all(parser, stream[at : at + 4000])) for at in range(0, len(stream), 4000))
        assert count == 1000
        assert tracemalloc.get_traced_memory()[1] < 8 * 8192

    in_process(receive, tmp_path / "report")  # other threads take memory too


class Collector(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.parser = FrameParser(buffer_size=1024)
        self.frames: Frames = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.parser.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.frames += copied(self.parser.received(nbytes))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def test_asyncio_receives_into_the_parser() -> None:
    frames = [(i, b"%d" % i * i) for i in range(300)]

    async def run() -> Collector:
        near, far = socket.socketpair()
        near.setblocking(False)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(Collector, sock=near)
        far.setblocking(False)
        with far:
            await loop.sock_sendall(far, stream_of(frames))
        assert await protocol.lost is None
        return protocol

    assert asyncio.run(run()).frames == frames
