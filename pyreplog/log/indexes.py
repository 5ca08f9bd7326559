"""Index files of sealed segments: written when a segment is sealed, mapped when asked for, made again when wrong.

Only a log of many ledgers has ledger indexes beside the sparse ones.
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
    if segment.version >= COUNTED and not _ends_at(segment, segment.index.end):
        segment.index = None  # compaction replaced the file that is mapped here, and the index is of the new one
    return segment.index


def _ends_at(segment: Segment, offset: int) -> bool:
    fits = HEADER_BYTES <= offset <= segment.size - _BLANK_BYTES
    return fits and segment.head_at(offset)[0] == _BLANK and segment.stamp_at(offset) == segment.stamp


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


def find_end(directory: Path, segment: Segment) -> None:
    """Tell a sealed segment, which may be damaged, where its records end: by its index, or else by its blank.

    CorruptionError when neither tells.
    """
    try:
        load_or_build(directory, segment)
    except CorruptionError:
        end = segment.find_blank(HEADER_BYTES)
        if end < 0:
            raise
        segment.advance(end, True)


def remake(directory: Path, files: Files, segment: Segment) -> None:
    """Make the index files of a sealed segment anew from its records. CorruptionError when these are damaged."""
    build(segment)
    index = LedgerIndex()
    index_entries(segment, index, HEADER_BYTES, segment.end)
    segment.ledgers = index
    assert segment.index is not None
    write(directory, files, segment, segment.index)


def write(directory: Path, files: Files, segment: Segment, index: SparseIndex) -> None:
    """Put the index of a sealed segment into its file, and let go of the one in memory."""
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
    """Give a sealed segment an index that holds an entry. CorruptionError when its records do not."""
    if segment.index is None:
        load_or_build(directory, segment)
    elif entry - segment.first_entry >= segment.index.entries:  # intact, and yet it says too little
        build(segment)
        if entry - segment.first_entry >= segment.index.entries:
            raise segment.fault(segment.index.end, ENTRY)


# ---- of a log of many ledgers -------------------------------------------------------------------------------


def _write_ledgers(directory: Path, files: Files, segment: Segment, index: LedgerIndex) -> None:
    """Put the ledger index of a sealed segment into its file, and let go of the one in memory."""
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
    """The ledger index of a sealed segment: what is mapped, or in its file, or else made from its records.

    CorruptionError when the segment itself is damaged.
    """
    if segment.ledgers is None:
        if segment.index is None and is_hole_punched(segment):
            build(segment)  # cheap; files from before it was hollow, restored from a copy, say that it has records
        elif segment.index is None:
            find_end(directory, segment)
        try:
            segment.ledgers = _open_ledgers(directory, segment)
        except (OSError, ReplogError) as error:
            return remake_ledgers(directory, files, segment, error)
    return segment.ledgers


def remake_ledgers(directory: Path, files: Files, segment: Segment, why: Exception) -> LedgerIndex | SealedIndex:
    """The ledger index of a sealed segment made anew from its records, in its file if that can be written."""
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
    """Remove the ledger indexes of segments that are not among `bases`: a crash came between the two removals."""
    for base in names.ledgers_bases(directory):
        if base not in bases:
            files.remove(names.ledgers_path(directory, base))
