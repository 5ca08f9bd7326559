"""RawFile: one segment file of RocketMQ's commit log. It has no header; its name is the position of its first byte."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pyreplog.errors import NotALogError
from pyreplog.log.files import Files

FOLDER = "commitlog"
FRESH = "pyreplog.fresh"

_NAME = re.compile(r"\d{20}")
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


class RawFile:
    """A segment file and its read-only map. `view` covers the file; views stay readable after `close` and removal."""

    def __init__(self, path: Path, files: Files, *, writable: bool) -> None:
        self.path, self.base = path, int(path.name)
        self.fd = files.open(path, writable=writable)
        try:
            size = os.fstat(self.fd).st_size
            self.view = memoryview(mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
        except BaseException:
            os.close(self.fd)
            raise
        self.end = self.base + size

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def used(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of the chunks between two offsets that are not all zero."""
        for offset in range(begin, end, _CHUNK):
            zeros = _ZEROS[: min(_CHUNK, end - offset)]
            if bytes(self.view[offset : offset + len(zeros)]) != zeros:
                yield offset, len(zeros)

    def zero(self, files: Files, begin: int, end: int) -> bool:
        """Zero the bytes between two offsets. Return whether any of them was not zero."""
        used = list(self.used(begin, end))
        for offset, size in used:
            files.write(self.fd, _ZEROS[:size], offset)
        return bool(used)


def path_of(directory: Path, base: int) -> Path:
    return directory / FOLDER / f"{base:020d}"


def create(directory: Path, base: int, size: int, files: Files) -> RawFile:
    """Create a file of zeros, with allocated blocks and a durable name.

    The file gets its name once it has its size, because RocketMQ does not start with a file that is too short (its
    issue 6904). Raises DiskFullError.
    """
    fresh, path = directory / FRESH, path_of(directory, base)
    files.remove(fresh)
    fd = files.create(fresh, size, zeroed=False)
    try:
        files.sync(fd)
    finally:
        os.close(fd)
    files.rename(fresh, path)
    files.sync_directory(path.parent)
    return RawFile(path, files, writable=True)


def remove(directory: Path, base: int, files: Files) -> None:
    """Remove a file, durably: of several files the disk removes no later one before an earlier one."""
    files.remove(path_of(directory, base))
    files.sync_directory(directory / FOLDER)


def listed(directory: Path) -> list[int]:
    """Return the bases of the files, ascending. Raises NotALogError: the folder holds other files."""
    folder = directory / FOLDER
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        if not _NAME.fullmatch(name):
            raise NotALogError(f"{folder / name}: expected only files of RocketMQ, whose names have 20 digits")
    return [int(name) for name in names]


def check_sizes(directory: Path, bases: list[int], size: int) -> None:
    """Check the files. Raises NotALogError: a file has another size, or does not follow the one before."""
    for i, base in enumerate(bases):
        path = path_of(directory, base)
        actual = path.stat().st_size
        if actual != size:
            raise NotALogError(f"{path}: expected a file of {size} bytes, as the others are, found {actual}")
        if base != bases[0] + i * size or base % size:
            raise NotALogError(
                f"{path}: expected position {bases[0] + i * size} for a name: a file is missing, or not one of this log"
            )
