"""Fuzz target of the frame parser: any bytes, cut anywhere, against a twin in plain Python.

    python tests/fuzz/fuzz_frame.py -max_total_time=60 [corpus directory]

Needs atheris. libFuzzer finds its way by the branches of the twin, which has those of the parser.
tests/property/test_frame_property.py puts the bytes that hypothesis makes to the same check.
"""

import struct
import sys
from typing import Literal

from pyreplog._native.net.frame import FrameBatch, FrameParser
from pyreplog.errors import FrameError

Order = Literal["any", "contiguous", "non-decreasing"]
Frames = list[tuple[int, bytes]]

ORDERS: tuple[Order, ...] = ("any", "contiguous", "non-decreasing")
HEADER = struct.Struct(">qI")


def follows(order: Order, due: int | None, offset: int, size: int) -> bool:
    """Whether a frame may come now; `due`: offset that must come (contiguous) or be reached, None: any."""
    if order == "any" or offset == -1:
        return True
    if offset < 0 or offset + size >= 2**63:
        return False
    if due is None:
        return True
    return offset == due if order == "contiguous" else offset >= due


def twin(stream: bytes, max_body: int, order: Order, due: int | None = None) -> tuple[Frames, int | None]:
    """The complete frames of a stream, and the byte at which a bad one begins (None: there is none)."""
    frames: Frames = []
    at = 0
    while len(stream) - at >= HEADER.size:
        offset, size = HEADER.unpack_from(stream, at)
        if size > max_body or not follows(order, due, offset, size):
            return frames, at
        body = stream[at + HEADER.size : at + HEADER.size + size]
        if len(body) < size:
            break
        if offset != -1:
            due = offset + size if order == "contiguous" else offset
        frames.append((offset, body))
        at += HEADER.size + size
    return frames, None


def copied(batch: FrameBatch) -> Frames:
    return [(offset, bytes(body)) for offset, body in batch]


def put(parser: FrameParser, piece: bytes, through_buffer: bool) -> tuple[FrameBatch, int]:
    """Give the parser some of `piece`; also returns how many bytes."""
    if not through_buffer:
        return parser.feed(piece), len(piece)
    window = parser.get_buffer(len(piece))
    count = min(len(piece), len(window))
    window[:count] = piece[:count]
    return parser.received(count), count


def refuses(parser: FrameParser, error: FrameError) -> bool:
    for call in (
        parser.get_buffer,
        lambda: parser.received(0),
        lambda: parser.feed(b""),
        parser.take_partial,
    ):
        try:
            call()
        except FrameError as again:
            if str(again) != str(error):
                return False
        else:
            return False
    return True


def check(data: bytes) -> None:
    """Four bytes choose the parser and the cuts, the others are the stream."""
    if len(data) < 4:
        return
    order, through_buffer = ORDERS[data[0] % 3], bool(data[0] & 0x80)
    max_body, buffer_size, step, stream = 8 * data[1], 64 + data[2], 1 + data[3], data[4:]
    parser = FrameParser(max_body=max_body, offsets=order, buffer_size=buffer_size)
    frames: Frames = []
    held: list[tuple[FrameBatch, Frames]] = []
    error, at = None, 0
    while at < len(stream) and error is None:
        batch, count = put(parser, stream[at : at + step], through_buffer)
        at += count
        held.append((batch, copied(batch)))
        frames += held[-1][1]
        error = batch.error
        assert parser.capacity <= 2 * max(buffer_size, HEADER.size + max_body)
        if len(held) > 3:
            before, copy = held.pop(0)
            assert copied(before) == copy, "a view changed"
    assert (frames, error and error.offset) == twin(stream, max_body, order)
    assert error is None or refuses(parser, error)
    assert all(copied(batch) == copy for batch, copy in held), "a view changed"


def main() -> None:
    import atheris

    for function in (follows, twin, check):
        globals()[function.__name__] = atheris.instrument_func(function)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
