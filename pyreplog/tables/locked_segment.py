"""Segment files that are mapped for reading, with a lock that keeps a writer from recycling them."""

from __future__ import annotations

import socket
from pathlib import Path

from pyreplog._native.log.segment import Segment
from pyreplog.errors import NotALogError, TrimmedError
from pyreplog.log.files import share
from pyreplog.regular_files import open_regular


def map_locked(path: str, uuid: bytes, base: int, epoch: int | None = None) -> Segment:
    """Map the segment that the planner chose. A writer may unlink the file meanwhile, but does not change it.

    Args:
        path: path of the segment file.
        uuid: uuid of its log.
        base: position of the segment in the log.
        epoch: epoch of the segment; None: any.

    Returns:
        The mapped segment.

    Raises:
        TrimmedError: the file is gone, or holds another segment now.
        NotALogError: the directory does not exist on this host.
        CorruptionError: the header is damaged.
        OSError: the file cannot be opened.
    """
    try:
        fd = open_regular(path, position=base)
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            raise NotALogError(
                f"{Path(path).parent}: no such directory on host {socket.gethostname()}, needed to read {path}; "
                "executors open the files of a log themselves, under the path that the driver was given"
            ) from None
        raise TrimmedError(f"{path} was removed") from None
    if not share(fd):
        raise TrimmedError(f"{path} is being removed")
    segment = Segment(fd, path, writable=False)
    if (segment.uuid, segment.base) != (uuid, base) or epoch not in (None, segment.epoch):
        raise TrimmedError(f"{path} was replaced by another segment")
    return segment
