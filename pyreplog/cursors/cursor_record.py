"""Records of a cursor: the written form of its state. FORMAT.md, "Cursor record", has the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from pyreplog.errors import InvalidArgumentError, InvalidRecordsError

VERSION = 1
PROPERTIES_MAX = 10_000
NAME_BYTES_MAX = 255

_HEAD = Struct("<BBHIq")  # version, kind, flags, bytes of the properties, sequence
_VALUE = Struct("<q")
_SNAPSHOT, _DELTA = 1, 2
_PROPERTIES = 1


class CursorRecord(NamedTuple):
    """A record of a cursor.

    Attributes:
        sequence: the sequence of the record before, plus 1.
        is_snapshot: the record needs no record before it.
        properties: all properties; None: as in the record before.
        acks: all acknowledgements, or what changed, for `AckSet.apply`.
    """

    sequence: int
    is_snapshot: bool
    properties: Mapping[str, int] | None
    acks: bytes

    def to_bytes(self) -> bytes:
        properties = b"" if self.properties is None else _encode_properties(self.properties)
        kind, flags = _SNAPSHOT if self.is_snapshot else _DELTA, 0 if self.properties is None else _PROPERTIES
        return _HEAD.pack(VERSION, kind, flags, len(properties), self.sequence) + properties + self.acks

    @classmethod
    def from_bytes(cls, data: bytes) -> CursorRecord:
        """Decode a record. Raises InvalidRecordsError if it is malformed; `acks` is checked when it is applied."""
        if len(data) < _HEAD.size:
            raise InvalidRecordsError(0, f"at least {_HEAD.size} bytes of a cursor record", f"{len(data)}")
        version, kind, flags, size, sequence = _HEAD.unpack_from(data)
        if version != VERSION or kind not in (_SNAPSHOT, _DELTA) or flags & ~_PROPERTIES or sequence < 0:
            head = f"version {version}, kind {kind}, flags {flags}, number {sequence}"
            raise InvalidRecordsError(0, f"a cursor record of version {VERSION}", head)
        has_properties = flags == _PROPERTIES
        if size > len(data) - _HEAD.size or (not has_properties and (size or kind == _SNAPSHOT)):
            raise InvalidRecordsError(4, f"properties within {len(data)} bytes", f"{size} bytes, flags {flags}")
        stop = _HEAD.size + size
        properties = _decode_properties(data, _HEAD.size, stop) if has_properties else None
        return cls(sequence, kind == _SNAPSHOT, properties, data[stop:])


def is_snapshot(record: bytes) -> bool:
    """Return whether a record needs no record before it."""
    return record[1:2] == bytes([_SNAPSHOT])


def check_properties(properties: Mapping[str, int]) -> None:
    """Raise InvalidArgumentError if there are too many, a name is too long, or a value is no integer of 64 bits."""
    if len(properties) > PROPERTIES_MAX:
        raise InvalidArgumentError(f"properties: at most {PROPERTIES_MAX}, found {len(properties)}")
    for name, value in properties.items():
        if not isinstance(name, str) or len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidArgumentError(f"properties: expected names of at most {NAME_BYTES_MAX} bytes, found {name!r}")
        if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(f"property {name}: expected an integer of 64 bits, found {value!r}")


def _encode_properties(properties: Mapping[str, int]) -> bytes:
    parts: list[bytes] = []
    for name, value in properties.items():
        encoded = name.encode()
        parts += (bytes([len(encoded)]), encoded, _VALUE.pack(value))
    return b"".join(parts)


def _decode_properties(data: bytes, at: int, stop: int) -> dict[str, int]:
    properties: dict[str, int] = {}
    while at < stop:
        end = at + 1 + data[at]
        if end + _VALUE.size > stop or len(properties) == PROPERTIES_MAX:
            raise InvalidRecordsError(at, f"at most {PROPERTIES_MAX} properties up to byte {stop}", f"one up to {end}")
        try:
            name = data[at + 1 : end].decode()
        except UnicodeDecodeError as error:
            raise InvalidRecordsError(at + 1, "the name of a property, UTF-8", str(error)) from None
        if name in properties:
            raise InvalidRecordsError(at, "each property once", repr(name))
        properties[name] = _VALUE.unpack_from(data, end)[0]
        at = end + _VALUE.size
    return properties


def usable(records: Iterable[bytes]) -> tuple[list[CursorRecord], list[CursorRecord]]:
    """Split records, in any order, into the last snapshot with its consecutive successors, and those behind a gap.

    Raises InvalidRecordsError if a record is malformed, or there is no snapshot.
    """
    decoded = {record.sequence: record for record in map(CursorRecord.from_bytes, records)}
    start = max((record.sequence for record in decoded.values() if record.is_snapshot), default=None)
    if start is None:
        raise InvalidRecordsError(0, "a snapshot of a cursor", f"none in {len(decoded)} records")
    stop = start
    while stop in decoded:
        stop += 1
    behind = sorted(sequence for sequence in decoded if sequence > stop)
    return [decoded[sequence] for sequence in range(start, stop)], [decoded[sequence] for sequence in behind]
