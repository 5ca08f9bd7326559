"""Hollow segments: free the space of a sealed segment in the middle of a log whose records are no longer needed.

Positions do not change. The file is replaced by a sparse file with the same header and, in place of the first record,
the blank that ends a segment. It is never written again, and is removed when the log is trimmed past it. A reader that
has the old file mapped can go on reading it. Order:

1. fresh file: header, blank, length; synced    crash before: nothing happened; opening removes the stray file
2. index files removed, durably                 crash after: rebuilt from the segment as it is then
3. fresh file renamed over the old one          crash after: the old file or the new one
4. directory synced                             from here on the new file
"""

from __future__ import annotations

import os
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.errors import DiskError
from pyreplog.log import names
from pyreplog.log.files import Files

_BLANK = 5  # record kind
_ALLOCATED = HEADER_BYTES + 4096  # bytes that a hollow segment takes on disk, without its last block


def is_hole_punched(segment: Segment) -> bool:
    """Return whether a segment is hollow: it has a blank in place of its first record."""
    return segment.head_at(HEADER_BYTES)[0] == _BLANK


def replace(directory: Path, files: Files, segment: Segment) -> None:
    """Replace the file of a sealed segment by a hollow one, durably.

    Raises DiskError if the file was not replaced; another OSError if it may be replaced or not.
    """
    path, fresh = names.segment_path(directory, segment.base), directory / f"fresh-{segment.base:020d}.seg"
    try:
        _make(files, fresh, segment)
    except OSError as error:
        files.remove(fresh)
        raise DiskError(error.errno, f"{path} cannot be made hollow: {error}") from error
    files.remove(names.index_path(directory, segment.base))
    files.remove(names.ledgers_path(directory, segment.base))
    files.sync_directory(directory)  # else the rename may reach the disk first: a stale index file
    files.rename(fresh, path)
    files.sync_directory(directory)


def _make(files: Files, fresh: Path, segment: Segment) -> None:
    """Create the fresh file (step 1)."""
    files.remove(fresh)
    fd = files.create(fresh, _ALLOCATED, zeroed=False)
    try:
        files.write(fd, segment.view(0, HEADER_BYTES), 0)
        files.write(fd, segment.blank_at(HEADER_BYTES, segment.head_at(segment.end)[3]), HEADER_BYTES)
        files.write(fd, b"\0", segment.size - 1)  # sets the length, without blocks in between
        files.sync(fd)
    finally:
        os.close(fd)
