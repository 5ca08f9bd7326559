"""Reading the header of a segment file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.log.segment_header import SegmentHeader, compute_stamp, decode_header
from pyreplog.regular_files import open_reading


def read_header(path: Path) -> SegmentHeader:
    """Return the header of a segment file.

    Raises FileNotFoundError if the file does not exist, CorruptionError if it is damaged, FormatVersionError if a newer
    version wrote it.
    """
    with open_reading(path) as file:
        return decode_header(str(path), file.read(HEADER_BYTES))


def find_epoch(uuid: bytes, base: int, size: int, stamp: int, epochs: Iterable[int]) -> int | None:
    """Return the epoch with which the segment at `base` has the stamp `stamp`; None if none of `epochs` does."""
    return next((epoch for epoch in epochs if compute_stamp(uuid, base, size, epoch) == stamp), None)
