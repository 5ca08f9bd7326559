"""The checkpoint: the position up to which a log is known to be on disk, in two checksummed slots (FORMAT.md).

The slots are written in turn: if a crash tears one of them, the other is intact. Recovery verifies a log without an
intact slot from its first segment.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import FormatVersionError
from pyreplog.log import names
from pyreplog.log.files import Files
from pyreplog.regular_files import open_reading

MAGIC = b"RPCHKP01"
VERSION = 1
SLOT_BYTES = 4096
_SLOT = struct.Struct("<8sIHH16sqqqqIIq")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint.

    uuid: identity of the log. segment_bytes: size of its segments. start: position of the first segment; earlier ones
    were removed. position: the log was synced up to here. entry: number of the first entry at or after `position`.
    epoch: epoch of new segments. clean: no record follows `position`. sequence: number of the write; the slot with the
    higher one counts.
    """

    uuid: bytes
    segment_bytes: int
    start: int
    position: int
    entry: int
    epoch: int
    clean: bool
    sequence: int = 0

    def encode(self) -> bytes:
        body = (self.uuid, self.segment_bytes, self.start, self.position, self.entry, self.epoch, self.clean)
        packed = _SLOT.pack(MAGIC, 0, VERSION, VERSION, *body, self.sequence)
        return _SLOT.pack(MAGIC, crc32c(packed[12:]), VERSION, VERSION, *body, self.sequence)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """Decode a slot; return None if it is torn or empty. Raises FormatVersionError if a newer version wrote it."""
        if len(data) < _SLOT.size:
            return None
        magic, crc, _, min_reader, uuid, size, start, position, entry, epoch, clean, sequence = _SLOT.unpack_from(data)
        if magic != MAGIC or crc != crc32c(data[12 : _SLOT.size]):
            return None
        if min_reader > VERSION:
            raise FormatVersionError(names.CHECKPOINT, min_reader, VERSION)
        return cls(
            uuid=uuid,
            segment_bytes=size,
            start=start,
            position=position,
            entry=entry,
            epoch=epoch,
            clean=bool(clean),
            sequence=sequence,
        )


def load(directory: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint of a log directory, or None.

    Raises FormatVersionError if a newer version wrote it.
    """
    try:
        with open_reading(directory / names.CHECKPOINT) as file:
            data = file.read(2 * SLOT_BYTES)
    except FileNotFoundError:
        return None
    slots = [Checkpoint.decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)


class CheckpointFile:
    """The writer's handle of a checkpoint. One thread at a time may use it; writes are durable."""

    def __init__(self, directory: Path, files: Files, last: Checkpoint) -> None:
        self._files, self.last = files, last
        self._path = directory / names.CHECKPOINT
        if not self._path.exists() or self._path.stat().st_size != 2 * SLOT_BYTES:
            files.replace_small(self._path, last.encode().ljust(2 * SLOT_BYTES, b"\0"))
        self._fd = files.open(self._path, writable=True)

    def advance(self, *, position: int, entry: int, clean: bool) -> None:
        """Record that the log is synced up to `position`. Changes nothing if the checkpoint is there already.

        entry: number of the first entry at or after `position`. clean: no record follows.
        """
        if position > self.last.position or (position == self.last.position and clean != self.last.clean):
            self._write(replace(self.last, position=position, entry=entry, clean=clean))

    def trim(self, *, start: int, entry: int) -> None:
        """Move the start of the log to `start`, with entry number `entry`, before earlier segments are removed."""
        if start > self.last.position:  # all synced records are removed
            self._write(replace(self.last, start=start, position=start, entry=entry, clean=False))
        else:
            self._write(replace(self.last, start=start))

    def restart(self, *, position: int, entry: int, epoch: int) -> None:
        """Record that the log was truncated to `position`, up to which it is synced. epoch: epoch of new segments."""
        self._write(replace(self.last, position=position, entry=entry, epoch=epoch, clean=False))

    def begin_at(self, *, start: int, entry: int) -> None:
        """Record that a log without segments begins and ends at `start`, with entry number `entry`."""
        self._write(replace(self.last, start=start, position=start, entry=entry, clean=False))

    def open(self) -> None:
        """Open the file again after `close`; a write does so as well. Raises OSError if the system refuses."""
        if self._fd < 0:
            self._fd = self._files.open(self._path, writable=True)

    def _write(self, checkpoint: Checkpoint) -> None:
        self.open()
        checkpoint = replace(checkpoint, sequence=self.last.sequence + 1)
        self._files.write_sync(self._fd, checkpoint.encode(), (checkpoint.sequence & 1) * SLOT_BYTES)
        self.last = checkpoint

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
