"""The file with the position up to which a raw log is known to be synced (FORMAT.md, "Raw log")."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, FormatVersionError
from pyreplog.log.files import Files
from pyreplog.regular_files import read_regular

NAME = "pyreplog.checkpoint"
_FILE_MAX = 4096
MAGIC = b"RPRAWCP1"
VERSION = 1
_LAYOUT = struct.Struct("<8sIHHqq")


class SyncedPosition(NamedTuple):
    """file_bytes: size of each segment file. position: up to which the log is synced; a record begins or the log ends
    there."""

    file_bytes: int
    position: int

    def encode(self) -> bytes:
        packed = _LAYOUT.pack(MAGIC, 0, VERSION, VERSION, *self)
        return _LAYOUT.pack(MAGIC, crc32c(packed[12:]), VERSION, VERSION, *self)


def load(directory: Path) -> SyncedPosition | None:
    """Return the stored position; None: there is none. Raises CorruptionError and FormatVersionError."""
    path = directory / NAME
    try:
        data = read_regular(path, _FILE_MAX)
    except FileNotFoundError:
        return None
    if len(data) != _LAYOUT.size:
        raise CorruptionError(path, 0, f"{_LAYOUT.size} bytes", f"{len(data)}")
    magic, crc, _, min_reader, file_bytes, position = _LAYOUT.unpack(data)
    if magic != MAGIC or crc != crc32c(data[12:]):
        raise CorruptionError(path, 0, "a checkpoint with its checksum", "other bytes")
    if min_reader > VERSION:
        raise FormatVersionError(path, min_reader, VERSION)
    return SyncedPosition(file_bytes, position)


def store(directory: Path, proven: SyncedPosition, files: Files) -> None:
    """Store the position durably and atomically. Raises DiskFullError and OSError."""
    files.replace_small(directory / NAME, proven.encode())
