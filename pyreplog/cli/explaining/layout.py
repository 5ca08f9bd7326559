"""The fields of a segment file, for `dump` to name them. They are those of layout.h; a test compares the two."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyreplog._native.system.checksum import crc32c

SEGMENT_HEADER = 4096
SEGMENT_FIELDS = 64
SHORT_HEADER = 32
COUNTED_HEADER = 40
LONG_HEADER = 64
CRC_FROM = 12
FORMAT_VERSION = 1
FORMAT_COUNTED = 2
LAG_NONE = 0xFFFFFFFF
SEGMENT_MIN, SEGMENT_MAX = 64 << 10, 1 << 30

FORM_VERSION_MASK, FORM_LONG, FORM_ATTRIBUTES, FORM_KEY, FORM_COUNT = 0x0F, 0x10, 0x20, 0x40, 0x80

KINDS = {1: "data", 2: "batch", 3: "control", 4: "marker", 5: "blank"}
KIND_BATCH, KIND_BLANK = 2, 5

TAGS = {1: "event time", 2: "property", 3: "producer", 4: "sequence", 5: "origin", 6: "replicate to"}
TAG_EVENT_TIME, TAG_PROPERTY, TAG_PRODUCER, TAG_SEQUENCE, TAG_ORIGIN, TAG_REPLICATE_TO = TAGS

SEGMENT_MAGIC = b"REPLOG01"


@dataclass(frozen=True)
class Field:
    """A field: its name in layout.h, its offset in the structure (bytes), and its code of `struct`.

    order: of its bytes: "<" or, in Kafka's structures, ">".
    """

    name: str
    offset: int
    code: str
    order: str = "<"

    @property
    def size(self) -> int:
        """Bytes of the field."""
        return struct.calcsize(self.order + self.code)

    def value(self, data: bytes) -> int | bytes:
        """Return the value of the field in the bytes of a structure."""
        value: int | bytes = struct.unpack_from(self.order + self.code, data, self.offset)[0]
        return value


HEAD = (
    Field("length", 0, "I"), Field("crc", 4, "I"), Field("stamp", 8, "I"), Field("kind", 12, "B"),
    Field("form", 13, "B"), Field("key_length", 14, "H"), Field("time", 16, "q"),
)  # fmt: skip
SHORT = (*HEAD, Field("entry_delta", 24, "I"), Field("synced_lag", 28, "I"))
COUNTED = (*SHORT, Field("count", 32, "I"), Field("reserved", 36, "I"))
LONG = (
    *HEAD, Field("ledger", 24, "q"), Field("entry", 32, "q"), Field("lac", 40, "q"), Field("ledger_bytes", 48, "Q"),
    Field("ledger_messages", 56, "Q"),
)  # fmt: skip
SEGMENT = (
    Field("magic", 0, "8s"), Field("crc", 8, "I"), Field("version", 12, "H"), Field("min_reader", 14, "H"),
    Field("uuid", 16, "16s"), Field("base", 32, "q"), Field("size", 40, "q"), Field("first_entry", 48, "q"),
    Field("epoch", 56, "I"), Field("reserved", 60, "I"),
)  # fmt: skip

RECORD_BATCH = tuple(
    Field(name, offset, code, ">")
    for name, offset, code in (
        ("base_offset", 0, "q"), ("batch_length", 8, "i"), ("leader_epoch", 12, "i"), ("magic", 16, "b"),
        ("batch_crc", 17, "I"), ("attributes", 21, "h"), ("last_delta", 23, "i"), ("base_time", 27, "q"),
        ("max_time", 35, "q"), ("producer_id", 43, "q"), ("producer_epoch", 51, "h"), ("base_sequence", 53, "i"),
        ("records", 57, "i"),
    )
)  # fmt: skip
"""The header of Kafka's record batches, magic 2. It lies at the beginning of a value."""
RECORD_BATCH_HEADER, RECORD_BATCH_MAGIC = 61, 2
BATCH_LENGTH_FROM, BATCH_CRC_FROM = 12, 21
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20


def stride(length: int) -> int:
    """Return the bytes that a record of this length takes in the segment."""
    return (length + 7) & ~7


def stamp(uuid: bytes, base: int, size: int, epoch: int) -> int:
    """Return the stamp of the records of a segment (FORMAT.md, "Stamp")."""
    x = (crc32c(uuid) + base // size + epoch * 0x9E3779B1) & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ (x >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ (x >> 16)
