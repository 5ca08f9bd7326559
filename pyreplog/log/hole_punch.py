"""Hollow segments: the space of a sealed segment in the middle of a log, of which nothing is needed, is given back.

Positions stay as they are. The file is replaced by one that holds the same header and, where the first record was, the
blank that ends a segment; behind it there is nothing, not even blocks. It is never written again, and goes when the
log is trimmed past it. Readers that have the old file mapped keep it. Order:

1. fresh file: header, blank, length; synced    crash before: nothing happened; a stray file, removed at open
2. index files removed, durably                 crash after: made again, from what the segment then holds
3. fresh file renamed over the old one          crash after: the one or the other
4. directory synced                             from here on it is the new one
"""

from __future__ import annotations

import os
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.errors import DiskError
from pyreplog.log import names
from pyreplog.log.files import Files

_BLANK = 5  # record kind
_ALLOCATED = HEADER_BYTES + 4096  # what a hollow segment takes of the disk, but for its last block


def is_hole_punched(segment: Segment) -> bool:
    """Whether a segment ends where its first record would be."""
    return segment.head_at(HEADER_BYTES)[0] == _BLANK


def replace(directory: Path, files: Files, segment: Segment) -> None:
    """Make the file of a sealed segment hollow, durably. DiskError: it is whole. Any other OSError: whole or hollow."""
    path, fresh = names.segment_path(directory, segment.base), directory / f"fresh-{segment.base:020d}.seg"
    try:
        _make(files, fresh, segment)
    except OSError as error:
        files.remove(fresh)
        raise DiskError(error.errno, f"{path} cannot be made hollow: {error}") from error
    files.remove(names.index_path(directory, segment.base))
    files.remove(names.ledgers_path(directory, segment.base))
    files.sync_directory(directory)  # else a disk may rename first: an index of what is not there any more
    files.rename(fresh, path)
    files.sync_directory(directory)


def _make(files: Files, fresh: Path, segment: Segment) -> None:
    """Step 1."""
    files.remove(fresh)
    fd = files.create(fresh, _ALLOCATED, zeroed=False)
    try:
        files.write(fd, segment.view(0, HEADER_BYTES), 0)
        files.write(fd, segment.blank_at(HEADER_BYTES, segment.head_at(segment.end)[3]), HEADER_BYTES)
        files.write(fd, b"\0", segment.size - 1)  # its length, and no blocks in between
        files.sync(fd)
    finally:
        os.close(fd)
