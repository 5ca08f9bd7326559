"""The index object of a segment: its sparse index, and the append time of the first record of each block."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import ObjectCorruptionError, ReplogError
from pyreplog.offload.manifest import LogIdentity, SealedObject
from pyreplog.offload.storage import Storage

_HEADER, _COUNTS_AT = 96, 64
_BLOCK, _RANGE, _TIME = 8, 16, 8
_PLACE = 0x7FFFFFFF
_TIME_AT = 16  # in a record's header


class ObjectIndex(NamedTuple):
    """The index of an offloaded segment.

    sparse: as for a segment file. For the first record of each block: entries (number of the segment's entries before
    it), places (its offset) and times (append time, microseconds since 1970), all ascending.
    """

    sparse: SparseIndex
    entries: NDArray[np.int64]
    places: NDArray[np.int64]
    times: NDArray[np.int64]


def encode(segment: Segment, index: SparseIndex) -> tuple[bytes, int, int]:
    """Return (index object, append time of the first record, append time of the blank) of a verified sealed segment."""
    low, high = segment.head_at(HEADER_BYTES)[3], segment.head_at(index.end)[3]
    data = index.to_bytes(segment.uuid, segment.base, segment.first_entry, segment.stamp, low, high)
    _, places = _blocks(data, len(index))
    words = np.frombuffer(segment.view(0, segment.size), "<i8")
    return data + words[(places + _TIME_AT) // 8].tobytes(), low, high


def load(storage: Storage, log: LogIdentity, item: SealedObject) -> ObjectIndex:
    """Load the index of a segment. Raises ObjectCorruptionError, FormatVersionError and StorageError."""
    data = storage.read(item.index_name, 0, item.index_bytes)
    if crc32c(data) != item.index_crc32c:
        raise ObjectCorruptionError(
            storage.of(item.index_name), 0, f"CRC-32C {item.index_crc32c:#010x}", f"{crc32c(data):#010x}"
        )
    blocks, ranges = struct.unpack_from("<II", data, _COUNTS_AT) if len(data) >= _HEADER else (0, 0)
    end = _HEADER + blocks * _BLOCK + ranges * _RANGE
    if len(data) != end + blocks * _TIME:
        raise ObjectCorruptionError(
            storage.of(item.index_name), 0, f"{end + blocks * _TIME} bytes for {blocks} blocks", f"{len(data)}"
        )
    try:
        sparse = _sparse(data[:end], log, item)
    except ReplogError as error:
        raise ObjectCorruptionError(storage.of(item.index_name), 0, "the index of the segment", str(error)) from error
    entries, places = _blocks(data, blocks)
    return ObjectIndex(sparse, entries, places, np.frombuffer(data, "<i8", blocks, end))


def _blocks(data: bytes, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    words = np.frombuffer(data, "<u4", 2 * count, _HEADER)
    return words[0::2].astype(np.int64), (words[1::2] & _PLACE).astype(np.int64) * 8


def _sparse(data: bytes, log: LogIdentity, item: SealedObject) -> SparseIndex:
    """Load the sparse index from a mapped memory file. Raises CorruptionError and FormatVersionError."""
    stamp = in_memory(item.name, log, item, HEADER_BYTES, b"").stamp
    fd = os.memfd_create("index", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        path = f"/proc/self/fd/{fd}"
        return SparseIndex.load(path, log.segment_bytes, log.uuid, item.base, item.first_entry, stamp)[0]
    finally:
        os.close(fd)


def in_memory(path: str, log: LogIdentity, item: SealedObject, start: int, data: bytes) -> Segment:
    """Return a segment with these bytes from offset `start` on. The rest is zeros, and takes no memory.

    path: for messages.
    """
    fd = os.memfd_create("segment", os.MFD_CLOEXEC)
    try:
        os.truncate(fd, log.segment_bytes)
        os.pwrite(
            fd, encode_header(log.uuid, item.base, log.segment_bytes, item.first_entry, item.epoch, item.version), 0
        )
        for at in range(0, len(data), 1 << 30):
            os.pwrite(fd, data[at : at + (1 << 30)], start + at)
    except BaseException:
        os.close(fd)
        raise
    return Segment(fd, path, writable=False)
