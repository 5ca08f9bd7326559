"""Fields of messages between clients and topic servers. Each value is checked against its bounds before it is used."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import DamagedMessageError, InvalidArgumentError, InvalidMessageError
from pyreplog.times import moment_at, moment_us
from pyreplog.topic.model.positions import Start, check_start

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME_BYTES_MAX = 255
TEXT_BYTES_MAX = 1 << 20
OFFSETS_MAX = 1 << 20
ENTRIES_MAX = 1 << 16

_EARLIEST, _LATEST, _OFFSET, _TIME = range(4)
_START = struct.Struct(">Bq")
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")


CHECKSUM_BYTES = _U32.size


class WireReader:
    """Reads the fields of a body in order. is_checked: a checksum follows them.

    Raises InvalidMessageError if a field is malformed; DamagedMessageError instead if the body has a checksum.
    """

    def __init__(self, what: str, body: memoryview, at: int = 0, *, is_checked: bool = False) -> None:
        self._label, self._body, self._at, self._is_checked = what, body, at, is_checked

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes, not copied."""
        at, self._at = self._at, self._at + count
        if self._at > len(self._body):
            raise self.refusal(f"{count} bytes more at byte {at}", f"{len(self._body) - at}")
        return self._body[at : self._at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        at, self._at = self._at, self._at + form.size
        if self._at > len(self._body):
            raise self.refusal(f"{form.size} bytes more at byte {at}", f"{len(self._body) - at}")
        return form.unpack_from(self._body, at)

    def rest(self) -> memoryview:
        """Return all remaining bytes, not copied."""
        return self.take(len(self._body) - self._at)

    def check(self) -> None:
        """Read the checksum here, if the body has one, and compare it with that of all bytes before it."""
        if self._is_checked:
            self._is_checked = False
            computed = crc32c(self._body[: self._at])
            stored = self.unpack(_U32)[0]
            if stored != computed:
                raise DamagedMessageError(
                    f"{self._label}: damaged on its way: its CRC-32C is {computed:#010x}, expected {stored:#010x}"
                )

    def end(self) -> None:
        """Check that no bytes follow."""
        self.check()
        if self._at != len(self._body):
            raise self.refusal(f"{self._at} bytes", f"{len(self._body)}")

    def refusal(self, expected: str, found: str) -> InvalidMessageError:
        kind = DamagedMessageError if self._is_checked else InvalidMessageError  # the checksum would not match
        return kind(f"{self._label}: expected {expected}, found {found}")


def checksum(*buffers: ReadableBuffer) -> bytes:
    """Return the checksum that follows these buffers in a body."""
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return _U32.pack(crc)


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


class Layout:
    """Fields that follow each other. Numbers at the front are encoded and decoded in one call."""

    def __init__(self, *fields: WireField) -> None:
        self.fields = fields
        self._numbers = [field.number for field in takewhile(lambda field: field.number, fields) if field.number]
        self._front = struct.Struct(">" + "".join(number.letter for number in self._numbers))
        self._rest = fields[len(self._numbers) :]

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encode one value for each field. Raises the errors of the fields."""
        if not self._rest:
            return self._front.pack(*values)
        front = len(self._numbers)
        parts = [field.encode(value) for field, value in zip(self._rest, values[front:], strict=True)]
        return self._front.pack(*values[:front]) + b"".join(parts)

    def decode(self, reader: WireReader) -> list[Any]:
        """Decode the fields. Raises InvalidMessageError when one is malformed."""
        values = list(reader.unpack(self._front))
        for value, (_, low, high) in zip(values, self._numbers, strict=True):
            if not low <= value <= high:
                raise reader.refusal(f"a number from {low} to {high}", str(value))
        if self._rest:
            values += [field.decode(reader) for field in self._rest]
        return values


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
    count = reader.unpack(_U32)[0]
    if not 1 <= count <= ENTRIES_MAX:
        raise reader.refusal(f"1 to {ENTRIES_MAX} entries", str(count))
    lengths = struct.unpack(f">{count}I", reader.take(4 * count))
    entries = reader.take(sum(lengths))
    if count == 1:
        return [bytes(entries)]
    return [bytes(entries[end - length : end]) for end, length in zip(accumulate(lengths), lengths, strict=True)]


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
