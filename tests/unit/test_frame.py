"""The frame codec: bytes, batches, lifetime of views, bad frames, memory. Cuts: test_frame_property.py."""

import copy
import pickle
import struct
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from pyreplog._native.ha.slave_offsets import SlaveOffsetParser
from pyreplog._native.net import frame
from pyreplog._native.net.frame import FrameBatch, FrameParser
from pyreplog.errors import FrameError, InvalidArgumentError, OutOfRangeError

Frames = list[tuple[int, bytes]]
Order = Literal["contiguous", "non-decreasing"]
Take = Callable[[FrameParser, bytes], FrameBatch]

FRAMES = [(0, b"first"), (5, b""), (5, b"x" * 40), (-1, b"control"), (45, b"\0" * 12), (57, b"end")]


def stream_of(frames: Frames) -> bytes:
    return b"".join(struct.pack(">qI", offset, len(body)) + body for offset, body in frames)


def copied(batch: FrameBatch) -> Frames:
    return [(offset, bytes(body)) for offset, body in batch]


def receive(parser: FrameParser, data: bytes) -> FrameBatch:
    """One read of a socket on which `data` waits; all of it must fit."""
    window = parser.get_buffer(len(data))
    window[: len(data)] = data
    return parser.received(len(data))


def refusals(parser: FrameParser) -> list[FrameError]:
    """What each call says that would go on with the stream."""
    errors = []
    calls = (parser.get_buffer, lambda: parser.received(0), lambda: parser.feed(b""), parser.take_partial)
    for call in calls:
        with pytest.raises(FrameError) as refused:
            call()
        errors.append(refused.value)
    return errors


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_frame_has_its_documented_bytes() -> None:
    assert frame.encode(0x0102030405060708, b"ab") == bytes.fromhex("0102030405060708 00000002 6162")
    assert frame.encode(-1, bytearray(b"c")) == bytes.fromhex("ffffffffffffffff 00000001 63")
    assert frame.encode(-(2**63), memoryview(b"")) == bytes.fromhex("8000000000000000 00000000")
    assert frame.heartbeat(2**63 - 1) == bytes.fromhex("7fffffffffffffff 00000000")
    assert frame.encode_header(1, frame.MAX_BODY) == bytes.fromhex("0000000000000001 7fffffff")
    assert (frame.HEADER_SIZE, frame.CONTROL_OFFSET) == (12, -1)


def test_encode_many_is_the_frames_one_after_the_other() -> None:
    offsets, bodies = zip(*FRAMES, strict=True)
    assert frame.encode_many(offsets, bodies) == stream_of(FRAMES)
    assert frame.encode_many(np.array(offsets), (memoryview(body) for body in bodies)) == stream_of(FRAMES)
    assert frame.encode_many([], []) == b""
    with pytest.raises(InvalidArgumentError, match="found 1 and 2"):
        frame.encode_many([1], [b"a", b"b"])


@pytest.mark.parametrize("offset", [2**63, -(2**63) - 1])
def test_an_offset_beyond_64_bits_is_refused(offset: int) -> None:
    for call in (frame.heartbeat, lambda o: frame.encode(o, b""), lambda o: frame.encode_many([o], [b""])):
        with pytest.raises(InvalidArgumentError, match="64-bit"):
            call(offset)


@pytest.mark.parametrize("size", [-1, 2**31, 2**64])
def test_a_size_that_no_peer_would_take_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="size"):
        frame.encode_header(0, size)


