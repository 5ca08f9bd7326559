"""A reader of segment files in plain Python: the executable twin of FORMAT.md.

Uses nothing of pyreplog; the `crc32c` package computes the checksums.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

HEADER_BYTES = 4096
_SEGMENT = struct.Struct("<8sIHH16sqqqII")
_HEAD = struct.Struct("<IIIBBHq")
_SHORT = struct.Struct("<II")
_LONG = struct.Struct("<qqqQQ")
_INDEX = struct.Struct("<8sIHH16sqqqIIIIqqII")
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class TwinSegment:
    uuid: bytes
    base: int
    size: int
    first_entry: int
    epoch: int
    version: int = 1

    @property
    def stamp(self) -> int:
        x = (crc32c(self.uuid) + self.base // self.size + self.epoch * 0x9E3779B1) & _MASK
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
        return x ^ (x >> 16)


@dataclass(frozen=True)
class TwinRecord:
    position: int
    kind: int
    time: int
    entry: int
    synced: int
    attributes: tuple[tuple[int, bytes], ...]
    key: bytes | None
    value: bytes
    ledger: int = 0
    ledger_bytes: int = 0
    ledger_messages: int = 0
    count: int = 1

    @property
    def first(self) -> int:
        """Number of its first entry."""
        return self.entry - max(self.count - 1, 0)


def read_header(block: bytes) -> TwinSegment:
    magic, crc, version, min_reader, uuid, base, size, first, epoch, reserved = _SEGMENT.unpack_from(block)
    assert magic == b"REPLOG01"
    assert crc == crc32c(block[12:64])
    assert version in (1, 2) and (min_reader, reserved) == (version, 0)
    assert not any(block[64:HEADER_BYTES])
    return TwinSegment(uuid, base, size, first, epoch, version)


def read_record(data: bytes, at: int, segment: TwinSegment) -> tuple[TwinRecord | None, int]:
    """The record at offset `at` and its stride; None for a blank. AssertionError when it is not intact."""
    length, crc, stamp, kind, form, key_length, time = _HEAD.unpack_from(data, at)
    assert length > 0
    assert stamp == segment.stamp
    assert kind in range(1, 6)
    if kind == 5:
        assert length == len(data) - at
        assert crc == crc32c(data[at + 12 : at + 32], length)
        return None, length
    stride = (length + 7) // 8 * 8
    assert crc == crc32c(data[at + 12 : at + stride], length)
    assert form & 0x0F == 1
    assert not form & 0x80 or (kind == 2 and not form & 0x10 and segment.version == 2)
    assert not any(data[at + length : at + stride])
    ledger = ledger_bytes = ledger_messages = 0
    count = int(kind in (1, 2))
    if form & 0x10:
        ledger, entry, synced, ledger_bytes, ledger_messages = _LONG.unpack_from(data, at + 24)
        cursor = at + 64
    else:
        delta, lag = _SHORT.unpack_from(data, at + 24)
        entry = segment.first_entry + delta
        synced = -1 if lag == _MASK else entry - lag
        cursor = at + 32
        if form & 0x80:
            count, reserved = _SHORT.unpack_from(data, cursor)
            assert 1 <= count <= delta + 1 and reserved == 0
            cursor += 8
    attributes = []
    if form & 0x20:
        (left,) = struct.unpack_from("<H", data, cursor)
        cursor += 2
        stop = cursor + left
        while cursor < stop:
            tag, size = struct.unpack_from("<BH", data, cursor)
            attributes.append((tag, data[cursor + 3 : cursor + 3 + size]))
            cursor += 3 + size
        assert cursor == stop
    key = data[cursor : cursor + key_length] if form & 0x40 else None
    value = data[cursor + key_length : at + length]
    twin_record = TwinRecord(
        segment.base + at,
        kind,
        time,
        entry,
        synced,
        tuple(attributes),
        key,
        value,
        ledger,
        ledger_bytes,
        ledger_messages,
        count,
    )
    return twin_record, stride


def read_segment(path: Path) -> tuple[TwinSegment, list[TwinRecord], bool]:
    """Header, intact records from the front, and whether a blank ends them."""
    data = path.read_bytes()
    segment = read_header(data)
    assert (len(data), f"{segment.base:020d}.log") == (segment.size, path.name)
    records: list[TwinRecord] = []
    at = HEADER_BYTES
    while at + 32 <= len(data):
        try:
            record, stride = read_record(data, at, segment)
        except AssertionError:
            return segment, records, False
        if record is None:
            return segment, records, True
        records.append(record)
        at += stride
    return segment, records, False


def read_log(directory: Path) -> list[TwinRecord]:
    """All records of a log directory, in order."""
    records: list[TwinRecord] = []
    for path in sorted(directory.glob("*.log")):
        segment, actual_segment, _ = read_segment(path)
        if segment.first_entry != -2:
            records += actual_segment
    return records


def make_index(path: Path) -> bytes:
    """The sparse index file of a sealed segment of a bare log, from the segment alone."""
    data = path.read_bytes()
    segment = read_header(data)
    blocks: list[
        tuple[int, int, set[int]]
    ] = []  # entries before, offset, strides; 0: a record that does not take one number
    ranges: dict[int, list[int]] = {}
    times = []
    at = boundary = HEADER_BYTES
    entries, version = 0, 1
    while True:
        record, stride = read_record(data, at, segment)
        if record is None:
            times.append(_HEAD.unpack_from(data, at)[6])
            break
        if at + stride > boundary:
            blocks.append((entries, at, set()))
            boundary = (at + stride + 4095) // 4096 * 4096
        blocks[-1][2].add(stride if record.count == 1 else 0)
        entries += record.count
        version = max(version, 1 + (record.count > 1))
        times.append(record.time)
        for value in (value for tag, value in record.attributes if tag == 1):
            ranges.setdefault(at // 65536, []).append(struct.unpack("<q", value)[0])
        at += stride
    body = b"".join(
        struct.pack("<II", before, place // 8 | (len(strides) == 1 and 0 not in strides) << 31)
        for before, place, strides in blocks
    )
    count = segment.size // 65536 + 1 if ranges else 0
    for number in range(count):
        met = ranges.get(number)
        body += struct.pack("<qq", min(met), max(met)) if met else struct.pack("<qq", 2**63 - 1, -(2**63))
    place = (segment.uuid, segment.base, segment.first_entry, entries, at, segment.stamp, len(blocks), count)
    head = _INDEX.pack(b"RPINDX01", 0, version, version, *place, times[0], times[-1], crc32c(body), 0)
    return head[:8] + struct.pack("<I", crc32c(head[12:])) + head[12:] + body
