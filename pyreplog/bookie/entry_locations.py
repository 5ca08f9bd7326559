"""Reads entries of a ledger from known locations in several segments: up to a number of bytes, and at least one
entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyreplog._native.ledger_log.intake import copy_entries
from pyreplog._native.ledger_log.lending import lend_entries
from pyreplog._native.log.segment import Segment
from pyreplog.bookie.dead_entries import DeadEntries
from pyreplog.bookie.multi_ledger_log import EntryLocations
from pyreplog.errors import CorruptionError

Hold = Callable[[int], tuple[object, Segment]]
"""Gives the segment that begins at a position, and a pin that keeps it in place while the pin exists."""


def alive(locations: Iterable[EntryLocations], dead: DeadEntries | None) -> Iterator[EntryLocations]:
    """Return the locations without dead entries."""
    for place in locations:
        if dead is None:
            yield place
            continue
        live = ~dead.mask(place.entry, place.offset + place.base)
        if live.any():
            yield EntryLocations(place.base, place.entry[live], place.offset[live])


def copy_located(
    locations: Iterable[EntryLocations], hold: Hold, ledger: int, end: int, bytes_max: int
) -> tuple[bytes, int]:
    """Copy verified records, about `bytes_max` bytes, end to end.

    Returns the records and the first entry that is not among them; `end`: all are. Raises as `hold` and `copy_entries`.
    """
    parts: list[bytes] = []
    room = bytes_max
    for base, entries, offsets in locations:
        pin, segment = hold(base)
        records, count = copy_entries(segment, ledger, entries, offsets, room, at_least_one=not parts)
        del pin
        parts.append(records)
        room -= len(records)
        if count < len(entries):
            return b"".join(parts), int(entries[count])
    return b"".join(parts), end


def lend_located(
    locations: Iterable[EntryLocations], hold: Hold, ledger: int, end: int, bytes_max: int
) -> tuple[bytes | memoryview, int]:
    """Lend records that are not verified, as `copy_located` does; records of one segment are a view of it.

    A damaged place ends the records, and raises if it is the first. Raises as `hold` and `lend_entries`.
    """
    parts: list[memoryview] = []
    room = bytes_max
    for base, entries, offsets in locations:
        pin, segment = hold(base)
        try:
            records, count = lend_entries(segment, ledger, entries, offsets, room, at_least_one=not parts)
        except CorruptionError:
            if not parts:
                raise
            return _joined(parts), int(entries[0])
        del pin
        parts.append(records)
        room -= records.nbytes
        if count < len(entries):
            return _joined(parts), int(entries[count])
    return _joined(parts), end


def _joined(parts: list[memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)
