"""The file `replica`, which marks a log as a copy of another log.

While it exists, no writer appends entries of its own, and recovery ignores which entries the records claim as synced:
they were synced on the master's disk.
"""

from __future__ import annotations

from pathlib import Path

from pyreplog._native.system.checksum import crc32c
from pyreplog.config import LogConfig
from pyreplog.errors import InvalidArgumentError, NotALogError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, startup
from pyreplog.log.checkpoint import Checkpoint, CheckpointFile
from pyreplog.log.files import Files
from pyreplog.log.lock import WriterLock


def is_replica(directory: Path) -> bool:
    """Return whether a log directory is marked as a copy."""
    return (directory / names.REPLICA).exists()


def mark(directory: Path, files: Files, uuid: bytes) -> None:
    """Mark a log that no process has open as a copy, durably. uuid: identity of the master's log."""
    body = uuid.hex().encode()
    files.replace_small(directory / names.REPLICA, b"%08x %s\n" % (crc32c(body), body))


def unmark(directory: Path, files: Files) -> None:
    """Remove the mark of a copy, durably. All records of the log must be on disk."""
    files.remove(directory / names.REPLICA)
    files.sync_directory(directory)


def make(directory: Path, files: Files, *, uuid: bytes, segment_bytes: int, start: tuple[int, int]) -> None:
    """Create an empty copy. Raises the errors of `MirrorLog.create`.

    uuid: identity of the master's log. segment_bytes: size of its segments. start: position and first entry number of
    the segment that the copy begins with.
    """
    position, entry = start
    LogConfig(segment_bytes=segment_bytes)
    if len(uuid) != 16 or position % segment_bytes or position < 0 or entry < 0:
        raise InvalidArgumentError(f"log {uuid.hex()}, position {position}, entry {entry}: not where a segment begins")
    startup.prepare_directory(directory, files, create=True, mirror=is_replica(directory), grouped=True)
    lock = WriterLock(directory)
    try:
        if checkpoints.load(directory) is not None or names.segment_bases(directory):
            raise NotALogError(f"{directory} holds a log already")
        mark(directory, files, uuid)
        empty = Checkpoint(
            uuid=uuid, segment_bytes=segment_bytes, start=position, position=position, entry=entry, epoch=0, clean=False
        )
        files.sync_directory(directory.parent)
        CheckpointFile(directory, files, empty).close()
    finally:
        lock.release()


def remove(directory: Path, files: Files) -> None:
    """Remove an empty copy that no process has open, except its mark, so that another copy can be created here."""
    for base in reversed(names.segment_bases(directory)):
        files.remove(names.segment_path(directory, base))
    files.sync_directory(directory)
    for name in (names.TAIL, names.CHECKPOINT):
        files.remove(directory / name)
    files.sync_directory(directory)
