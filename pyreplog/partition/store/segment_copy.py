"""SegmentDigest and SegmentCopy: how a follower replaces a segment by its leader's compacted one, byte for byte."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidArgumentError, StreamError
from pyreplog.log import indexes
from pyreplog.log.files import Files
from pyreplog.stream.mirror_log import BLANK_BYTES, STREAM_HEADER_BYTES

if TYPE_CHECKING:
    from pyreplog.partition.store.partition_log import CleanableSegment, PartitionLog

_BLOCK_BYTES = 4096
_CRC_BYTES = 1 << 20  # per call, so that other threads run in between


class SegmentDigest(NamedTuple):
    """Identifies the content of a sealed segment.

    Attributes:
        base: position where it begins.
        first: offset of its first record.
        end: offset behind its last record.
        size: bytes from its beginning to the end of its blank; zeros follow.
        crc: CRC-32C of these bytes.
    """

    base: int
    first: int
    end: int
    size: int
    crc: int


def digest_of(log: PartitionLog, cleanable: CleanableSegment) -> SegmentDigest:
    """Return the digest of a segment. Reads all of it.

    Args:
        log: the log.
        cleanable: the segment.

    Raises:
        CorruptionError: the segment is damaged.
        OSError: it cannot be opened.
    """
    segment = log.map_sealed(cleanable.base)
    size, crc = segment.end + BLANK_BYTES, 0
    for at in range(0, size, _CRC_BYTES):
        crc = crc32c(segment.view(at, min(_CRC_BYTES, size - at)), crc)
    return SegmentDigest(cleanable.base, cleanable.first, cleanable.end, size, crc)


class SegmentCopy:
    """A copy of another replica's segment, in a file beside this replica's own segment. One thread at a time.

    Args:
        log: the log of this replica.
        files: the disk.
        digest: digest of the other replica's segment.

    Raises:
        InvalidArgumentError: the size is not one of a segment of this log.
        DiskFullError: the disk is full.
        OSError: the disk failed.
    """

    def __init__(self, log: PartitionLog, files: Files, digest: SegmentDigest) -> None:
        if not HEADER_BYTES + BLANK_BYTES <= digest.size <= log.segment_bytes:
            raise InvalidArgumentError(f"size: expected at most {log.segment_bytes}, found {digest.size}")
        self.digest = digest
        self.path = log.path / f"fresh-{digest.base:020d}.seg"
        self.size = 0
        """Bytes written so far."""
        self._log, self._files, self._crc = log, files, 0
        files.remove(self.path)
        blocks = min(-(-digest.size // _BLOCK_BYTES) * _BLOCK_BYTES, log.segment_bytes)
        self._fd = files.create(self.path, blocks, zeroed=False)

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes.

        Raises:
            StreamError: the copy gets longer than the digest's size.
            OSError: the disk failed.
        """
        left = self.digest.size - self.size
        if not 0 < len(data) <= left:
            raise StreamError(self.digest.base + self.size, f"1 to {left} bytes of a segment", f"{len(data)}")
        self._files.write(self._fd, data, self.size)
        self._crc, self.size = crc32c(data, self._crc), self.size + len(data)

    def finish(self) -> None:
        """Verify the copy, and sync it.

        It must have the header and the offsets of this replica's own segment, and all its records must be intact.

        Raises:
            StreamError: the header, the offsets or the digest differ.
            CorruptionError: a record is damaged.
            OSError: the disk failed.
        """
        digest = self.digest
        if (self.size, self._crc) != (digest.size, digest.crc):
            raise StreamError(
                digest.base, f"{digest.size} bytes with CRC {digest.crc:08x}", f"{self.size} with {self._crc:08x}"
            )
        if self.size < self._log.segment_bytes:
            self._files.write(self._fd, b"\0", self._log.segment_bytes - 1)  # sets the length without allocating blocks
        copy = Segment(self._files.open(self.path, writable=False), str(self.path), writable=False)
        own = self._log.map_sealed(digest.base)
        if copy.bytes_at(0, STREAM_HEADER_BYTES) != own.bytes_at(0, STREAM_HEADER_BYTES):
            raise StreamError(digest.base, "the header of this replica's segment", "another header")
        indexes.build(copy)
        found = copy.end + BLANK_BYTES, copy.head_at(copy.end)[1]
        copy.close_file()
        if found != (digest.size, digest.end) or own.head_at(own.end)[1] != digest.end:
            raise StreamError(
                digest.base, f"{digest.size} bytes with records up to offset {own.head_at(own.end)[1]}",
                f"{found[0]} up to {found[1]}",
            )  # fmt: skip
        self._files.sync(self._fd)
        self._close()

    def discard(self) -> None:
        """Remove the file, unless it has replaced the segment."""
        self._close()
        self._files.remove(self.path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
