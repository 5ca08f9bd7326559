"""How far the log is proven to be on disk: two checksummed slots, written in turn (FORMAT.md, "checkpoint").

A slot that a crash tore leaves the other one. A log without an intact slot is verified from its first segment.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from pyreplog._native.checksum import crc32c
from pyreplog.log import names
from pyreplog.log.files import Files

MAGIC = b"RPCHKP01"
SLOT_BYTES = 4096
_SLOT = struct.Struct("<8sIHH16sqqqIIq")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """position: all before it was synced. entry: number of the first entry at or after it. clean: nothing follows."""

    uuid: bytes
    segment_bytes: int
    position: int
    entry: int
    epoch: int
    clean: bool
    sequence: int = 0

    def encode(self) -> bytes:
        def pack(crc: int) -> bytes:
            return _SLOT.pack(
                MAGIC, crc, 1, 1, self.uuid, self.segment_bytes, self.position, self.entry, self.epoch, self.clean,
                self.sequence,
            )  # fmt: skip

        return pack(crc32c(pack(0)[12:]))

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """The checkpoint in a slot, or None when the slot is torn, empty or of a later version."""
        if len(data) < _SLOT.size:
            return None
        magic, crc, _, min_reader, uuid, size, position, entry, epoch, clean, sequence = _SLOT.unpack_from(data)
        if magic != MAGIC or crc != crc32c(data[12 : _SLOT.size]) or min_reader > 1:
            return None
        return cls(
            uuid=uuid, segment_bytes=size, position=position, entry=entry, epoch=epoch, clean=bool(clean),
            sequence=sequence,
        )  # fmt: skip


def load(directory: Path) -> Checkpoint | None:
    """The newest intact checkpoint of a log directory, or None."""
    try:
        data = (directory / names.CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return None
    slots = [Checkpoint.decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)


class CheckpointFile:
    """The writer's handle. Not for several threads at once."""

    def __init__(self, directory: Path, files: Files, last: Checkpoint) -> None:
        self._files, self.last = files, last
        path = directory / names.CHECKPOINT
        if not path.exists() or path.stat().st_size != 2 * SLOT_BYTES:
            files.replace_small(path, last.encode().ljust(2 * SLOT_BYTES, b"\0"))
        self._fd = files.open(path, writable=True)

    def write(self, *, position: int, entry: int, clean: bool, epoch: int | None = None) -> None:
        """Put down a new checkpoint, durably. Moves back only for a truncation, which comes with a new epoch."""
        made = replace(
            self.last, position=position, entry=entry, clean=clean, sequence=self.last.sequence + 1,
            epoch=self.last.epoch if epoch is None else epoch,
        )  # fmt: skip
        if (position, clean) == (self.last.position, self.last.clean) and made.epoch == self.last.epoch:
            return
        self._files.write(self._fd, made.encode(), (made.sequence & 1) * SLOT_BYTES)
        self._files.sync(self._fd)
        self.last = made

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
