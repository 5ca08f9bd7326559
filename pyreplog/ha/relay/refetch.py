"""Relay recovery: discard the relay log, and receive again from the applied position (MySQL: relay_log_recovery).

So a relay log need not be synced: the master still has all entries that the relay loses in a power cut.
"""

from __future__ import annotations

from pathlib import Path

from pyreplog.errors import NotALogError
from pyreplog.ha.relay.position import Applied
from pyreplog.log import names
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock


def refetch_from(applied: Applied | None, segment_bytes: int) -> int:
    """Return the position at which a receiver begins a new relay log.

    That is the segment with the first entry that is not applied; the applier passes over the applied entries in it.
    The master refuses if retention has removed that segment. MySQL's `relay_log_recovery` does the same.

    Args:
        applied: the stored position, from `PositionStore.load`; None: the receiver begins at the start of the log.
        segment_bytes: size of the master's segments, bytes.

    Returns:
        Bytes from the beginning of the master's log.
    """
    return 0 if applied is None else applied.position // segment_bytes * segment_bytes


def discard(directory: str | Path, *, files: Files | None = None) -> None:
    """Remove a relay log that no process has open. A missing one is no error.

    A crash leaves the log complete or removed, except for a folder `<name>.discarded`, which the next call removes. The
    applied position must be stored elsewhere: do not put a PositionFile into this directory.

    Args:
        directory: directory of the relay log.
        files: access to the disk, which tests replace; None: the disk.

    Raises:
        NotALogError: the directory holds something other than a replica.
        LockedError: a process has the log open.
        OSError: the disk failed.
    """
    path, disk = Path(directory), files if files is not None else RealFiles()
    discarded = path.with_name(f"{path.name}.discarded")
    if discarded.exists():
        disk.sync_directory(path.parent)  # the process that renamed it may have been killed before it synced
        disk.remove_tree(discarded)
    if not path.exists():
        return
    if not (path / names.REPLICA).exists():
        raise NotALogError(f"{path}: expected a relay log, found another directory: it was not removed")
    lock = WriterLock(path)
    try:
        disk.rename(path, discarded)
        disk.sync_directory(path.parent)
    finally:
        lock.release()
    disk.remove_tree(discarded)
