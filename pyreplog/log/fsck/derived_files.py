"""Checks of derived files, which are index files and the checkpoint, against the segments that they are built from."""

from __future__ import annotations

from pathlib import Path

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.intake import index_entries
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import CorruptionError, FormatVersionError
from pyreplog.log import names
from pyreplog.log.checkpoint import SLOT_BYTES, Checkpoint
from pyreplog.regular_files import open_reading, read_regular


def index_fault(path: Path, segment: Segment, built: SparseIndex | None) -> CorruptionError | None:
    """Return the fault of the index file of a sealed segment; None if it is correct.

    built: index that was built from the segment; None: the segment is damaged, and the file is checked by itself.

    Raises FileNotFoundError if there is no index file.
    """
    data = read_regular(path, 2 * segment.size)
    try:
        SparseIndex.load(
            str(path), segment.size, segment.uuid, segment.base, segment.first_entry, segment.stamp
        )  # fmt: skip
    except CorruptionError as error:
        return error
    except FormatVersionError as error:
        return CorruptionError(path, 14, f"format version {error.supported} or lower", str(error.found))
    if built is None:
        return None
    low, high = segment.head_at(HEADER_BYTES)[3], segment.head_at(built.end)[3]
    return _difference(
        path, built.to_bytes(segment.uuid, segment.base, segment.first_entry, segment.stamp, low, high), data
    )


def ledgers_fault(path: Path, segment: Segment, built: SparseIndex | None) -> CorruptionError | None:
    """Return the fault of the ledger index file of a sealed segment.

    Returns None if the file is correct or does not exist, or if the segment is damaged (`built` is None).
    """
    try:
        stored = read_regular(path, 2 * segment.size)
    except FileNotFoundError:
        return None
    if built is None:
        return None
    index = LedgerIndex()
    index_entries(segment, index, HEADER_BYTES, built.end)
    data = index.to_bytes(uuid=segment.uuid, base=segment.base, stamp=segment.stamp, end=built.end)
    return _difference(path, data, stored)


def _difference(path: Path, built: bytes, stored: bytes) -> CorruptionError | None:
    """Return an error for the first byte at which an index file differs from the one built from its segment."""
    if built == stored:
        return None
    at = next((i for i, (a, b) in enumerate(zip(built, stored, strict=False)) if a != b), min(len(built), len(stored)))
    return CorruptionError(
        path, at, f"the bytes that follow from the segment, {built[at : at + 8].hex()}", stored[at : at + 8].hex()
    )


def checkpoint_fault(
    directory: Path, checkpoint: Checkpoint, segment: Segment, index: SparseIndex, end: int
) -> CorruptionError | None:
    """Return the fault of a checkpoint in an intact segment; None if it is correct, or not in this segment.

    index: index of all records of the segment. end: offset up to which the segment is in use.
    """
    path, offset = directory / names.CHECKPOINT, checkpoint.position - segment.base
    if not HEADER_BYTES <= offset <= end:
        return None
    entry = segment.first_entry + index.entries
    if offset < index.end:
        at = index.before(offset)
        while at < offset:
            at += (segment.head_at(at)[4] + 7) & ~7
        if at != offset:
            return CorruptionError(path, 0, "a position where a record begins", str(checkpoint.position))
        entry = segment.first_entry_at(at)
    if segment.first_entry < 0 or checkpoint.entry == entry:
        return None
    return CorruptionError(path, 0, f"entry {entry} at position {checkpoint.position}", f"entry {checkpoint.entry}")


def torn_slots(directory: Path) -> list[int]:
    """Return the slots of the checkpoint file, 0 or 1, that are neither empty nor intact. A crash may leave one."""
    path = directory / names.CHECKPOINT
    if not path.exists():
        return []
    with open_reading(path) as file:
        data = file.read(2 * SLOT_BYTES)
    slots = [data[at : at + SLOT_BYTES] for at in (0, SLOT_BYTES)]
    return [i for i, slot in enumerate(slots) if any(slot) and Checkpoint.decode(slot) is None]
