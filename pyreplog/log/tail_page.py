"""Check whether the tail page of a log is valid, against the files of the log, its checkpoint and the writer's lock.

The page has no checksum, since every append changes it. While no writer has the log open, readers ignore a page that
is not valid, and find the end as recovery does. While a writer has the log open, only the page tells where it ends, so
that a page which is not valid is corruption.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.log.segment_header import COUNTED
from pyreplog._native.log.tail_page import PAGE, Tail
from pyreplog.errors import CorruptionError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names
from pyreplog.log.checkpoint import Checkpoint
from pyreplog.log.files import boot_id
from pyreplog.log.headers import read_header
from pyreplog.log.lock import writer_of
from pyreplog.regular_files import open_changing, open_reading

_RECORD_MIN = 32  # bytes of the smallest record
_ENTRY_MAX = (1 << 63) - 1
_DELTA_MAX = (1 << 32) - 1  # entry numbers of a segment whose records may take several
_LOOKS, _PAUSE_S = 20, 0.005  # how often a page that is not valid is read again, since its writer may be changing it
_START, _END, _END_ENTRY, _SYNCED_END, _SYNCED_ENTRY, _VISIBLE, _VISIBLE_ENTRY = range(
    48, 104, 8
)  # FORMAT.md, "Tail page"


def map_page(directory: Path, *, writable: bool = False) -> Tail | None:
    """Map the tail page of a log; return None if it cannot be mapped, for example if it is missing or too short."""
    try:
        with (open_changing if writable else open_reading)(directory / names.TAIL) as file:
            return Tail(file, writable=writable) if os.fstat(file.fileno()).st_size >= PAGE else None
    except (OSError, ValueError, CorruptionError):
        return None


def is_trusted(directory: Path, tail: Tail, checkpoint: Checkpoint | None, boot: bytes | None = None) -> bool:
    """Return whether readers take the end of the log from its tail page.

    They do if a writer of this boot has the log open; if it has closed the log, and the checkpoint agrees with the
    page; or if it was killed, and the log has a commit point, which only the page holds.

    boot: id of this boot; None: read it.

    Raises CorruptionError if the page of an open log is not valid.
    """
    if checkpoint is None or not tail.belongs_to(boot or boot_id(), checkpoint.uuid) or tail.visible <= 0:
        return False
    if tail.open and (writer := writer_of(directory)) is not None:
        return _is_live(directory, tail, checkpoint, writer)
    if tail.synced_end < checkpoint.position:
        return False
    if tail.open:
        return _has_commit_point(directory) and fault(directory, tail, checkpoint) is None
    return _agrees(directory, tail, checkpoint)


def appended(directory: Path, checkpoint: Checkpoint) -> int:
    """Return the position up to which a writer of this boot has appended records, or found them intact.

    The position is the visible end in the tail page; 0 if the page is of another boot or log, or not valid.
    """
    tail = map_page(directory)
    if tail is None or not tail.belongs_to(boot_id(), checkpoint.uuid) or tail.synced_end < checkpoint.position:
        return 0
    return tail.visible if fault(directory, tail, checkpoint) is None else 0


def _is_live(directory: Path, tail: Tail, checkpoint: Checkpoint, writer: int) -> bool:
    wrong = fault(directory, tail, checkpoint)
    for _ in range(_LOOKS):
        if wrong is None:
            return True
        if not tail.open or writer not in (0, tail.pid):
            return False  # the page is that of an earlier writer, which was killed; this one has not written it yet
        time.sleep(_PAUSE_S)
        wrong = fault(directory, tail, checkpoint)
    if wrong is not None:
        raise wrong
    return True


def _agrees(directory: Path, tail: Tail, checkpoint: Checkpoint) -> bool:
    synced, end = (tail.synced_end, tail.synced_entry), (tail.end, tail.end_entry)
    if not checkpoint.clean or synced != (checkpoint.position, checkpoint.entry):
        return False
    shown = (tail.visible, tail.visible_entry)
    if shown != end or end != synced:
        return _has_commit_point(directory) and fault(directory, tail, checkpoint) is None
    return tail.start == checkpoint.start


def _has_commit_point(directory: Path) -> bool:
    return any((directory / name).exists() for name in (names.TERMS, names.REPLICA))


def fault(directory: Path, tail: Tail, checkpoint: Checkpoint) -> CorruptionError | None:
    """Return an error for the first word of a tail page that is not valid; None if all are.

    The words are checked against each other and the segment files. They are read in an order in which a writer that
    appends meanwhile cannot make them look wrong.
    """
    start, shown = tail.start, (tail.visible, tail.visible_entry)
    synced, end = (tail.synced_end, tail.synced_entry), (tail.end, tail.end_entry)
    size, bases = checkpoint.segment_bytes, names.segment_bases(directory)
    limit = max(start + size, bases[-1] + size if bases else 0)
    low, high = _entries(directory, shown[0], size)
    end_low, end_high = _entries(directory, end[0], size)
    wanted = (
        (_START, start >= 0 and start % size == 0, f"a multiple of {size}", start),
        (_END, start <= end[0] <= limit, f"a position from {start} to {limit}, where the segments end", end[0]),
        (_END_ENTRY, end_low <= end[1] <= end_high, f"an entry from {end_low} to {end_high}", end[1]),
        (_VISIBLE, start <= shown[0] <= end[0], f"a position from {start} to {end[0]}, the end", shown[0]),
        (_SYNCED_END, 0 <= synced[0] <= limit, f"a position up to {limit}, where the segments end", synced[0]),
        (_VISIBLE_ENTRY, low <= shown[1] <= min(high, end[1]), f"an entry from {low} to {min(high, end[1])}", shown[1]),
        (_SYNCED_ENTRY, 0 <= synced[1] <= end[1], f"an entry up to {end[1]}", synced[1]),
    )
    for offset, is_right, expected, actual in wanted:
        if not is_right:
            return CorruptionError(
                directory / names.TAIL, offset, f"{expected}, in the page of an open log", f"{actual}; close the "
                "log and open it for writing again, which makes the page anew from the segments",
            )  # fmt: skip
    return None


def _entries(directory: Path, position: int, size: int) -> tuple[int, int]:
    """Return the lowest and the highest number that the first entry behind a position may have.

    Both follow from the header of the segment that the position lies in. size: bytes of a segment.
    """
    base = (position - 1) // size * size
    try:
        header = read_header(names.segment_path(directory, base))
    except (OSError, CorruptionError):
        return 0, _ENTRY_MAX
    if header.first_entry < 0:
        return 0, _ENTRY_MAX
    records = max(position - base - HEADER_BYTES, 0) // _RECORD_MIN
    return header.first_entry, header.first_entry + (_DELTA_MAX if records and header.version >= COUNTED else records)


def load(directory: Path) -> tuple[Tail, Checkpoint] | None:
    """Return the tail page and the checkpoint of a log; None if the page is not trusted.

    Raises the errors of `is_trusted`.
    """
    tail = map_page(directory)
    checkpoint = checkpoints.load(directory)
    if tail is None or checkpoint is None or not is_trusted(directory, tail, checkpoint):
        return None
    return tail, checkpoint
