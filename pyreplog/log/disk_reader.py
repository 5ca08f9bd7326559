"""DiskReader: reads a file from the disk, past the page cache, since a page may be intact in memory but not on disk.

A bad sector of a mapped file kills the process that touches it. Here it is reported, and blocks that cannot be read
count as zeros.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from pyreplog.log.files import Files, disk_error

BLOCK = 4096
"""Unit of reads past the page cache, bytes: offset, length and memory address have to be multiples of it."""

_ATTEMPTS = 2
_UNREADABLE = (errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO)


class DiskReader:
    """Reads a file in pieces, past the page cache where the file system allows that. One thread at a time.

    Args:
        path: the file.
        files: access to the disk.
        piece_bytes: size of the largest piece, a multiple of BLOCK.

    Attributes:
        size: bytes of the file.
        unreadable: offsets of blocks that could not be read.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptionError: the path is a directory or a device.
        DiskError: the system refuses to open the file.
    """

    def __init__(self, path: Path, files: Files, piece_bytes: int) -> None:
        self._path, self._files = path, files
        self.unreadable: list[int] = []
        self._buffer = memoryview(mmap.mmap(-1, piece_bytes + BLOCK))
        try:
            self._fd = files.open(path, writable=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, f"{path} cannot be read") from error
        self.size = os.fstat(self._fd).st_size
        self._is_direct = True
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            self._go_through_cache()

    def read(self, offset: int, length: int) -> memoryview:
        """Return bytes of the file, up to a piece of them; they are valid until the next call.

        Bytes behind the end of the file, and blocks that the disk cannot read, are zeros.

        Args:
            offset: offset of the first byte.
            length: number of bytes.

        Raises:
            DiskError: the system refuses to read for another reason than the state of the disk.
        """
        start = offset & ~(BLOCK - 1)
        stop = (offset + length + BLOCK - 1) & ~(BLOCK - 1)
        at = start
        while at < min(stop, self.size):
            try:
                done = self._files.read(self._fd, self._buffer[at - start : stop - start], at)
            except OSError as error:
                if self._is_direct and error.errno == errno.EINVAL:
                    self._go_through_cache()
                    continue
                self._check(error)
                done = self._read_blocks(start, at, stop)
            if not done:
                break
            at += done
        at = min(at, self.size)
        self._buffer[at - start : stop - start] = bytes(stop - at)
        return self._buffer[offset - start : offset - start + length]

    def _read_blocks(self, start: int, at: int, stop: int) -> int:
        """Read the blocks from `at` to `stop` one by one, after a read of them failed; return the number of bytes."""
        for block in range(at, stop, BLOCK):
            if not any(self._read_block(start, block) for _ in range(_ATTEMPTS)):
                self._buffer[block - start : block - start + BLOCK] = bytes(BLOCK)
                if block not in self.unreadable:
                    self.unreadable.append(block)
        return stop - at

    def _read_block(self, start: int, block: int) -> bool:
        try:
            done = self._files.read(self._fd, self._buffer[block - start : block - start + BLOCK], block)
        except OSError as error:
            self._check(error)
            return False
        return done == min(BLOCK, max(self.size - block, 0))

    def _check(self, error: OSError) -> None:
        """Raise DiskError for an error that is not a defect of the disk."""
        if error.errno not in _UNREADABLE:
            raise disk_error(error, f"{self._path} cannot be read") from error

    def _go_through_cache(self) -> None:
        """Read through the page cache from now on, and ask the kernel to drop the pages of the file first."""
        self._is_direct = False
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Views that were returned stay valid. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
