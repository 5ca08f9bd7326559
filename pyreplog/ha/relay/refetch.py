"""Relay recovery: throw away what was received, and receive again from what is applied (MySQL: relay_log_recovery).

So a relay log need not be synced: whatever it loses in a power cut, the master still has.
"""

from __future__ import annotations

from pathlib import Path

from pyreplog.errors import NotALogError
from pyreplog.ha.relay.position import Applied
from pyreplog.log import names
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock


def refetch_from(applied: Applied | None, segment_bytes: int) -> int:
    """Where a receiver begins a new relay log, bytes since the master's log began: at the segment in which the first
    entry lies that is not applied. The applier passes over what it has applied of it.

    applied: as `PositionStore.load` gives it; None: nothing is applied, the master's whole log is wanted.
    segment_bytes: of the master's log. The master refuses when retention has removed that segment.
    """
    return 0 if applied is None else applied.position // segment_bytes * segment_bytes


def discard(directory: str | Path, *, files: Files | None = None) -> None:
    """Remove a relay log that nobody has open, whatever state it is in. Nothing happens when there is none.

    A crash leaves it whole or gone, but for a folder `<name>.discarded`, which the next call removes. What is applied
    is stored elsewhere, and must be: a PositionFile does not belong into this directory.
    Errors: NotALogError, the directory holds something else than a copy of another log; LockedError; OSError.
    """
    path, disk = Path(directory), files if files is not None else RealFiles()
    discarded = path.with_name(f"{path.name}.discarded")
    if discarded.exists():
        disk.sync_directory(path.parent)  # who gave it that name may have been killed before it was durable
        disk.remove_tree(discarded)
    if not path.exists():
        return
    if not (path / names.REPLICA).exists():
        raise NotALogError(f"{path} is no copy of another log: it is not thrown away")
    lock = WriterLock(path)
    try:
        disk.rename(path, discarded)
        disk.sync_directory(path.parent)
    finally:
        lock.release()
    disk.remove_tree(discarded)
