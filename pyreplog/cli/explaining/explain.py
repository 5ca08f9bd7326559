"""Explains the bytes of a segment file field by field: offset, bytes, meaning, and whether the value is valid."""

from __future__ import annotations

import struct
import uuid

from pyreplog._native.system.checksum import crc32c
from pyreplog.cli.explaining import layout
from pyreplog.cli.explaining.explain_batch import explain_batch, is_record_batch
from pyreplog.cli.explaining.explained import Explained
from pyreplog.cli.explaining.layout import Field
from pyreplog.cli.explaining.raw_segment import RawSegment
from pyreplog.cli.shared.output import moment, plural

_TEXT_BYTES = 200
_ORIGIN = struct.Struct("<Qqq")
_GAP_BYTES = 17
_FIRST_ENTRIES = {-1: "records of many ledgers", -2: "prepared, no record yet"}


def explain_header(segment: RawSegment) -> list[Explained]:
    """Explain the header of a segment file."""
    block = segment.data[: layout.SEGMENT_HEADER]
    crc = crc32c(block[layout.CRC_FROM : layout.SEGMENT_FIELDS])
    first, size, number = segment.number("first_entry"), segment.number("size"), segment.number
    meanings: dict[str, tuple[str, bool | None]] = {
        "magic": (repr(segment.header["magic"]), segment.header["magic"] == layout.SEGMENT_MAGIC),
        "crc": (f"CRC-32C; computed {crc:#010x}", number("crc") == crc),
        "version": (f"format version {number('version')}", number("version") >= layout.FORMAT_VERSION),
        "min_reader": (
            f"readable from version {number('min_reader')} on",
            number("min_reader") <= layout.FORMAT_COUNTED,
        ),
        "uuid": (f"log {uuid.UUID(bytes=block[16:32])}", None),
        "base": (f"begins at position {number('base')}; the name says {segment.base}", number("base") == segment.base),
        "size": (f"{_size(size)}; the file has {segment.size}", size == segment.size and _possible(size)),
        "first_entry": (_FIRST_ENTRIES.get(first, f"first entry {first}"), first >= -2),
        "epoch": (f"epoch {number('epoch')}; stamp of its records {segment.stamp:#010x}", None),
        "reserved": ("zero", number("reserved") == 0),
    }
    lines = [
        Explained(field.name, field.offset, block[field.offset :][: field.size], *meanings[field.name])
        for field in layout.SEGMENT
    ]
    padding = block[layout.SEGMENT_FIELDS :]
    return [*lines, Explained("(rest)", layout.SEGMENT_FIELDS, padding, "zero", not any(padding))]


def _possible(size: int) -> bool:
    return layout.SEGMENT_MIN <= size <= layout.SEGMENT_MAX and size % layout.SEGMENT_HEADER == 0


def explain_record(segment: RawSegment, offset: int) -> list[Explained]:
    """Explain the record at an offset: header, attributes, key, value, padding.

    If its length is invalid, only the header is explained.
    """
    return _RecordDump(segment, offset).lines()


