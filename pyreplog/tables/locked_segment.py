"""A segment file that somebody reads: mapped, and locked so that no writer recycles it meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

from pyreplog._native.log.segment import Segment
from pyreplog.errors import NotALogError, TrimmedError
from pyreplog.log.files import share
from pyreplog.regular_files import open_regular


def map_locked(path: str, uuid: bytes, base: int, epoch: int | None = None) -> Segment:
    """Map the segment that the planner saw. Its writer may unlink the file meanwhile, and does not change it.

    epoch: None, any. Errors: TrimmedError, the file is gone or is another segment's now; NotALogError, there is no such
    directory on this host; CorruptionError, OSError.
    """
    try:
        fd = open_regular(path, position=base)
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            raise NotALogError(
                f"{Path(path).parent}: no such directory on host {socket.gethostname()}, which is to read {path}; "
                "executors open the files of a log themselves, under the path that the driver was given"
            ) from None
        raise TrimmedError(f"{path} was removed") from None
    if not share(fd):
        raise TrimmedError(f"{path} is being removed")
    segment = Segment(fd, path, writable=False)
    if (segment.uuid, segment.base) != (uuid, base) or epoch not in (None, segment.epoch):
        raise TrimmedError(f"{path} was replaced by another segment")
    return segment
