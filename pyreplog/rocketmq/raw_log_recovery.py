"""Finds the end of a raw log after a crash: verifies records from the synced position on, and cuts a torn one."""

from __future__ import annotations

from pathlib import Path

from pyreplog.errors import CorruptionError, NotALogError
from pyreplog.log.files import Files
from pyreplog.rocketmq.raw_file import RawFile, path_of, remove
from pyreplog.rocketmq.records import BLANK_BYTES, MAGIC_V1, MAGIC_V2, RecordFault, walk
from pyreplog.rocketmq.synced_position import SyncedPosition

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


def find_end(directory: Path, bases: list[int], proven: SyncedPosition | None, files: Files) -> int:
    """Return the end of the last complete record, and sync all records before it.

    A blank ends its file only if another file follows, or if it lies before the synced position: otherwise the bytes
    after its first 8 may be missing, and that could not be detected.

    Raises:
        CorruptionError: files before the synced position are missing; or, in a log without a stored position because a
            broker wrote it, intact records follow a damaged one.
        NotALogError: such a log begins with other data.
    """
    position = bases[0] if proven is None else max(proven.position, bases[0])
    size = path_of(directory, bases[0]).stat().st_size
    if position > bases[-1] + size:
        raise CorruptionError(path_of(directory, bases[-1]), position, "a log that reaches this far", "its end")
    for base in bases:
        if position >= base + size:
            continue
        file = RawFile(path_of(directory, base), files, writable=False)
        files.sync(file.fd)
        file.close()
        stop = size if base != bases[-1] else size - 1
        reached, fault = walk(file.view, position - base, stop, base, torn=True)
        position = base + reached
        if position < file.end:
            if proven is None:
                fault = fault or RecordFault(reached, "a whole record", "a part of one")
                _check_foreign(directory, file, fault, bases, files)
            break
    return position


def _check_foreign(directory: Path, file: RawFile, fault: RecordFault, bases: list[int], files: Files) -> None:
    """Check that the log of a broker may be cut at a fault: it is unknown which of its records were synced."""
    offset = fault.offset
    if file.base + offset == bases[0] and any(file.used(0, len(file.view))):
        raise NotALogError(f"{file.path}: expected one of RocketMQ's records, found {fault.found} for {fault.expected}")
    later = [base for base in bases if base > file.base]
    intact = _intact_behind(directory, file, offset, later, files)
    if intact is not None:
        actual = f"{fault.found}; intact records follow at {intact}"
        raise CorruptionError(file.path, file.base + offset, fault.expected, actual)


def _intact_behind(directory: Path, file: RawFile, offset: int, later: list[int], files: Files) -> int | None:
    """Return the position of an intact record behind `offset` of a file, or in a later file; None: there is none."""
    for magic in _MAGICS:
        at = _find(file, magic, offset + BLANK_BYTES)
        while at >= 0:
            if walk(file.view, at - 4, len(file.view), file.base, torn=True)[0] > at:
                return file.base + at - 4
            at = _find(file, magic, at + 1)
    for base in later:
        file = RawFile(path_of(directory, base), files, writable=False)
        file.close()
        if walk(file.view, 0, len(file.view), base, torn=True)[0]:
            return base
    return None


def _find(file: RawFile, magic: bytes, offset: int) -> int:
    mapped = file.view.obj
    return int(mapped.find(magic, offset))  # type: ignore[attr-defined]  # an mmap has it


def cut(directory: Path, bases: list[int], end: int, files: Files) -> list[int]:
    """Zero the log behind `end`, so that no earlier record appears again (RocketMQ issues 10017, 10666).

    Files are removed from the last one on, so that a recovery after a crash meanwhile finds the same end.

    Returns:
        The bases of the remaining files. An empty log keeps no file, because it may begin at any position.
    """
    kept = [base for base in bases if base <= end] if end else []
    for base in reversed(bases[len(kept) :]):
        remove(directory, base, files)
    if not kept:
        return kept
    file = RawFile(path_of(directory, kept[-1]), files, writable=True)
    try:
        if file.zero(files, min(end, file.end) - file.base, len(file.view)):
            files.sync(file.fd)
    finally:
        file.close()
    return kept