class _RecordDump:
    def __init__(self, segment: RawSegment, offset: int) -> None:
        self._segment, self._offset = segment, offset
        self._space = segment.size - offset
        head = segment.data[offset : offset + layout.LONG_HEADER].ljust(layout.LONG_HEADER, b"\0")
        self._fields: tuple[Field, ...] = layout.SHORT
        self._header = layout.SHORT_HEADER
        if head[13] & layout.FORM_LONG:
            self._fields, self._header = layout.LONG, layout.LONG_HEADER
        elif head[13] & layout.FORM_COUNT and head[12] == layout.KIND_BATCH:
            self._fields, self._header = layout.COUNTED, layout.COUNTED_HEADER
        self._values = {field.name: int(field.value(head)) for field in self._fields}
        self._blank = self._values["kind"] == layout.KIND_BLANK
        length = self._values["length"]
        self._length_ok = self._header <= length <= self._space and (not self._blank or length == self._space)

    def lines(self) -> list[Explained]:
        explained = [self._line(field) for field in self._fields]
        if self._length_ok and not self._blank:
            explained += self._parts()
        return explained

    def _bytes(self, start: int, length: int) -> bytes:
        return self._segment.data[self._offset + start : self._offset + start + length]

    def _line(self, field: Field) -> Explained:
        meaning, ok = self._meaning(field.name, self._values[field.name])
        return Explained(field.name, self._offset + field.offset, self._bytes(field.offset, field.size), meaning, ok)

    def _meaning(self, name: str, value: int) -> tuple[str, bool | None]:
        match name:
            case "length":
                return self._length(value)
            case "crc":
                return self._crc(value)
            case "stamp":
                expected = self._segment.stamp
                return f"stamp of the segment; its header gives {expected:#010x}", value == expected
            case "kind":
                return layout.KINDS.get(value, f"kind {value}, which does not exist"), value in layout.KINDS
            case "form":
                return self._form(value)
            case "key_length":
                return f"key of {_size(value)}", self._key_fits(value) if self._length_ok else None
            case "time":
                return f"appended {moment(value)}", value >= 0
            case "entry_delta":
                return self._entry(value), None
            case "count":
                return f"takes {value} entry numbers", 1 <= value <= self._values["entry_delta"] + 1
            case "reserved":
                return "zero", value == 0
            case "synced_lag":
                known = self._segment.number("first_entry") + self._values["entry_delta"] - value
                return "no claim" if value == layout.LAG_NONE else f"entry {known} was known to be synced", None
            case _:
                return f"{value}", None

    def _length(self, value: int) -> tuple[str, bool]:
        if value == 0:
            return "no record was written here", False
        if self._blank:
            return f"{_size(value)}, the end of the segment; {self._space} bytes are left in it", self._length_ok
        return (
            f"{_size(value)}, {layout.stride(value)} with padding; {self._space} to the segment's end",
            self._length_ok,
        )

    def _crc(self, value: int) -> tuple[str, bool | None]:
        if not self._length_ok:
            return "CRC-32C; cannot be computed for an invalid length", None
        length = self._values["length"]
        stop = layout.SHORT_HEADER if self._blank else layout.stride(length)
        computed = crc32c(self._bytes(layout.CRC_FROM, stop - layout.CRC_FROM), length)
        return f"CRC-32C of bytes {layout.CRC_FROM} to {stop - 1}; computed {computed:#010x}", value == computed

    def _key_fits(self, length: int) -> bool:
        flagged = bool(self._values["form"] & layout.FORM_KEY)
        return self._header + length <= self._values["length"] and (flagged or not length)

    def _form(self, value: int) -> tuple[str, bool]:
        flags = {
            layout.FORM_LONG: "long",
            layout.FORM_ATTRIBUTES: "attributes",
            layout.FORM_KEY: "key",
            layout.FORM_COUNT: "count",
        }
        named = [name for flag, name in flags.items() if value & flag]
        version = value & layout.FORM_VERSION_MASK
        fits = not value & layout.FORM_COUNT or self._may_count(value)
        return ", ".join([f"version {version}", *named]), version == layout.FORMAT_VERSION and fits

    def _may_count(self, form: int) -> bool:
        short_batch = self._values["kind"] == layout.KIND_BATCH and not form & layout.FORM_LONG
        return short_batch and self._segment.number("version") >= layout.FORMAT_COUNTED

    def _entry(self, delta: int) -> str:
        entry = self._segment.number("first_entry") + delta
        if self._values["kind"] > layout.KIND_BATCH:
            return f"the next entry is {entry}"
        count = self._values.get("count", 1)
        return f"entry {entry}" if count == 1 else f"entries {entry - count + 1} to {entry}"

    def _parts(self) -> list[Explained]:
        """Explain the bytes between the header and the end of the record."""
        explained, at, length = [], self._header, self._values["length"]
        if self._values["form"] & layout.FORM_ATTRIBUTES:
            size = int.from_bytes(self._bytes(at, 2), "little")
            fits = at + 2 + size <= length
            explained.append(
                Explained("attributes", self._offset + at, self._bytes(at, 2), f"{_size(size)} of attributes", fits)
            )
            if not fits:
                return explained
            explained += self._attributes(at + 2, at + 2 + size)
            at += 2 + size
        key = self._values["key_length"]
        if at + key > length:
            return explained
        if self._values["form"] & layout.FORM_KEY:
            explained.append(Explained("key", self._offset + at, self._bytes(at, key), _text(self._bytes(at, key))))
        value = self._bytes(at + key, length - at - key)
        if self._takes_numbers() and is_record_batch(value):
            explained += self._batch(self._offset + at + key, value)
        else:
            explained.append(Explained("value", self._offset + at + key, value, f"{_size(len(value))}: {_text(value)}"))
        padding = self._bytes(length, layout.stride(length) - length)
        if padding:
            explained.append(Explained("padding", self._offset + length, padding, "zero", not any(padding)))
        return explained

    def _takes_numbers(self) -> bool:
        return self._values["kind"] == layout.KIND_BATCH and bool(self._values["form"] & layout.FORM_COUNT)

    def _batch(self, offset: int, value: bytes) -> list[Explained]:
        count = self._values["count"]
        first = self._segment.number("first_entry") + self._values["entry_delta"] - count + 1
        explained = explain_batch(value, offset, first, count)
        rest = explained[-1].offset + len(explained[-1].data) - offset
        if rest < len(value):
            explained.append(Explained("value", offset + rest, value[rest:], f"{_size(len(value) - rest)} of records"))
        return explained

    def _attributes(self, at: int, stop: int) -> list[Explained]:
        explained = []
        while at < stop:
            size = int.from_bytes(self._bytes(at + 1, 2), "little")
            fits = at + 3 + size <= stop
            data = self._bytes(at, min(3 + size, stop - at))
            explained.append(Explained("attribute", self._offset + at, data, _attribute(data), fits))
            if not fits:
                break
            at += 3 + size
        return explained


