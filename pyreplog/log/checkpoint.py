"""How far the log is proven to be on disk: two checksummed slots, written in turn (FORMAT.md, "checkpoint").

A slot that a crash tore leaves the other one. A log without an intact slot is verified from its first segment.
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
    """How far a log is proven.

    start: position of the first segment; what lies before was removed. position: all from start to here was synced.
    entry: number of the first entry at or after position. epoch: of segments to come. clean: nothing follows position.
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
        """The checkpoint in a slot, or None when the slot is torn or empty. FormatVersionError."""
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
    """The newest intact checkpoint of a log directory, or None. FormatVersionError."""
    try:
        with open_reading(directory / names.CHECKPOINT) as file:
            data = file.read(2 * SLOT_BYTES)
    except FileNotFoundError:
        return None
    slots = [Checkpoint.decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)


class CheckpointFile:
    """The writer's handle. Not for several threads at once."""

    def __init__(self, directory: Path, files: Files, last: Checkpoint) -> None:
        self._files, self.last = files, last
        self._path = directory / names.CHECKPOINT
        if not self._path.exists() or self._path.stat().st_size != 2 * SLOT_BYTES:
            files.replace_small(self._path, last.encode().ljust(2 * SLOT_BYTES, b"\0"))
        self._fd = files.open(self._path, writable=True)

    def advance(self, *, position: int, entry: int, clean: bool) -> None:
        """All before `position` is synced. Changes nothing when that was known."""
        if position > self.last.position or (position == self.last.position and clean != self.last.clean):
            self._write(replace(self.last, position=position, entry=entry, clean=clean))

    def trim(self, *, start: int, entry: int) -> None:
        """The log begins at `start`, with entry number `entry`: what lies before is about to be removed."""
        if start > self.last.position:  # nothing is left of what was proven
            self._write(replace(self.last, start=start, position=start, entry=entry, clean=False))
        else:
            self._write(replace(self.last, start=start))

    def restart(self, *, position: int, entry: int, epoch: int) -> None:
        """The log was cut to `position`, all before it synced; segments to come are of another epoch."""
        self._write(replace(self.last, position=position, entry=entry, epoch=epoch, clean=False))

    def begin_at(self, *, start: int, entry: int) -> None:
        """The log, which has no segments, begins and ends at `start`."""
        self._write(replace(self.last, start=start, position=start, entry=entry, clean=False))

    def open(self) -> None:
        """Have a descriptor, after `close`. OSError; a write does it as well."""
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
