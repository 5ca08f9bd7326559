"""Fields of messages between clients and topic servers: native code reads what the plain Python code of this file reads,
and refuses what that refuses, in the same words."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.wire_fields import Layout, WireReader, checksum, decode_entries
from pyreplog.errors import DamagedMessageError, InvalidMessageError, ReplogError
from pyreplog.topic.model.wire.fields import COUNT, ENTRIES, FLAG_NUMBER, I32, I64, NAME, OFFSET, OFFSET_OR_NONE, U32

NUMBERS = [U32, FLAG_NUMBER, COUNT, I32, I64, OFFSET, OFFSET_OR_NONE]
ENTRIES_MAX = 3


class PlainReader:
    """Reads a body with `struct` and slices."""

    def __init__(self, body: bytes, at: int, is_checked: bool) -> None:
        self.body, self.at, self.is_checked = body, at, is_checked

    def take(self, count: int) -> bytes:
        at = self.at
        if at + count > len(self.body):
            raise self.refusal(f"{count} bytes more at byte {at}", f"{len(self.body) - at}")
        self.at += count
        return self.body[at : self.at]

    def unpack(self, letter: str) -> int:
        form = struct.Struct(">" + letter)
        number: int = form.unpack(self.take(form.size))[0]
        return number

    def numbers(self, fields: list[Any]) -> list[int]:
        front = struct.Struct(">" + "".join(field.number.letter for field in fields))
        values = list(front.unpack(self.take(front.size)))
        for value, field in zip(values, fields, strict=True):
            if not field.number.low <= value <= field.number.high:
                raise self.refusal(f"a number from {field.number.low} to {field.number.high}", str(value))
        return values

    def entries(self) -> list[bytes]:
        count = self.unpack("I")
        if not 1 <= count <= ENTRIES_MAX:
            raise self.refusal(f"1 to {ENTRIES_MAX} entries", str(count))
        lengths = struct.unpack(f">{count}I", self.take(4 * count))
        data, entries = self.take(sum(lengths)), []
        for length in lengths:
            entries.append(data[:length])
            data = data[length:]
        return entries

    def end(self) -> None:
        if self.is_checked:
            self.is_checked = False
            computed = crc32c(self.body[: self.at])
            stored = self.unpack("I")
            if stored != computed:
                raise DamagedMessageError(
                    f"body: damaged on its way: its CRC-32C is {computed:#010x}, expected {stored:#010x}"
                )
        if self.at != len(self.body):
            raise self.refusal(f"{self.at} bytes", f"{len(self.body)}")

    def refusal(self, expected: str, found: str) -> ReplogError:
        kind = DamagedMessageError if self.is_checked else InvalidMessageError
        return kind(f"body: expected {expected}, found {found}")


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ReplogError as error:
        return type(error), str(error)


def in_bounds(field: Any) -> st.SearchStrategy[int]:
    return st.integers(field.number.low, field.number.high)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[Any], bytes, bool]:
    """Draw fields, the body of a kind byte, these numbers and entries, cut or changed sometimes, and whether it has a checksum."""
    fields = draw(st.lists(st.sampled_from(NUMBERS), max_size=6))
    values = [draw(in_bounds(field)) for field in fields]
    entries = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=ENTRIES_MAX + 1))
    body = b"\7" + Layout(*fields).encode(values) + ENTRIES.encode(entries) + b"".join(entries)
    is_checked = draw(st.booleans())
    if is_checked:
        body += checksum(body)
    kind = draw(st.sampled_from(["as it is", "cut", "longer", "changed"]))
    if kind == "cut":
        body = body[: draw(st.integers(1, len(body)))]
    elif kind == "longer":
        body += draw(st.binary(min_size=1, max_size=5))
    elif kind == "changed":
        at = draw(st.integers(1, len(body) - 1))
        body = body[:at] + bytes((draw(st.integers(0, 255)),)) + body[at + 1 :]
    return fields, body, is_checked


@given(bodies())
def test_native_reading_has_the_outcome_of_plain_reading(drawn: tuple[list[Any], bytes, bool]) -> None:
    fields, body, is_checked = drawn
    native, plain = WireReader("body", memoryview(body), 1, is_checked=is_checked), PlainReader(body, 1, is_checked)

    def read_native() -> tuple[list[int], list[bytes]]:
        values = Layout(*fields).decode(native), decode_entries(native, ENTRIES_MAX)
        native.end()
        return values

    def read_plain() -> tuple[list[int], list[bytes]]:
        values = plain.numbers(fields), plain.entries()
        plain.end()
        return values

    assert outcome(read_native) == outcome(read_plain)


@given(st.lists(st.binary(max_size=100), max_size=4))
def test_the_checksum_of_buffers_is_that_of_their_bytes(buffers: list[bytes]) -> None:
    assert checksum(*buffers) == struct.pack(">I", crc32c(b"".join(buffers)))
    assert checksum(*map(memoryview, buffers)) == checksum(*buffers)


def test_a_layout_reads_numbers_behind_other_fields_as_well() -> None:
    layout = Layout(U32, NAME, I32)
    body = layout.encode((7, "name", -3))
    assert layout.decode(WireReader("body", memoryview(body))) == [7, "name", -3]


def test_a_layout_encodes_a_value_for_each_field_only() -> None:
    with pytest.raises(ValueError, match="expected 2 values, found 1"):
        Layout(U32, NAME).encode((7,))


def test_more_numbers_than_are_read_together_are_read_one_by_one() -> None:
    layout = Layout(*[U32] * 20)
    assert layout.decode(WireReader("body", memoryview(layout.encode(range(20))))) == list(range(20))


def test_rest_returns_what_follows_without_a_copy() -> None:
    reader = WireReader("body", memoryview(bytearray(b"abcdef")))
    assert bytes(reader.take(2)) == b"ab"
    rest = reader.rest()
    rest[0] = ord("C")
    assert bytes(rest) == b"Cdef"
    reader.end()