def _attribute(data: bytes) -> str:
    tag, value = data[0], data[3:]
    name = layout.TAGS.get(tag, f"unknown tag {tag}")
    if tag in (layout.TAG_EVENT_TIME, layout.TAG_SEQUENCE) and len(value) == 8:
        number = struct.unpack("<q", value)[0]
        return f"{name} {moment(number) if tag == layout.TAG_EVENT_TIME else number}"
    if tag == layout.TAG_PROPERTY:
        split = 2 + int.from_bytes(value[:2], "little")
        return f"{name} {_text(value[2:split])} = {_text(value[split:])}"
    if tag == layout.TAG_ORIGIN and len(value) >= _ORIGIN.size:
        key, first, time_us = _ORIGIN.unpack_from(value)
        gaps = (len(value) - _ORIGIN.size) // _GAP_BYTES
        return f"{name} {key:016x}, first offset {first}, published {moment(time_us)}, {gaps} {plural(gaps, 'gap')}"
    if tag == layout.TAG_REPLICATE_TO:
        return f"{name} {_names(value)}"
    return f"{name} {_text(value)}"


def _names(value: bytes) -> str:
    """Return a list of clusters for people."""
    names, at = list[str](), 0
    while at < len(value):
        size = value[at]
        names.append(_text(value[at + 1 : at + 1 + size]))
        at += 1 + size
    return ", ".join(names) or "no other cluster"


def _size(count: int) -> str:
    return f"{count} {plural(count, 'byte')}"


def _text(data: bytes) -> str:
    """Return bytes for people: as quoted text if they are UTF-8; the beginning of them if there are many."""
    more = " ..." if len(data) > _TEXT_BYTES else ""
    return repr(data[:_TEXT_BYTES].decode("utf-8", "backslashreplace")) + more
