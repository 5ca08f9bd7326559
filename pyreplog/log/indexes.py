"""Index files of sealed segments: written when a segment is sealed, mapped at the first lookup, rebuilt if damaged.

Only a log of many ledgers has ledger indexes in addition to the sparse indexes.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.intake import index_entries
from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog._native.log.disk import Steps
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import COUNTED
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import CorruptionError, ReplogError
from pyreplog.log import names
from pyreplog.log.files import Files
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.recovery import BLANK, ENTRY

logger = logging.getLogger(__name__)

_BLANK, _BLANK_BYTES = 5, 32  # kind and size of the record that ends a segment


def load(directory: Path, segment: Segment) -> SparseIndex | None:
    """Map the index file of a sealed segment; return None if it is missing, damaged or of another segment."""
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
    if segment.version >= COUNTED and not _ends_at(segment, segment.index.end):
        segment.index = None  # compaction has replaced the file: the index is that of the new one, the mapping is not
    return segment.index


def _ends_at(segment: Segment, offset: int) -> bool:
    fits = HEADER_BYTES <= offset <= segment.size - _BLANK_BYTES
    return fits and segment.head_at(offset)[0] == _BLANK and segment.stamp_at(offset) == segment.stamp


def load_or_build(directory: Path, segment: Segment) -> None:
    """Load the index of a sealed segment, or build it. Raises CorruptionError if the segment is damaged."""
    index = load(directory, segment)
    if index is None:
        build(segment)
    else:
        segment.advance(index.end, True)


def build(segment: Segment) -> None:
    """Build the index of a sealed segment from its records. Raises CorruptionError if they are damaged."""
    index = SparseIndex(segment.size)
    offset, status = segment.verify(index, HEADER_BYTES, segment.size)
    if status != BLANK:
        raise segment.fault(offset, status)
    segment.index = index
    segment.advance(index.end, True)


def find_end(directory: Path, segment: Segment) -> None:
    """Find the end of the records of a sealed segment that may be damaged: by its index, or else by its blank.

    Raises CorruptionError if neither is found.
    """
    try:
        load_or_build(directory, segment)
    except CorruptionError:
        end = segment.find_blank(HEADER_BYTES)
        if end < 0:
            raise
        segment.advance(end, True)


def remake(directory: Path, files: Files, segment: Segment) -> None:
    """Rebuild the index files of a sealed segment from its records. Raises CorruptionError if these are damaged."""
    build(segment)
    index = LedgerIndex()
    index_entries(segment, index, HEADER_BYTES, segment.end)
    segment.ledgers = index
    assert segment.index is not None
    write(directory, files, segment, segment.index)


def write(directory: Path, files: Files, segment: Segment, index: SparseIndex) -> None:
    """Write the index of a sealed segment to its file, and drop the one in memory."""
    low, high = segment.head_at(HEADER_BYTES)[3], segment.head_at(segment.end)[3]
    data = index.to_bytes(segment.uuid, segment.base, segment.first_entry, segment.stamp, low, high)
    path = names.index_path(directory, segment.base)
    temporary = path.with_name(path.name + ".new")
    steps = Steps()
    steps.remove(temporary)
    steps.write_new(temporary, data)
    steps.rename(temporary, path)
    files.run(steps)
    segment.index = None
    if isinstance(segment.ledgers, LedgerIndex):
        _write_ledgers(directory, files, segment, segment.ledgers)


def cover(directory: Path, segment: Segment, entry: int) -> None:
    """Make sure that the index of a sealed segment covers an entry.

    Raises CorruptionError if the segment does not hold the entry.
    """
    if segment.index is None:
        load_or_build(directory, segment)
    elif entry - segment.first_entry >= segment.index.entries:  # the index file is intact, but covers too few entries
        build(segment)
        if entry - segment.first_entry >= segment.index.entries:
            raise segment.fault(segment.index.end, ENTRY)


# ---- ledger indexes, of a log of many ledgers ---------------------------------------------------------------


def _write_ledgers(directory: Path, files: Files, segment: Segment, index: LedgerIndex) -> None:
    """Write the ledger index of a sealed segment to its file, and drop the one in memory."""
    path = names.ledgers_path(directory, segment.base)
    temporary = path.with_name(path.name + ".new")
    data = index.to_bytes(uuid=segment.uuid, base=segment.base, stamp=segment.stamp, end=segment.end)
    steps = Steps()
    steps.remove(temporary)
    steps.write_new(temporary, data)
    steps.rename(temporary, path)
    files.run(steps)
    segment.ledgers = None


def ledgers_of(directory: Path, files: Files, segment: Segment) -> LedgerIndex | SealedIndex:
    """Return the ledger index of a sealed segment: the one in memory, that of its file, or one built from its records.

    Raises CorruptionError if the segment is damaged.
    """
    if segment.ledgers is None:
        if segment.index is None and is_hole_punched(segment):
            build(segment)  # cheap; an index file that was restored from a copy may still list the removed records
        elif segment.index is None:
            find_end(directory, segment)
        try:
            segment.ledgers = _open_ledgers(directory, segment)
        except (OSError, ReplogError) as error:
            return remake_ledgers(directory, files, segment, error)
    return segment.ledgers


def remake_ledgers(directory: Path, files: Files, segment: Segment, why: Exception) -> LedgerIndex | SealedIndex:
    """Rebuild the ledger index of a sealed segment from its records, and write it to its file if possible.

    why: the error of the old index, for the log message. Raises CorruptionError if the segment is damaged.
    """
    logger.info("%s: the ledger index of the segment at %d is made again: %s", directory, segment.base, why)
    build(segment)
    index = LedgerIndex()
    index_entries(segment, index, HEADER_BYTES, segment.end)
    segment.ledgers = index
    try:
        _write_ledgers(directory, files, segment, index)
        segment.ledgers = _open_ledgers(directory, segment)
    except OSError as error:
        logger.warning("%s: no ledger index file for the segment at %d: %s", directory, segment.base, error)
        segment.ledgers = index
    return segment.ledgers


def _open_ledgers(directory: Path, segment: Segment) -> SealedIndex:
    path = names.ledgers_path(directory, segment.base)
    return SealedIndex.open(path, uuid=segment.uuid, base=segment.base, stamp=segment.stamp, end=segment.end)


def remove_stray_ledgers(directory: Path, files: Files, bases: set[int]) -> None:
    """Remove the ledger indexes of segments that are not in `bases`, which a crash left between the two removals."""
    for base in names.ledgers_bases(directory):
        if base not in bases:
            files.remove(names.ledgers_path(directory, base))
