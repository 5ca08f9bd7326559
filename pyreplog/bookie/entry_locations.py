"""Entries of a ledger whose places are known, out of several segments: up to a number of bytes, at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyreplog._native.ledgerlog.intake import copy_entries
from pyreplog._native.ledgerlog.lending import lend_entries
from pyreplog._native.log.segment import Segment
from pyreplog.bookie.multi_ledger_log import EntryLocations
from pyreplog.errors import CorruptionError

Hold = Callable[[int], tuple[object, Segment]]
"""The segment that begins at a position, and what keeps it as it is for as long as it is referred to."""


def copy_located(
    locations: Iterable[EntryLocations], hold: Hold, ledger: int, end: int, bytes_max: int
) -> tuple[bytes, int]:
    """Records end to end, about `bytes_max` bytes, and the first entry that is not among them; `end`: all are.

    Errors: those of `hold` and of `copy_entries`.
    """
    out: list[bytes] = []
    room = bytes_max
    for base, entries, offsets in locations:
        held, segment = hold(base)
        records, count = copy_entries(segment, ledger, entries, offsets, room, at_least_one=not out)
        del held
        out.append(records)
        room -= len(records)
        if count < len(entries):
            return b"".join(out), int(entries[count])
    return b"".join(out), end


def lend_located(
    locations: Iterable[EntryLocations], hold: Hold, ledger: int, end: int, bytes_max: int
) -> tuple[bytes | memoryview, int]:
    """As `copy_located`; what lies in one segment is a view of it. What is damaged ends what is given, and is an error
    when it comes first.

    Errors: those of `hold` and of `lend_entries`.
    """
    out: list[memoryview] = []
    room = bytes_max
    for base, entries, offsets in locations:
        held, segment = hold(base)
        try:
            records, count = lend_entries(segment, ledger, entries, offsets, room, at_least_one=not out)
        except CorruptionError:
            if not out:
                raise
            return _joined(out), int(entries[0])
        del held
        out.append(records)
        room -= records.nbytes
        if count < len(entries):
            return _joined(out), int(entries[count])
    return _joined(out), end


def _joined(parts: list[memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)
