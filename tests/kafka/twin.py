"""Kafka's messages and record batches in plain Python, written from the table and the format, for comparison."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pyreplog.kafka.wire.messages import CLASSES
from pyreplog.kafka.wire.schema import SCHEMA

NUMBERS = {"bool": ">?", "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "float64": ">d"}


class Bad(Exception):
    """The bytes are not a message, or not a batch."""


def versions(text: str) -> range:
    first, last = text.split("-")
    return range(int(first), int(last or 32767) + 1)


class Line(NamedTuple):
    name: str
    kind: str
    versions: range
    nullable: range
    tag: int
    below: list[Line]

    @classmethod
    def of(cls, text: str) -> Line:
        name, kind, present, *flags = text.split()
        nullable = versions(flags[flags.index("null") + 1]) if "null" in flags else range(0)
        return cls(
            name, kind, versions(present), nullable, int(flags[flags.index("tag") + 1]) if "tag" in flags else -1, []
        )


def table() -> dict[tuple[int, str], tuple[str, range, list[Line]]]:
    """Return name, flexible versions and fields of each message by API key and kind."""
    messages: dict[tuple[int, str], tuple[str, range, list[Line]]] = {}
    for text in SCHEMA.splitlines():
        depth = len(text) - len(text.lstrip())
        if depth == 0:
            name, key, _, *flexible = text.split()
            stack: list[list[Line]] = [[]]
            kind = "Request" if name.endswith("Request") else "Response"
            messages[int(key), kind] = (name, versions(flexible[1]) if flexible else range(0), stack[0])
            continue
        line = Line.of(text)
        del stack[depth:]
        stack[depth - 1].append(line)
        stack.append(line.below)
    return messages


TABLE = table()


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.stop = data, 0, len(data)

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.stop - self.at:
            raise Bad
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> Any:
        size = struct.calcsize(NUMBERS[kind])
        value = struct.unpack(NUMBERS[kind], self.take(size))[0]
        if value != value:  # nan
            raise Bad
        return value

    def uvarint(self, most: int = 5) -> int:
        value = 0
        for shift in range(0, 7 * most, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            raise Bad
        if value >= 1 << (32 if most == 5 else 64):
            raise Bad
        return value

    def varlong(self) -> int:
        value = self.uvarint(10)
        return value >> 1 if value & 1 == 0 else -((value >> 1) + 1)

    def varint(self) -> int:
        value = self.varlong()
        if not -(1 << 31) <= value < 1 << 31:
            raise Bad
        return value

    def sized(self) -> bytes | None:
        size = self.varint()
        if size < -1:
            raise Bad
        return None if size == -1 else self.take(size)


class MessageReader(Reader):
    """Reads a message of one version."""

    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        super().__init__(data)
        self.version, self.flexible = version, flexible

    def length(self, short: bool) -> int:
        if self.flexible:
            return self.uvarint() - 1
        return self.number("int16" if short else "int32")

    def struct(self, name: str, lines: list[Line]) -> Any:
        values = {}
        for line in lines:
            if self.version in line.versions and line.tag < 0:
                values[line.name] = self.value(line)
        if self.flexible:
            self.tags(lines, values)
        return CLASSES[name](**values)

    def tags(self, lines: list[Line], values: dict[str, Any]) -> None:
        last = -1
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            if tag <= last or size > self.stop - self.at:
                raise Bad
            last = tag
            found = [line for line in lines if line.tag == tag and self.version in line.versions]
            if not found:
                self.take(size)
                continue
            outer, self.stop = self.stop, self.at + size
            values[found[0].name] = self.value(found[0])
            if self.at != self.stop:
                raise Bad
            self.stop = outer

    def value(self, line: Line) -> Any:
        nullable = self.version in line.nullable
        if not line.kind.startswith("[]"):
            return self.item(line.kind, line, nullable)
        count = self.length(False)
        if count == -1 and nullable:
            return None
        if count < 0 or count > self.stop - self.at:  # an item has a byte at least
            raise Bad
        return tuple(self.item(line.kind[2:], line, False) for _ in range(count))

    def item(self, kind: str, line: Line, nullable: bool) -> Any:
        if kind == "bool":
            return self.take(1) != b"\0"
        if kind in NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return self.take(16)
        if kind[0].isupper():
            if nullable and self.number("int8") < 0:
                return None
            return self.struct(kind, line.below)
        size = self.length(kind == "string")
        if size == -1 and nullable:
            return None
        if kind == "string" and size > 32767:
            raise Bad
        data = self.take(size)
        if kind != "string":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Bad from None


def decode(key: int, version: int, kind: str, data: bytes) -> Any:
    """Return the message. Raises Bad."""
    name, flexible, lines = TABLE[key, kind]
    reader = MessageReader(data, version, version in flexible)
    message = reader.struct(name, lines)
    if reader.at != len(data):
        raise Bad
    return message


# ---- record batches --------------------------------------------------------------------------------------------


MS_MAX = ((1 << 63) - 1) // 1000


def produced_rows(data: bytes) -> list[tuple[Any, ...]]:
    """Return (timestamp, key, value, headers) of each record of an uncompressed batch that a producer may send; its
    checksum is not looked at. Raises Bad."""
    if len(data) < 61 or len(data) - 12 != struct.unpack_from(">i", data, 8)[0]:
        raise Bad
    offset, _, _, magic, _, attributes, delta, base, latest, producer, epoch, sequence, count = struct.unpack_from(
        ">qiibIhiqqqhii", data
    )
    if magic != 2 or offset or count < 1 or delta != count - 1 or attributes & ~0x10 or producer < -1:
        raise Bad
    if not -MS_MAX <= min(base, latest) <= max(base, latest) <= MS_MAX:
        raise Bad
    if (producer == -1 and attributes & 0x10) or (producer >= 0 and (epoch < 0 or sequence < 0)):
        raise Bad
    reader, rows = Reader(data), []
    reader.at = 61
    for number in range(count):
        size = reader.varint()
        if size < 6 or size > len(data) - reader.at:
            raise Bad
        reader.stop = reader.at + size
        reader.take(1)
        timestamp = base + reader.varlong()
        if not -1 <= timestamp <= MS_MAX or reader.varint() != number:
            raise Bad
        key, value = reader.sized(), reader.sized()
        pairs = reader.varint()
        if not 0 <= pairs <= len(data):
            raise Bad
        headers = []
        for _ in range(pairs):
            name = reader.sized()
            if name is None:
                raise Bad
            headers.append((name, reader.sized()))
        if reader.at != reader.stop:
            raise Bad
        reader.stop = len(data)
        rows.append((timestamp, key, value, headers))
    if reader.at != len(data):
        raise Bad
    return rows
