"""Taking a backup: a consistent copy of a log, with or without a live writer.

It reaches from the log's start to the end that readers see when the backup begins; every record is verified. A backup
cannot be opened as a log: `restore` makes a log from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, InvalidArgumentError, TrimmedError, TruncatedError
from pyreplog.log import names, recovery
from pyreplog.log.backup.manifest import Manifest, Piece
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.fsck import survey
from pyreplog.log.fsck.locked_segment import map_locked
from pyreplog.log.opening import as_path
from pyreplog.log.reader import LogReader

Progress = Callable[[int, int], object]
"""Called with the total (bytes copied, entries copied)."""

BLANK_BYTES = 32  # size of the blank at the end of a full segment; the bytes behind it are not copied
_STEP_BYTES = 1 << 20


def backup(
    path: Path | str, target: Path | str, *, progress: Progress | None = None, files: Files | None = None
) -> Manifest:
    """Copy a log, which may be open for appending, into another directory.

    The copy is consistent and reaches from the start of the log to the end that readers see when the call begins.
    Every record is verified. It is durable when the call returns; a directory without a manifest is not a backup.
    Segments that retention removes before they are copied are left out. Any process may take a backup.

    Args:
        path: directory of the log.
        target: directory of the backup; it must be empty or not exist.
        progress: called with the bytes and the entries copied so far.
        files: access to the disk, which tests replace; None: the files of the operating system.

    Returns:
        The manifest of the backup.

    Raises:
        NotALogError: `path` holds no log.
        InvalidArgumentError: `target` is not empty, or lies in the log.
        CorruptionError: a record is damaged.
        TruncatedError: the log was truncated meanwhile; take the backup again.
        DiskFullError: there is no room for the copy.

    See docs/cli.md.
    """
    source, target = as_path(path), as_path(target)
    files = files if files is not None else RealFiles()
    with LogReader(source) as log:
        epoch, _ = survey.generation(source)
        _make_target(source, target, files)
        copy = _Copy(source, target, files, progress)
        try:
            copy.run(log.start_position, log.end_position)
            _check_not_truncated(source, epoch)
            return copy.finish(epoch)
        except BaseException as error:
            copy.abandon()
            if isinstance(error, CorruptionError):
                _check_not_truncated(source, epoch)  # a truncation during the copy looks like corruption
            raise


def _check_not_truncated(source: Path, epoch: int) -> None:
    if survey.generation(source) != (epoch, False):
        raise TruncatedError(f"{source} was cut while it was copied; begin again")


def _make_target(source: Path, target: Path, files: Files) -> None:
    if target.resolve().is_relative_to(source.resolve()):
        raise InvalidArgumentError(f"target: expected a directory outside the log {source}, found {target}")
    check_target(target)
    files.make_directory(target)


def check_target(target: Path) -> None:
    """Check that `target` does not exist, or is an empty directory. Raises InvalidArgumentError otherwise."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidArgumentError(
            f"target: expected a new or empty directory, found {target}, which holds files or is a file"
        )


class _Copy:
    """The pieces of one backup, the oldest first."""

    def __init__(self, source: Path, target: Path, files: Files, progress: Progress | None) -> None:
        self._source, self._target, self._files, self._progress = source, target, files, progress
        self._pieces: list[Piece] = []
        self._uuid, self._size = b"", 0

    def run(self, start: int, end: int) -> None:
        """Copy the records from position `start` to before `end`."""
        for base in names.segment_bases(self._source):
            if not start <= base < end:
                continue
            try:
                segment = map_locked(self._source, base)
            except TrimmedError:
                self.abandon()  # retention has removed this and all earlier segments: the copy begins behind it
                continue
            self._check_place(segment)
            self._pieces.append(self._copy(segment, min(end - base, segment.size)))
            if self._progress is not None:
                self._progress(sum(piece.bytes for piece in self._pieces), sum(piece.entries for piece in self._pieces))
        if not self._pieces:
            raise TruncatedError(f"{self._source}: all of it was removed while it was copied; begin again")

    def _check_place(self, segment: Segment) -> None:
        """Check that a segment continues the one that was copied before. Raises CorruptionError otherwise."""
        if not self._pieces:
            self._uuid, self._size = segment.uuid, segment.size
            return
        last = self._pieces[-1]
        base, first = last.base + self._size, last.first_entry + last.entries
        actual = (segment.uuid, segment.base, segment.first_entry)
        if actual != (self._uuid, base, first if segment.first_entry >= 0 else segment.first_entry) or not last.sealed:
            expected = f"the segment at {base} of log {self._uuid.hex()} with first entry {first}"
            raise CorruptionError(segment.path, segment.base, expected, f"{actual[1]}, {actual[0].hex()}, {actual[2]}")

    def _copy(self, segment: Segment, stop: int) -> Piece:
        """Verify the records up to offset `stop` and copy them, with the blank behind them if they reach that far."""
        index = SparseIndex(segment.size)
        offset, status = segment.verify(index, HEADER_BYTES, max(stop, HEADER_BYTES))
        sealed = status == recovery.BLANK
        if status != 0 and not sealed:
            raise segment.fault(offset, status)
        piece = Piece(
            base=segment.base,
            first_entry=segment.first_entry,
            epoch=segment.epoch,
            stop=offset,
            sealed=sealed,
            entries=index.entries,
            bytes=offset + BLANK_BYTES if sealed else offset,
            crc32c=0,
        )
        return replace(piece, crc32c=self._write(segment, self._target / piece.name, piece.bytes))

    def _write(self, segment: Segment, path: Path, length: int) -> int:
        """Copy the first `length` bytes of a segment into a file, durably; return their CRC-32C."""
        fd, crc = self._files.create(path, length, zeroed=False), 0
        try:
            for at in range(0, length, _STEP_BYTES):
                data = segment.view(at, min(_STEP_BYTES, length - at))
                crc = crc32c(data, crc)
                self._files.write(fd, data, at)
            self._files.sync(fd)
        finally:
            os.close(fd)
        return crc

    def abandon(self) -> None:
        """Remove the copied pieces."""
        for path in self._target.glob("*.segment"):
            self._files.remove(path)
        self._pieces.clear()

    def finish(self, epoch: int) -> Manifest:
        """Write the manifest, which completes the backup; return it."""
        first, last = self._pieces[0], self._pieces[-1]
        manifest = Manifest(
            uuid=self._uuid.hex(),
            segment_bytes=self._size,
            epoch=epoch,
            start=max(first.first_entry, 0),
            end=last.first_entry + last.entries if last.first_entry >= 0 else 0,
            start_position=first.base,
            end_position=last.base + last.stop,
            entries=sum(piece.entries for piece in self._pieces),
            created=time.time_ns() // 1000,
            pieces=tuple(self._pieces),
        )
        self._files.sync_directory(self._target)
        manifest.write(self._target, self._files)
        return manifest
