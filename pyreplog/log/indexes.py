"""Sparse indexes of sealed segments: written when a segment is sealed, mapped when asked for, made again when wrong."""

from __future__ import annotations

import logging
from pathlib import Path

from pyreplog._native.segment import HEADER_BYTES, Segment
from pyreplog._native.sparse import SparseIndex
from pyreplog.errors import ReplogError
from pyreplog.log import names
from pyreplog.log.files import Files
from pyreplog.log.recovery import BLANK

logger = logging.getLogger(__name__)


def load(directory: Path, segment: Segment) -> SparseIndex | None:
    """Map the index file of a sealed segment; None when it is missing, damaged or of another segment."""
    path = names.index_path(directory, segment.base)
    try:
        segment.index, _, _ = SparseIndex.load(
            str(path), segment.size, segment.uuid, segment.base, segment.first_entry, segment.stamp
        )
    except FileNotFoundError:
        return None
    except (OSError, ReplogError) as error:
        logger.info("%s: the index of the segment at %d is of no use: %s", directory, segment.base, error)
        return None
    return segment.index


def load_or_build(directory: Path, segment: Segment) -> None:
    """Give a sealed segment its index. CorruptionError when the segment itself is damaged."""
    index = load(directory, segment)
    if index is None:
        build(segment)
    else:
        segment.advance(index.end, True)


def build(segment: Segment) -> None:
    """Give a sealed segment its index, made from its records. CorruptionError when they are damaged."""
    index = SparseIndex(segment.size)
    offset, status = segment.verify(index, HEADER_BYTES, segment.size)
    if status != BLANK:
        raise segment.fault(offset, status)
    segment.index = index
    segment.advance(index.end, True)


def write(directory: Path, files: Files, segment: Segment, index: SparseIndex) -> None:
    """Put the index of a sealed segment into its file, and let go of the one in memory."""
    low, high = segment.head_at(HEADER_BYTES)[3], segment.head_at(segment.end)[3]
    data = index.to_bytes(segment.uuid, segment.base, segment.first_entry, segment.stamp, low, high)
    path = names.index_path(directory, segment.base)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.write_bytes(data)
    files.rename(temporary, path)
    segment.index = None
