"""Mapping a segment file with a lock, so that no writer of any process recycles it; copying a damaged one."""

from __future__ import annotations

import os
from pathlib import Path

from pyreplog._native.log.segment import Segment
from pyreplog.errors import CorruptionError, TrimmedError
from pyreplog.log import names
from pyreplog.log.files import RealFiles, share
from pyreplog.regular_files import open_reading


def map_locked(directory: Path, base: int) -> Segment:
    """Map the segment at `base` for reading, with a shared lock on its file as long as the Segment lives.

    Raises TrimmedError if the file does not exist or is being removed, CorruptionError if its header is damaged or that
    of another segment, FormatVersionError if a newer version wrote it.
    """
    path = names.segment_path(directory, base)
    try:
        fd = RealFiles().open(path, writable=False)
    except FileNotFoundError:
        raise TrimmedError(f"{path} was removed") from None
    if not share(fd):
        raise TrimmedError(f"{path} is being removed")
    segment = Segment(fd, str(path), writable=False)
    if segment.base == base:
        return segment
    if not _is_at(path, segment):
        raise TrimmedError(f"{path} was removed")  # the file was recycled between the open and the lock
    raise CorruptionError(path, base, f"the segment at {base}", f"that at {segment.base}")


def copy(directory: Path, base: int, size: int, *, header: bytes = b"") -> Segment:
    """Copy a segment file into memory: its first `size` bytes, padded with zeros, with `header` in place of its own.

    Raises FileNotFoundError if the file does not exist, CorruptionError or FormatVersionError for its header.
    """
    path = names.segment_path(directory, base)
    fd = os.memfd_create(path.name, os.MFD_CLOEXEC)
    try:
        with open_reading(path) as file:
            at = 0
            while sent := os.sendfile(fd, file.fileno(), at, size - at):
                at += sent
        os.ftruncate(fd, size)
        os.pwrite(fd, header, 0)
    except BaseException:
        os.close(fd)
        raise
    return Segment(fd, str(path), writable=False)


def _is_at(path: Path, segment: Segment) -> bool:
    try:
        return path.stat().st_ino == os.fstat(segment.fileno()).st_ino
    except FileNotFoundError:
        return False
