"""RocketMQ's records: encodes, decodes and verifies them.

The layout is that of `CommitLog` and `MessageExtEncoder` in RocketMQ 4.9 and 5.x: big-endian, without padding, with a
CRC-32 of the body only. A record lies in one segment file; a blank record covers the rest of a file.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from pyreplog.errors import InvalidArgumentError, InvalidRecordsError

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194

BLANK_BYTES = 8
"""Bytes of a file that records leave free at least, for a blank record."""

_CRC_MASK = 0x7FFFFFFF
_HOST_BYTES = {False: 8, True: 20}
_BORN_V6, _STORE_V6 = 1 << 4, 1 << 5
_V6 = _BORN_V6 | _STORE_V6
_RECORD_BYTES_MIN = 91  # v1, both hosts IPv4, empty variable fields
_TOPIC_MAX = 127  # of v1
_PROPERTIES_MAX = 32767
_NAME_END, _PROPERTY_END = "\1", "\2"
_RESERVED = "\0" + _NAME_END + _PROPERTY_END

_START = struct.Struct(">iI")
_HEAD = struct.Struct(">iIIiiqqiq")  # up to the born time
_USUAL = struct.Struct(">iIi16xqi44xi")  # size, magic, CRC; position, flags; bytes of the body
_AFTER_HOSTS = struct.Struct(">iqi")  # consume retries, transaction offset, bytes of the body
_I64 = struct.Struct(">q")
_HOST = struct.Struct(">4sI")
_POSITION_AT = 28
_HOSTS_AT = 48

Host = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class RocketMQMessage:
    """A message of RocketMQ, with the fields of the producer and those that the broker added.

    Attributes:
        topic: topic, 1 to 127 bytes of UTF-8.
        body: the payload.
        properties: str by name, at most 32,767 bytes encoded, without the characters 0, 1 and 2.
        queue: number of the queue.
        queue_offset: number of the message in its queue.
        flag: the producer's flag.
        system_flag: the broker's flags.
        born_ms: time of the producer, milliseconds since 1970-01-01 UTC.
        stored_ms: time of the broker, milliseconds since 1970-01-01 UTC.
        born_host: IPv4 address and port of the producer.
        store_host: IPv4 address and port of the broker.
        retries: number of times the message was consumed again.
        transaction_offset: position of the prepared message of a transaction.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    queue: int = 0
    queue_offset: int = 0
    flag: int = 0
    system_flag: int = 0
    born_ms: int = 0
    stored_ms: int = 0
    born_host: Host = ("127.0.0.1", 0)
    store_host: Host = ("127.0.0.1", 0)
    retries: int = 0
    transaction_offset: int = 0


class RecordFault(NamedTuple):
    """Why the bytes at `offset` of a segment file are not a record."""

    offset: int
    expected: str
    found: str


def encode(message: RocketMQMessage, position: int) -> bytes:
    """Return the record (version 1, IPv4) of a message at a position of the log. Raises InvalidArgumentError."""
    if _has_reserved(message):
        raise InvalidArgumentError(
            f"message: expected a topic and properties without the characters 0, 1 and 2, found {message}"
        )
    topic = message.topic.encode()
    properties = "".join(
        f"{name}{_NAME_END}{value}{_PROPERTY_END}" for name, value in message.properties.items()
    ).encode()
    if not 1 <= len(topic) <= _TOPIC_MAX:
        raise InvalidArgumentError(f"topic: expected 1 to {_TOPIC_MAX} bytes, found {len(topic)}")
    if len(properties) > _PROPERTIES_MAX:
        raise InvalidArgumentError(f"properties: expected at most {_PROPERTIES_MAX} bytes, found {len(properties)}")
    if message.system_flag & _V6:
        raise InvalidArgumentError(f"system_flag: expected hosts with IPv4 addresses, found {message.system_flag:#x}")
    body = message.body
    size = _RECORD_BYTES_MIN + len(body) + len(topic) + len(properties)
    try:
        head = _HEAD.pack(
            size, MAGIC_V1, crc32(body) & _CRC_MASK, message.queue, message.flag, message.queue_offset, position,
            message.system_flag, message.born_ms,
        )  # fmt: skip
        return b"".join((
            head, _host(message.born_host), _I64.pack(message.stored_ms), _host(message.store_host),
            _AFTER_HOSTS.pack(message.retries, message.transaction_offset, len(body)), body,
            bytes((len(topic),)), topic, len(properties).to_bytes(2, "big"), properties,
        ))  # fmt: skip
    except (struct.error, OSError) as error:
        raise InvalidArgumentError(
            f"message: expected fields that fit into their places, found {message}: {error}"
        ) from None


