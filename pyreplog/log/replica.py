"""The file `replica`: this log is a copy of another one.

While it is there, nobody appends, and what records claim to be synced is not believed: it was so on the master's disk.
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
    """Whether a log directory is marked as a copy."""
    return (directory / names.REPLICA).exists()


def mark(directory: Path, files: Files, uuid: bytes) -> None:
    """Make a log that nobody has open a copy from now on, durably."""
    body = uuid.hex().encode()
    files.replace_small(directory / names.REPLICA, b"%08x %s\n" % (crc32c(body), body))


def unmark(directory: Path, files: Files) -> None:
    """It is a log of its own from now on, durably; all of it must be on disk."""
    files.remove(directory / names.REPLICA)
    files.sync_directory(directory)


def make(directory: Path, files: Files, *, uuid: bytes, segment_bytes: int, start: tuple[int, int]) -> None:
    """Make an empty copy that begins with the segment at `start`. Errors as `MirrorLog.create`."""
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
    """Remove a copy that holds nothing and that nobody has open, but for the mark: another is to be made here."""
    for base in reversed(names.segment_bases(directory)):
        files.remove(names.segment_path(directory, base))
    files.sync_directory(directory)
    for name in (names.TAIL, names.CHECKPOINT):
        files.remove(directory / name)
    files.sync_directory(directory)
