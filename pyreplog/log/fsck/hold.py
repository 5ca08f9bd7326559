"""Reading a segment file so that no writer, of any process, recycles it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from pyreplog._native.segment import Segment
from pyreplog.errors import CorruptionError, TrimmedError
from pyreplog.log import names
from pyreplog.log.files import RealFiles, lock_range


def hold(directory: Path, base: int) -> Segment:
    """Map the segment at `base` for reading, with a shared lock on its file for as long as the Segment lives.

    Errors: TrimmedError when it is not there (any more), CorruptionError, FormatVersionError.
    """
    path = names.segment_path(directory, base)
    try:
        fd = RealFiles().open(path, writable=False)
    except FileNotFoundError:
        raise TrimmedError(f"{path} was removed") from None
    if not lock_range(fd, exclusive=False):
        os.close(fd)
        raise TrimmedError(f"{path} is being removed")
    segment = Segment(fd, str(path), writable=False)
    if segment.base == base:
        return segment
    if not _is_at(path, segment):
        raise TrimmedError(f"{path} was removed")  # and its file recycled, between our opening it and our lock
    raise CorruptionError(path, base, f"the segment at {base}", f"that at {segment.base}")


def _is_at(path: Path, segment: Segment) -> bool:
    try:
        return path.stat().st_ino == os.fstat(segment.fileno()).st_ino
    except FileNotFoundError:
        return False