def test_the_frame_codec_refuses_wrong_types() -> None:
    for number in (1.5, np.float64(2), "3", None):
        for call in (frame.heartbeat, lambda size: FrameParser(max_body=size), FrameParser().received):
            with pytest.raises(TypeError):
                call(number)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        frame.encode(0, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        frame.encode_many([0], ["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        FrameParser().feed("text")  # type: ignore[arg-type]


class Shrinking:
    """An offset that resizes the body between its measuring and its copying."""

    def __init__(self, body: bytearray) -> None:
        self.body = body

    def __index__(self) -> int:
        self.body.clear()
        return 0


def test_a_body_that_changes_its_size_while_it_is_encoded() -> None:
    body = bytearray(b"body")
    with pytest.raises(InvalidArgumentError, match="a body of 4 bytes had 0"):
        frame.encode(Shrinking(body), body)  # type: ignore[arg-type]


def test_heartbeats_are_frames_without_a_body() -> None:
    parser = FrameParser(offsets="contiguous", start=7)
    batch = receive(parser, frame.heartbeat(7) + frame.encode(7, b"abc") + frame.heartbeat(10))
    assert copied(batch) == [(7, b""), (7, b"abc"), (10, b"")]
    assert batch.size.tolist() == [0, 3, 0]


def test_a_batch_of_frames_has_columns() -> None:
    batch = receive(FrameParser(), stream_of(FRAMES) + b"\0" * 11)
    assert len(batch) == len(FRAMES)
    assert batch.offset.tolist() == [offset for offset, _ in FRAMES]
    assert batch.size.tolist() == [len(body) for _, body in FRAMES]
    for column in (batch.offset, batch.size, batch.start):
        assert column.dtype == np.int64 and not column.flags.writeable
    for i, (start, size) in enumerate(zip(batch.start, batch.size, strict=True)):
        assert batch.buffer[start : start + size] == batch.body(i) == FRAMES[i][1]
    assert bytes(batch.buffer) == stream_of(FRAMES)
    assert batch.buffer.readonly and batch.body(0).readonly
    for i in (-1, len(FRAMES)):
        with pytest.raises(OutOfRangeError, match=f"below {len(FRAMES)}, found {i}"):
            batch.body(i)


def test_a_batch_notes_sizes_of_bodies_by_offset() -> None:
    """By offset, without heartbeats and control bodies; up to one that is negative or known."""
    sizes = {9: 100}
    stream = frame.encode_many([4, -1, 5, 6], [b"four", b"control", b"", b"sixth"])
    assert (FrameParser().feed(stream).note(sizes, 10), sizes) == ((29, None), {9: 100, 4: 14, 6: 15})
    for bad in (-2, 9, 7):
        batch = FrameParser().feed(frame.encode_many([7, bad, 8], [b"seven", b"bad", b"eight"]))
        assert batch.note(actual_sizes := dict(sizes), 1) == (6, bad)
        assert actual_sizes == sizes | {7: 6}
    assert FrameParser().feed(b"").note(sizes, 10) == (0, None)


def test_frames_that_lie_end_to_end_are_a_run() -> None:
    frames = [
        (70, b"ab"), (72, b"c"), (73, b"defg"), (77, b"x" * 3), (80, b"header"), (86, b"i"), (87, b""), (87, b"k"),
        (-1, b"said"), (-1, b"more"), (88, b"l"), (90, b"gap"), (90, b"again"), (2**63 - 1, b"end"),
    ]  # fmt: skip
    batch = FrameParser().feed(stream_of(frames))
    runs, i = list[tuple[int, list[bytes]]](), 0
    while i < len(batch):
        offset, bodies, size, behind = batch.run(i, 80)
        assert (size, behind) == (sum(map(len, bodies)), i + len(bodies))
        runs.append((offset, [bytes(body) for body in bodies]))
        i = behind
    assert runs == [
        (70, [b"ab", b"c", b"defg", b"xxx"]), (80, [b"header"]), (86, [b"i"]), (87, [b""]), (87, [b"k"]),
        (-1, [b"said"]), (-1, [b"more"]), (88, [b"l"]), (90, [b"gap"]), (90, [b"again"]), (2**63 - 1, [b"end"]),
    ]  # fmt: skip
    assert batch.run(0, 1) == (70, [b"ab"], 2, 1)
    with pytest.raises(OutOfRangeError):
        batch.run(len(batch), 80)
    with pytest.raises(InvalidArgumentError, match="unit"):
        batch.run(0, 0)


def test_an_empty_batch_of_frames_has_empty_columns() -> None:
    for batch in (receive(FrameParser(), b""), FrameParser().feed(b"\0"), FrameBatch()):
        assert (len(batch), list(batch), bytes(batch.buffer), batch.error) == (0, [], b"", None)
        assert batch.offset.tolist() == batch.size.tolist() == batch.start.tolist() == []


def test_bodies_are_views_of_the_receive_buffer() -> None:
    parser = FrameParser()
    window = parser.get_buffer()
    stream = stream_of(FRAMES)
    window[: len(stream)] = stream
    batch = parser.received(len(stream))
    assert [address(batch.body(i)) for i in (0, 2)] == [address(window) + 12, address(window) + 41]


def test_a_view_outlives_everything_received_later() -> None:
    parser, held = FrameParser(buffer_size=256), []
    for n in range(500):
        body = n.to_bytes(4, "big") * (n % 30)
        batch = receive(parser, frame.encode(n, body))
        view = batch.body(0)
        held += [(view, body), (batch.buffer[12:], body), (np.frombuffer(view, np.uint8).data, body)]
        assert parser.capacity <= 2 * 256
    del parser, batch, view
    assert all(view == body for view, body in held)


def test_a_released_view_does_not_release_the_batch() -> None:
    parser = FrameParser(buffer_size=64)
    batch = receive(parser, frame.encode(0, b"keep"))
    batch.buffer.release()
    batch.body(0).release()
    for n in range(50):
        receive(parser, frame.encode(n, b"over"))
    assert copied(batch) == [(0, b"keep")]


def test_unread_batch_keeps_its_bytes_while_later_frames_arrive() -> None:
    parser = FrameParser(buffer_size=64)
    batch = receive(parser, frame.encode(0, b"keep"))
    for n in range(50):
        receive(parser, frame.encode(n, b"over"))
    assert copied(batch) == [(0, b"keep")]


def test_parser_reuses_a_buffer_without_views() -> None:
    parser = FrameParser()
    addresses = set()
    for n in range(100):
        addresses.add(address(parser.get_buffer()))
        receive(parser, frame.encode(n, b"n" * 1000))
    assert len(addresses) == 1


def test_two_buffers_serve_a_reader_that_holds_its_last_batch() -> None:
    parser, last, starts = FrameParser(buffer_size=1024), None, set()
    for n in range(200):
        last = receive(parser, frame.encode(n, b"n" * 600))
        starts.add(address(last.body(0)))
    assert (len(starts), parser.capacity) == (2, 2 * 1024)
    large = parser.feed(frame.encode(0, b"L" * 1_000_000))
    assert copied(large) == [(0, b"L" * 1_000_000)], "the spare buffer is not taken for what it cannot hold"


@pytest.mark.parametrize("byte", [8, 20])
def test_writing_behind_the_parsers_back_is_an_error_and_no_crash(byte: int) -> None:
    parser = FrameParser()
    window = parser.get_buffer()
    window[:24] = frame.heartbeat(0) * 2
    batch = parser.received(24)
    window[byte] = 0xFF
    for look in (lambda: batch.size, lambda: list(batch), lambda: batch.body(0)):
        with pytest.raises(InvalidArgumentError, match="written to"):
            look()


@pytest.mark.parametrize("handle", [FrameParser(), FrameBatch(), SlaveOffsetParser()])
def test_handles_refuse_pickling_and_copying(handle: object) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(handle, protocol)
    with pytest.raises(TypeError):
        copy.copy(handle)


def test_a_size_above_the_limit() -> None:
    parser = FrameParser(max_body=100)
    assert len(receive(parser, frame.encode(0, b"b" * 100))) == 1
    error = receive(parser, frame.encode_header(0, 101)).error
    assert isinstance(error, FrameError)
    assert (error.offset, error.expected, error.found) == (112, "a body of at most 100 bytes", "size 101")
    negative_to_java = FrameParser().feed(struct.pack(">qi", 0, -5)).error
    assert negative_to_java is not None
    assert negative_to_java.found == "size 4294967291 (as i32: -5)"


def test_a_bad_header_is_refused_before_its_body_comes() -> None:
    parser = FrameParser(offsets="contiguous", start=10)
    assert receive(parser, frame.encode_header(11, 50)[:11]).error is None
    assert receive(parser, frame.encode_header(11, 50)[11:]).error is not None


@pytest.mark.parametrize("take", [receive, FrameParser.feed])
def test_good_frames_come_before_the_error_and_the_error_stays(take: Take) -> None:
    parser = FrameParser(max_body=64)
    batch = take(parser, stream_of(FRAMES) + frame.encode(0, b"b" * 65) + stream_of(FRAMES))
    assert copied(batch) == FRAMES
    assert batch.error is not None and batch.error.offset == len(stream_of(FRAMES))
    assert {error.args for error in refusals(parser)} == {batch.error.args}
    assert (parser.pending, parser.buffered) == (None, 0)


def test_much_data_behind_a_bad_frame() -> None:
    parser = FrameParser(max_body=10, buffer_size=64)
    batch = parser.feed(frame.heartbeat(1) + b"\xff" * 100_000)
    assert len(batch) == 1
    assert batch.error is not None
    assert parser.capacity <= 2 * 64


ERRORS: list[tuple[Order, Frames, str, str]] = [
    ("contiguous", [(0, b"abc"), (4, b"")], "offset 3", "offset 4"),
    ("contiguous", [(5, b"abc"), (7, b"")], "offset 8", "offset 7"),
    ("contiguous", [(5, b"abc"), (-1, b"c"), (5, b"")], "offset 8", "offset 5"),
    ("contiguous", [(-2, b"")], "an offset from 0, or -1 for a control body", "offset -2"),
    ("contiguous", [(2**63 - 2, b"ab")], "a body that ends below 2**63", f"2 bytes at offset {2**63 - 2}"),
    ("non-decreasing", [(5, b"abc"), (5, b""), (4, b"")], "an offset of at least 5", "offset 4"),
    ("non-decreasing", [(0, b""), (-3, b"")], "an offset from 0, or -1 for a control body", "offset -3"),
]


@pytest.mark.parametrize(("offsets", "frames", "expected", "actual"), ERRORS)
def test_frames_with_offsets_out_of_order_are_refused(
    offsets: Order, frames: Frames, expected: str, actual: str
) -> None:
    batch = FrameParser(offsets=offsets).feed(stream_of(frames))
    assert copied(batch) == frames[:-1]
    assert batch.error is not None
    assert batch.error.args == FrameError(len(stream_of(frames[:-1])), expected, actual).args


def test_a_parser_checks_the_order_of_offsets() -> None:
    jumps = [(3, b"abc"), (-1, b"control"), (900, b""), (900, b"x")]
    assert copied(FrameParser(offsets="non-decreasing").feed(stream_of(jumps))) == jumps
    wild = [(2**63 - 1, b"abc"), (-(2**63), b""), (7, b"x")]
    assert copied(FrameParser().feed(stream_of(wild))) == wild
    last = [(2**63 - 2, b"a"), (2**63 - 1, b"")]
    assert copied(FrameParser(offsets="contiguous").feed(stream_of(last))) == last


def test_a_parser_checks_the_first_offset() -> None:
    late = frame.encode(8, b"x")
    assert FrameParser(offsets="contiguous").feed(late).error is None
    assert FrameParser(offsets="contiguous", start=8).feed(late).error is None
    assert FrameParser(offsets="contiguous", start=7).feed(late).error is not None
    assert FrameParser(offsets="non-decreasing", start=7).feed(late).error is None
    assert FrameParser(offsets="non-decreasing", start=9).feed(late).error is not None


OPTIONS: list[dict[str, Any]] = [
    *({"max_body": size} for size in (-1, 2**31, 2**70)),
    *({"buffer_size": size} for size in (63, 2**31, 2**70)),
    *({"offsets": order} for order in ("sorted", None)),
    *({"offsets": "contiguous", "start": start} for start in (-1, 2**63)),
    {"start": 0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_frame_parser_refuses_options_out_of_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        FrameParser(**options)


def test_received_believes_only_what_the_window_could_take() -> None:
    parser = FrameParser(buffer_size=64)
    for count in (-1, 65):
        parser.get_buffer()
        with pytest.raises(InvalidArgumentError, match="expected 0 to 64 bytes"):
            parser.received(count)
    parser.get_buffer()
    parser.feed(b"")
    with pytest.raises(InvalidArgumentError, match="expected 0 to 0 bytes"):
        parser.received(1)


def test_the_window_is_never_empty_and_heeds_the_hint() -> None:
    parser = FrameParser(buffer_size=1024)
    assert len(parser.get_buffer(10**9)) == 1024
    held = receive(parser, frame.encode(0, b"b" * 600))
    assert len(parser.get_buffer(-1)) == 1024 - 612
    assert len(parser.get_buffer(500)) == 1024, "another buffer has the room"
    assert len(held) == 1


def test_a_header_alone_makes_the_buffer_fit_its_frame() -> None:
    parser = FrameParser(buffer_size=64, max_body=10_000)
    receive(parser, frame.encode_header(0, 10_000))
    assert parser.capacity == 64, "not before there is more to receive"
    assert len(parser.get_buffer()) == 10_000
    assert parser.capacity == 10_012


def test_buffers_grown_for_rare_frames_are_given_back() -> None:
    parser, large = FrameParser(buffer_size=1024), frame.encode(0, b"b" * 100_000)
    held = [parser.feed(large) for _ in range(3)]
    assert parser.capacity == 2 * len(large)
    for n in range(40):
        receive(parser, frame.heartbeat(n))
    assert parser.capacity == 1024
    assert all(copied(batch) == [(0, b"b" * 100_000)] for batch in held)


def test_a_buffer_in_steady_use_is_kept() -> None:
    parser, large = FrameParser(buffer_size=1024), frame.encode(0, b"b" * 100_000)
    for _ in range(4):
        parser.feed(large)
        for _ in range(5):
            receive(parser, frame.heartbeat(0))
            assert parser.capacity >= len(large)


def test_feeding_more_than_a_buffer_does_not_keep_it() -> None:
    parser = FrameParser(buffer_size=1024, max_body=1000)
    batch = parser.feed(frame.encode_many(range(1001), [b"b" * 1000] * 1001)[:-500])
    assert len(batch) == 1000
    assert parser.capacity <= 2 * 1024
    assert parser.pending == (1000, 1000, 500)


def test_take_partial_lets_a_body_bypass_the_parser() -> None:
    body = bytes(range(256)) * 1000
    stream = frame.encode_many([100, 100 + len(body), 0], [body, b"next", b"bad"])
    parser = FrameParser(offsets="contiguous", start=100)
    assert len(receive(parser, stream[:3000])) == 0
    taken = parser.take_partial()
    assert taken is not None
    offset, size, part = taken
    assert (offset, size, bytes(part)) == (100, len(body), body[:2988])
    rest = 3000 + size - len(part)
    assert bytes(part) + stream[3000:rest] == body
    assert parser.buffered == 0
    batch = receive(parser, stream[rest:])
    assert copied(batch) == [(100 + size, b"next")], "contiguous with the frame taken"
    assert batch.error is not None and batch.error.offset == 12 + size + 16, "bytes that went past it count"
    assert parser.capacity == 65536, "the large body needed no buffer"


def test_take_partial_without_a_partial_body_returns_none() -> None:
    parser = FrameParser()
    assert parser.take_partial() is None
    receive(parser, frame.encode(0, b"complete") + frame.encode_header(0, 9)[:11])
    assert parser.take_partial() is None
    assert parser.buffered == 11


def test_progress_reports_are_bare_words() -> None:
    parser = SlaveOffsetParser()
    stream = struct.pack(">3q", 0, -1, 2**63 - 1)
    assert [parser.feed(stream[i : i + 1]) for i in range(8)] == [[]] * 7 + [[0]]
    assert parser.feed(memoryview(stream)[8:]) == [-1, 2**63 - 1]
    with pytest.raises(TypeError):
        parser.feed(5)  # type: ignore[arg-type]