def _has_reserved(message: RocketMQMessage) -> bool:
    texts = (message.topic, *message.properties, *message.properties.values())
    return any(character in text for text in texts for character in _RESERVED)


def blank(room: int) -> bytes:
    """Return the record that ends a file with `room` bytes left; the bytes after its first 8 have no meaning."""
    return _START.pack(room, MAGIC_BLANK)


def decode(record: memoryview | bytes) -> RocketMQMessage:
    """Return the message of a complete record of any version. Raises InvalidRecordsError."""
    fault = _verify(memoryview(record), 0, len(record))
    if fault is not None:
        raise InvalidRecordsError(*fault)
    _, magic, _, queue, flag, queue_offset, _, system_flag, born_ms = _HEAD.unpack_from(record)
    born, stored, at = _host_offsets(system_flag)
    retries, transaction, size = _AFTER_HOSTS.unpack_from(record, at)
    at += _AFTER_HOSTS.size
    width = 2 if magic == MAGIC_V2 else 1
    topic_at = at + size + width
    properties_at = topic_at + int.from_bytes(record[topic_at - width : topic_at], "big") + 2
    try:
        topic = str(record[topic_at : properties_at - 2], "utf-8")
        named = str(record[properties_at:], "utf-8").split(_PROPERTY_END)
    except UnicodeDecodeError as error:
        raise InvalidRecordsError(topic_at, "a topic and properties in UTF-8", str(error)) from None
    return RocketMQMessage(
        topic=topic,
        body=bytes(record[at : at + size]),
        properties=dict(pair.split(_NAME_END, 1) for pair in named if _NAME_END in pair),
        queue=queue,
        queue_offset=queue_offset,
        flag=flag,
        system_flag=system_flag,
        born_ms=born_ms,
        stored_ms=_I64.unpack_from(record, stored - 8)[0],
        born_host=_read_host(record[born : stored - 8]),
        store_host=_read_host(record[stored : stored + _HOST_BYTES[bool(system_flag & _STORE_V6)]]),
        retries=retries,
        transaction_offset=transaction,
    )


def walk(file: memoryview, offset: int, stop: int, base: int, *, torn: bool = False) -> tuple[int, RecordFault | None]:
    """Find the end of the complete, intact records in a segment file.

    A size, magic or position that is impossible is reported as soon as it has arrived, even in an incomplete record.

    Args:
        file: the whole file.
        offset: where to begin; a record begins there.
        stop: end of the received bytes.
        base: position of the first byte of the file.
        torn: bytes may be missing, with zeros in their place. RocketMQ's CRC does not cover topic and properties, so
            RocketMQ accepts a record whose end was never written (its issue 7437); here, a zero in these fields makes
            the record invalid.

    Returns:
        The end of the last complete record (behind a blank, the end of the file), and the fault there; None: no fault,
            at most the rest of a record is missing.
    """
    size = len(file)
    if not torn:
        offset = _skip_usual(file, offset, stop, base)
    while stop - offset >= BLANK_BYTES:
        length, magic = _START.unpack_from(file, offset)
        if magic == MAGIC_BLANK:
            if length != size - offset:
                return offset, RecordFault(offset, f"a blank of {size - offset} bytes", f"one of {length}")
            return (size, None) if stop == size else (offset, None)
        fault = _check_head(file, offset, stop, length, magic, base)
        if fault is not None or offset + length > stop:
            return offset, fault
        fault = _verify(file, offset, length, torn)
        if fault is not None:
            return offset, fault
        offset += length
    return offset, None


