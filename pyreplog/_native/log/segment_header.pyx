"""Encodes and decodes the first block of a segment file (FORMAT.md, "Segment"). Threads: any."""

import os
from collections import namedtuple

from libc.stdint cimport uint16_t
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport (
    FORMAT_COUNTED, FORMAT_VERSION, SEGMENT_HEADER, SEGMENT_MAGIC, SEGMENT_MAX, SEGMENT_MIN, crc32c,
)
from pyreplog._native.layout cimport SegmentHeader as RawHeader
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidArgumentError


COUNTED = FORMAT_COUNTED
"""Version of segments in which records may take several entry numbers."""

SegmentHeader = namedtuple("SegmentHeader", "uuid base size first_entry epoch version")


cdef uint32_t stamp_of(const uint8_t *uuid, int64_t base, int64_t size, uint32_t epoch) noexcept nogil:
    cdef uint32_t seed = crc32c(0, uuid, 16)
    cdef uint32_t x = seed + <uint32_t>(base // size) + epoch * <uint32_t>0x9E3779B1
    x = (x ^ (x >> 16)) * <uint32_t>0x85EBCA6B
    x = (x ^ (x >> 13)) * <uint32_t>0xC2B2AE35
    return x ^ (x >> 16)


def compute_stamp(bytes uuid not None, int64_t base, int64_t size, uint32_t epoch):
    """Return the stamp in the records of a segment.

    uuid: of the log. Raises InvalidArgumentError if it has not 16 bytes.
    """
    if len(uuid) != 16:
        raise InvalidArgumentError(f"uuid: expected 16 bytes, found {len(uuid)}")
    return stamp_of(<const uint8_t *><const char *>uuid, base, size, epoch)


def encode_header(bytes uuid not None, int64_t base, int64_t size, int64_t first_entry, uint32_t epoch,
                  uint16_t version=FORMAT_VERSION):
    """Return the first block of a segment file, SEGMENT_HEADER bytes.

    version: of the format; COUNTED if records of the segment may take several entry numbers.
    """
    cdef RawHeader header
    cdef bytearray out = bytearray(SEGMENT_HEADER)
    cdef uint8_t *p = out
    memset(&header, 0, sizeof(RawHeader))
    header.magic = SEGMENT_MAGIC
    header.version = header.min_reader = version
    memcpy(header.uuid, <const char *>uuid, 16)
    header.base, header.size, header.first_entry, header.epoch = base, size, first_entry, epoch
    header.crc = crc32c(0, <uint8_t *>&header + 12, sizeof(RawHeader) - 12)
    memcpy(p, &header, sizeof(RawHeader))
    return bytes(out)


def decode_header(path, bytes block not None):
    """Return the header in a segment's first block.

    path: of its file, for messages. Raises CorruptionError if the header is damaged, and FormatVersionError if this
    build cannot read its version.
    """
    cdef RawHeader header
    if len(block) < <Py_ssize_t>sizeof(RawHeader):
        raise damage(path, 0, "a segment header", f"{len(block)} bytes")
    memcpy(&header, <const char *>block, sizeof(RawHeader))
    if header.magic != SEGMENT_MAGIC:
        actual = "zeros" if not any(block) else repr(block[:8])
        raise damage(path, 0, "the magic of a segment", actual)
    computed = crc32c(0, <uint8_t *>&header + 12, sizeof(RawHeader) - 12)
    if header.crc != computed:
        raise damage(path, 8, f"header CRC-32C {computed:#010x}", f"{header.crc:#010x}")
    if header.min_reader > FORMAT_COUNTED:
        raise FormatVersionError(path, header.min_reader, FORMAT_COUNTED)
    if not SEGMENT_MIN <= header.size <= SEGMENT_MAX or header.size % SEGMENT_HEADER or header.base % header.size:
        raise damage(path, 32, "a base that is a multiple of a possible size",
                     f"base {header.base}, size {header.size}")
    return SegmentHeader(
        bytes(header.uuid[:16]), header.base, header.size, header.first_entry, header.epoch, header.version
    )


cdef object damage(path, int offset, str expected, str actual):
    """Return a CorruptionError at a position of the log; the name of a segment begins with that of its first byte."""
    cdef str name = os.path.basename(path)
    cdef str base = name[:20]
    begin = int(base) if name.endswith(".log") and len(base) == 20 and base.isdecimal() else 0
    return CorruptionError(path, begin + offset, expected, actual)
