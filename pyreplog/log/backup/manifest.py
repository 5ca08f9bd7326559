"""Manifest: the description of a backup, a JSON file with a CRC-32C, which is written last."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, SIZE_MAX, SIZE_MIN
from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import CorruptionError, NotALogError
from pyreplog.log.files import Files
from pyreplog.log.opening import as_path
from pyreplog.regular_files import open_reading

NAME = "manifest.json"
FORMAT = "pyreplog backup"
VERSION = 1

_SIZE_MAX = 1 << 30  # bytes of a manifest


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One segment of a backup: a file with the header block and the records.

    Attributes:
        base: position of the segment, bytes from the beginning of the log.
        first_entry: number of its first entry.
        epoch: epoch of the segment.
        stop: offset behind the last record, bytes from the beginning of the file.
        sealed: whether a blank record follows, which ends the segment.
        entries: number of entries.
        bytes: size of the file.
        crc32c: CRC-32C of the file.
    """

    base: int
    first_entry: int
    epoch: int
    stop: int
    sealed: bool
    entries: int
    bytes: int
    crc32c: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.base:020d}.segment"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a backup.

    Attributes:
        uuid: identity of the log that was copied, hexadecimal.
        segment_bytes: size of its segment files, bytes.
        epoch: epoch of the segments that a restored log begins.
        start: number of the first entry.
        end: number of the last entry, plus one.
        start_position: position of the first segment, bytes from the beginning of the log.
        end_position: position behind the last record, bytes from the beginning of the log.
        entries: number of entries.
        created: time of the backup, microseconds since 1970-01-01 UTC.
        pieces: its segments, in order.
    """

    uuid: str
    segment_bytes: int
    epoch: int
    start: int
    end: int
    start_position: int
    end_position: int
    entries: int
    created: int
    pieces: tuple[Piece, ...]

    def write(self, directory: Path, files: Files) -> None:
        """Write the manifest durably, which makes the directory a backup."""
        files.replace_small(directory / NAME, dump_checksummed(FORMAT, VERSION, asdict(self)))


def load(directory: Path | str) -> Manifest:
    """Load the manifest of a backup.

    Raises NotALogError if there is none, FormatVersionError if a newer version wrote it, CorruptionError if it is
    damaged.
    """
    path = as_path(directory) / NAME
    if not path.is_file():
        raise NotALogError(f"{directory} holds no backup, or one that was not finished: {NAME} is missing")
    try:
        content = load_checksummed(_read(path), FORMAT, VERSION, path)
        manifest = Manifest(**{**content, "pieces": tuple(Piece(**piece) for piece in content["pieces"])})
        _check(path, manifest)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(path, 0, "an intact manifest of a backup", str(error)) from error
    return manifest


def _read(path: Path) -> bytes:
    with open_reading(path) as file:
        data = file.read(_SIZE_MAX + 1)
        if len(data) > _SIZE_MAX or os.fstat(file.fileno()).st_size != len(data):
            raise ValueError(f"more than {_SIZE_MAX} bytes")
    return data


def _check(path: Path, manifest: Manifest) -> None:
    """Check that sizes and positions are valid, and that the pieces are adjacent. Raises CorruptionError otherwise."""
    size = manifest.segment_bytes
    right = SIZE_MIN <= size <= SIZE_MAX and manifest.pieces and manifest.pieces[0].base == manifest.start_position
    right = right and all(
        piece.base == manifest.start_position + i * size
        and piece.base % size == 0
        and HEADER_BYTES <= piece.stop <= piece.bytes <= size
        and (piece.sealed or i == len(manifest.pieces) - 1)
        for i, piece in enumerate(manifest.pieces)
    )
    if not right or manifest.end_position != manifest.pieces[-1].base + manifest.pieces[-1].stop:
        raise CorruptionError(
            path, 0, "segments of one size, each behind the one before", "a gap, an overlap or another size"
        )
