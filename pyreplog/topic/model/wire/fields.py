"""Fields of messages between clients and topic servers. Each value is checked against its bounds before it is used."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.wire_fields import WireReader, decode_entries
from pyreplog.errors import InvalidArgumentError
from pyreplog.times import moment_at, moment_us
from pyreplog.topic.model.positions import Start, check_start

NAME_BYTES_MAX = 255
TEXT_BYTES_MAX = 1 << 20
OFFSETS_MAX = 1 << 20
ENTRIES_MAX = 1 << 16

_EARLIEST, _LATEST, _OFFSET, _TIME = range(4)
_START = struct.Struct(">Bq")
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")


CHECKSUM_BYTES = _U32.size


class Number(NamedTuple):
    """The bounds of a number, and its letter in a format of `struct`."""

    letter: str
    low: int
    high: int


class WireField(NamedTuple):
    """Encoder and decoder of a value. number: for a plain number, its bounds."""

    encode: Callable[[Any], bytes]
    decode: Callable[[WireReader], Any]
    number: Number | None = None


def number_field(letter: str, low: int, high: int) -> WireField:
    """Return the field of a number within bounds. letter: of its format in `struct`."""
    packed = struct.Struct(">" + letter)

    def decode(reader: WireReader) -> int:
        number: int = reader.unpack(packed)[0]
        if not low <= number <= high:
            raise reader.refusal(f"a number from {low} to {high}", str(number))
        return number

    return WireField(packed.pack, decode, Number(letter, low, high))


def _text(form: str, most: int) -> WireField:
    length = struct.Struct(form)

    def encode(text: str) -> bytes:
        data = text.encode()
        if len(data) > most:
            raise InvalidArgumentError(f"text: expected at most {most} bytes of UTF-8, found {len(data)}")
        return length.pack(len(data)) + data

    def decode(reader: WireReader) -> str:
        count = reader.unpack(length)[0]
        if count > most:
            raise reader.refusal(f"a text of at most {most} bytes", str(count))
        try:
            return str(reader.take(count), "utf-8")
        except UnicodeDecodeError as error:
            raise reader.refusal("text in UTF-8", str(error)) from error

    return WireField(encode, decode)


def _decode_flag(reader: WireReader) -> bool:
    return bool(FLAG_NUMBER.decode(reader))


def _encode_start(start: Start) -> bytes:
    if isinstance(check_start(start), str):
        return _START.pack(_EARLIEST if start == "earliest" else _LATEST, 0)
    if isinstance(start, datetime):
        return _START.pack(_TIME, moment_us("start", start))
    try:
        return _START.pack(_OFFSET, int(start))
    except struct.error:
        raise InvalidArgumentError(f"start: expected an offset of 64 bits, found {start}") from None


def _decode_start(reader: WireReader) -> Start:
    kind, number = reader.unpack(_START)
    if kind in (_EARLIEST, _LATEST):
        return "earliest" if kind == _EARLIEST else "latest"
    if kind == _OFFSET:
        return int(number)
    try:
        if kind == _TIME:
            return moment_at(number)
    except OverflowError:
        pass
    raise reader.refusal("a place in a topic", f"kind {kind}, {number}")


def _encode_offsets(offsets: NDArray[np.int64]) -> bytes:
    return _U32.pack(len(offsets)) + np.asarray(offsets, ">i8").tobytes()


def _decode_offsets(reader: WireReader) -> NDArray[np.int64]:
    count = reader.unpack(_U32)[0]
    if not 1 <= count <= OFFSETS_MAX:
        raise reader.refusal(f"1 to {OFFSETS_MAX} offsets", str(count))
    offsets = np.frombuffer(reader.take(8 * count), ">i8").astype(np.int64)
    if offsets[0] < 0 or (offsets[1:] <= offsets[:-1]).any():
        raise reader.refusal("offsets from 0 on that ascend", str(offsets[:10].tolist()))
    return offsets


def _encode_ranges(ranges: NDArray[np.int64]) -> bytes:
    return _U32.pack(len(ranges)) + np.asarray(ranges, ">i8").tobytes()


def _decode_ranges(reader: WireReader) -> NDArray[np.int64]:
    count = reader.unpack(_U32)[0]
    if count > OFFSETS_MAX:
        raise reader.refusal(f"at most {OFFSETS_MAX} ranges", str(count))
    edges = np.frombuffer(reader.take(16 * count), ">i8").astype(np.int64)
    if count and (edges[0] < 0 or (edges[1:] <= edges[:-1]).any()):
        raise reader.refusal("ranges from 0 on that ascend", str(edges[:10].tolist()))
    return edges.reshape(-1, 2)


def _encode_entries(entries: Sequence[bytes]) -> bytes:
    """Encode the lengths; the entries follow unencoded."""
    return struct.pack(f">I{len(entries)}I", len(entries), *map(len, entries))


def _decode_entries(reader: WireReader) -> list[bytes]:
    return decode_entries(reader, ENTRIES_MAX)


FLAG_NUMBER = number_field("B", 0, 1)
FLAG = WireField(FLAG_NUMBER.encode, _decode_flag)
U32 = number_field("I", 0, (1 << 32) - 1)
COUNT = number_field("I", 1, 1 << 30)
I32 = number_field("i", -(1 << 31), (1 << 31) - 1)
I64 = number_field("q", -(1 << 63), (1 << 63) - 1)
OFFSET = number_field("q", 0, (1 << 62) - 1)
OFFSET_OR_NONE = number_field("q", -1, (1 << 62) - 1)
NAME = _text(">B", NAME_BYTES_MAX)
TEXT = _text(">I", TEXT_BYTES_MAX)
START = WireField(_encode_start, _decode_start)
OFFSETS = WireField(_encode_offsets, _decode_offsets)
RANGES = WireField(_encode_ranges, _decode_ranges)
ENTRIES = WireField(_encode_entries, _decode_entries)
