"""Encodes and decodes the fields of messages and files, in either byte order.

The reader checks every length against a bound before it uses the length.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal

from pyreplog.errors import InvalidMessageError
from pyreplog.stream.log_position import LogPosition

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Order = Literal["<", ">"]
"""Little-endian on disk, big-endian on the wire."""

NAME_BYTES_MAX = 255
TEXT_BYTES_MAX = 1024


def is_name(name: object) -> bool:
    """Return whether a value is a valid member name: text of 1 to NAME_BYTES_MAX bytes of UTF-8."""
    try:
        return isinstance(name, str) and 1 <= len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # one half of a surrogate pair, which JSON or a shell may pass
        return False


class FieldWriter:
    """Appends fields to a buffer."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._data = bytearray()

    def numbers(self, layout: str, *values: Any) -> None:
        """Append numbers; `layout` is a format of `struct` without the byte order."""
        self._data += struct.pack(self._order + layout, *values)

    def mark(self, mark: LogPosition) -> None:
        self.numbers("qq", *mark)

    def name(self, name: str) -> None:
        encoded = name.encode()
        self.numbers("B", len(encoded))
        self._data += encoded

    def text(self, text: str) -> None:
        """Append the first TEXT_BYTES_MAX bytes of a text.

        Characters that UTF-8 cannot encode, as in paths, become "?".
        """
        encoded = text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
        self.numbers("H", len(encoded))
        self._data += encoded

    def raw(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes:
        return bytes(self._data)


class FieldReader:
    """Reads the fields of a buffer in their order.

    Every method raises InvalidMessageError if the bytes are malformed.
    """

    def __init__(self, order: Order, data: ReadableBuffer, what: str) -> None:
        self._order, self._data, self._label = order, memoryview(data), what
        self._at = 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        layout = self._order + layout
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def _bytes(self, count: int) -> memoryview:
        left = len(self._data) - self._at
        if count > left:
            raise self.error(f"{count} more bytes", f"{left}")
        self._at += count
        return self._data[self._at - count : self._at]

    def mark(self) -> LogPosition:
        mark = LogPosition(*self.numbers("qq"))
        if mark.position < 0 or mark.entry < 0:
            raise self.error("a mark from 0 on", str(tuple(mark)))
        return mark

    def count(self, layout: str, most: int) -> int:
        """Read a number of items, at most `most`."""
        (count,) = self.numbers(layout)
        if count > most:
            raise self.error(f"at most {most}", f"{count}")
        return int(count)

    def flag(self) -> bool:
        return bool(self.count("B", 1))

    def name(self) -> str:
        return self._decode(self._bytes(self.count("B", NAME_BYTES_MAX)), "strict")

    def text(self) -> str:
        """Read a text. A character that was cut in the middle at its end is replaced."""
        return self._decode(self._bytes(self.count("H", TEXT_BYTES_MAX)), "replace")

    def view(self, count: int) -> memoryview:
        """Return the next `count` bytes, without a copy."""
        return self._bytes(count)

    def rest(self) -> bytes:
        return bytes(self._bytes(len(self._data) - self._at))

    def _decode(self, encoded: memoryview, errors: str) -> str:
        try:
            return bytes(encoded).decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.error("UTF-8", bytes(encoded).hex()) from error

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return len(self._data) - self._at

    def end(self) -> None:
        """Check that no bytes follow."""
        if self._at != len(self._data):
            raise self.error("its end", f"{len(self._data) - self._at} more bytes")

    def error(self, expected: str, found: str) -> InvalidMessageError:
        return InvalidMessageError(f"{self._label}, byte {self._at}: expected {expected}, found {found}")
