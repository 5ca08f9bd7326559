"""Making a log from a backup, with a new identity, so that it is never taken for the original.

Entries, keys, times, entry numbers and positions stay the same. The new uuid changes each segment's header, and with it
the stamps of its records; the CRC-32C of a record does not cover the stamp, and stays.
"""

from __future__ import annotations

import contextlib
import os
import uuid as uuid_module
from collections.abc import Callable
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError
from pyreplog.log import names, recovery
from pyreplog.log.backup import manifest as manifests
from pyreplog.log.backup.copying import check_target
from pyreplog.log.backup.manifest import Manifest, Piece
from pyreplog.log.checkpoint import Checkpoint, CheckpointFile
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.opening import as_path
from pyreplog.regular_files import open_reading

Progress = Callable[[int, int], object]
"""Called with the total (bytes restored, entries restored)."""

_STAMP_AT = 8  # offset in a record's header
_STEP_BYTES = 1 << 20


def restore(
    backup: Path | str, target: Path | str, *, progress: Progress | None = None, files: Files | None = None
) -> Manifest:
    """Make a log from a backup, with a new identity.

    The log appears in the directory as a whole or not at all. Every record is verified twice: in the backup, and in the
    new log.

    Args:
        backup: directory of the backup.
        target: directory of the new log; it must be empty or not exist.
        progress: called with the bytes and the entries restored so far.
        files: access to the disk, which tests replace; None: the files of the operating system.

    Returns:
        The manifest of the backup.

    Raises:
        NotALogError: `backup` holds no backup, or an unfinished one.
        FormatVersionError: a newer version wrote the backup.
        CorruptionError: the backup is damaged.
        InvalidArgumentError: `target` is not empty.
        DiskFullError: there is no room for the log.

    See docs/cli.md.
    """
    backup, target = as_path(backup), as_path(target)
    files = files if files is not None else RealFiles()
    manifest = manifests.load(backup)
    check_target(target)
    building = target.with_name(f"{target.name}.restoring")
    files.remove_tree(building)
    files.make_directory(building)
    try:
        _fill(backup, building, manifest, files, progress)
        files.rename(building, target)
        files.sync_directory(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(building)
        raise
    return manifest


def _fill(backup: Path, building: Path, manifest: Manifest, files: Files, progress: Progress | None) -> None:
    uuid, size = uuid_module.uuid4().bytes, manifest.segment_bytes
    done = entries = 0
    for piece in manifest.pieces:
        path = names.segment_path(building, piece.base)
        _copy(files, backup / piece.name, path, piece, size)
        _rewrite(files, path, piece, uuid, backup / piece.name)
        _verify(path, piece, backup / piece.name)
        done, entries = done + piece.bytes, entries + piece.entries
        if progress is not None:
            progress(done, entries)
    checkpoint = Checkpoint(
        uuid=uuid,
        segment_bytes=size,
        start=manifest.start_position,
        position=manifest.end_position,
        entry=manifest.end,
        epoch=manifest.epoch,
        clean=True,
    )
    CheckpointFile(building, files, checkpoint).close()
    files.sync_directory(building)


def _copy(files: Files, source: Path, path: Path, piece: Piece, size: int) -> None:
    """Create a segment file with the bytes of a piece. Raises CorruptionError if they differ from the manifest."""
    if not source.is_file():
        raise CorruptionError(source, 0, f"a file of {piece.bytes} bytes", "none")
    fd, crc, at = files.create(path, size, zeroed=False), 0, 0
    try:
        with open_reading(source) as file:
            while at < piece.bytes and (data := file.read(min(_STEP_BYTES, piece.bytes - at))):
                crc = crc32c(data, crc)
                files.write(fd, data, at)
                at += len(data)
    finally:
        os.close(fd)
    if (at, crc) != (piece.bytes, piece.crc32c):
        raise CorruptionError(
            source, 0, f"{piece.bytes} bytes with CRC-32C {piece.crc32c:#010x}", f"{at} bytes with {crc:#010x}"
        )


def _rewrite(files: Files, path: Path, piece: Piece, uuid: bytes, source: Path) -> None:
    """Change the uuid of a segment: rewrite its header, and the stamps of its records."""
    import numpy

    fd = files.open(path, writable=True)
    old = Segment(fd, str(path), writable=False)
    if (old.base, old.first_entry, old.epoch) != (piece.base, piece.first_entry, piece.epoch):
        raise CorruptionError(source, piece.base, f"the segment at {piece.base}", f"that at {old.base}")
    new = Segment(os.dup(fd), str(path), writable=False)
    new.reassign(str(path), uuid, piece.base, piece.first_entry, piece.epoch)
    words = numpy.memmap(path, dtype="<u4", mode="r+")
    offset = HEADER_BYTES
    while offset < piece.stop:
        batch = old.scan(offset, piece.stop, until=min(offset + _STEP_BYTES, piece.stop), all_kinds=True)
        words[(batch.position - piece.base + _STAMP_AT) // 4] = new.stamp
        offset = batch.next_position - piece.base
    if piece.sealed:
        words[(piece.stop + _STAMP_AT) // 4] = new.stamp
    words.flush()
    header = encode_header(uuid, piece.base, old.size, piece.first_entry, piece.epoch, old.version)
    files.write(fd, header, 0)
    files.sync(fd)


def _verify(path: Path, piece: Piece, source: Path) -> None:
    """Check that the new segment has the records that the manifest lists. Raises CorruptionError otherwise."""
    segment = Segment(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path), writable=False)
    index = SparseIndex(segment.size)
    offset, status = segment.verify(index, HEADER_BYTES, segment.size if piece.sealed else piece.stop)
    if (offset, status == recovery.BLANK, index.entries) != (piece.stop, piece.sealed, piece.entries):
        raise CorruptionError(
            source, piece.base, f"{piece.entries} entries up to offset {piece.stop}", f"{index.entries} up to {offset}"
        )