def _skip_usual(file: memoryview, offset: int, stop: int, base: int) -> int:
    """Return the end of the intact records of version 1 with IPv4 hosts: the usual ones, which this verifies faster."""
    unpack, last = _USUAL.unpack_from, min(stop, len(file) - BLANK_BYTES)
    while last - offset >= _RECORD_BYTES_MIN:
        length, magic, crc, position, system_flag, body = unpack(file, offset)
        start, end = offset + _USUAL.size, offset + length
        topic = start + body
        if (
            magic != MAGIC_V1
            or position != base + offset
            or system_flag & _V6
            or end > last
            or not start <= topic < end
        ):
            break
        properties = topic + 1 + file[topic]
        if properties + 2 > end or properties + 2 + (file[properties] << 8 | file[properties + 1]) != end:
            break
        if crc32(file[start:topic]) & _CRC_MASK != crc:
            break
        offset = end
    return offset


def _check_head(file: memoryview, offset: int, stop: int, length: int, magic: int, base: int) -> RecordFault | None:
    """Check the first bytes of a record. RocketMQ itself checks the position only since 2026 (#10017)."""
    room = len(file) - offset - BLANK_BYTES
    if magic not in (MAGIC_V1, MAGIC_V2):
        return RecordFault(offset, "the magic of a record", f"{magic:#010x}")
    if not _RECORD_BYTES_MIN <= length <= room:
        return RecordFault(offset, f"a record of {_RECORD_BYTES_MIN} to {room} bytes", f"one of {length}")
    if stop - offset >= _POSITION_AT + 8:
        (position,) = _I64.unpack_from(file, offset + _POSITION_AT)
        if position != base + offset:
            return RecordFault(offset, f"the record of position {base + offset}", f"that of {position}")
    return None


def _verify(file: memoryview, offset: int, length: int, torn: bool = False) -> RecordFault | None:
    """Check that the fields of a complete record add up to its length, and that its body has its checksum."""
    if length < _RECORD_BYTES_MIN:
        return RecordFault(offset, f"a record of at least {_RECORD_BYTES_MIN} bytes", f"{length} bytes")
    size, magic, crc, _, _, _, _, system_flag, _ = _HEAD.unpack_from(file, offset)
    at = offset + _host_offsets(system_flag)[2]
    end = offset + length
    width = 2 if magic == MAGIC_V2 else 1
    body = int.from_bytes(file[at + 12 : at + 16], "big")
    start = at + 16
    topic = start + body
    sum_of = properties = 0
    if topic + width <= end:
        properties = topic + width + int.from_bytes(file[topic : topic + width], "big")
        if properties + 2 <= end:
            sum_of = properties + 2 + int.from_bytes(file[properties : properties + 2], "big") - offset
    if size != length or sum_of != length:
        return RecordFault(offset, f"fields of {length} bytes in all", f"fields that end elsewhere, size {size}")
    computed = crc32(file[start:topic]) & _CRC_MASK
    if body and computed != crc:
        return RecordFault(offset, f"a body with CRC {crc:#010x}", f"{computed:#010x}")
    if torn and (0 in file[topic + width : properties] or 0 in file[properties + 2 : end]):
        return RecordFault(offset, "a topic and properties without zeros", "zeros")
    return None


def _host_offsets(system_flag: int) -> tuple[int, int, int]:
    """Return the offsets of the two hosts, and of the field after them."""
    born = _HOSTS_AT
    stored = born + _HOST_BYTES[bool(system_flag & _BORN_V6)] + 8
    return born, stored, stored + _HOST_BYTES[bool(system_flag & _STORE_V6)]


def _host(host: Host) -> bytes:
    return _HOST.pack(socket.inet_pton(socket.AF_INET, host[0]), host[1])


def _read_host(packed: memoryview | bytes) -> Host:
    family = socket.AF_INET if len(packed) == _HOST.size else socket.AF_INET6
    return socket.inet_ntop(family, packed[:-4]), int.from_bytes(packed[-4:], "big")
