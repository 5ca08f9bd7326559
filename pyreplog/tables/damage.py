"""Damaged bytes of a segment, and where the next record begins after them."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.log.segment import Segment
from pyreplog.errors import CorruptionError
from pyreplog.log import indexes
from pyreplog.log.recovery import BLANK
from pyreplog.tables.slices import Slice


class DamagedRange(NamedTuple):
    """Bytes [start, stop) of a segment file that are no record, and the error that describes them."""

    start: int
    stop: int
    error: CorruptionError


def damage_at(segment: Segment, part: Slice, start: int, entry: int, error: CorruptionError) -> DamagedRange:
    """Return the damaged range that a scan met at offset `start`.

    The range ends at the next offset in the segment's index, or earlier, at a record with a valid CRC and a possible
    entry number. Without an index, only such a record ends it. Damage at the end of a sealed segment ends where the
    blank space begins.

    entry: number of the last entry before the damage; -1: unknown.
    """
    at, places = start, _known_places(segment, Path(part.log.directory))
    while at < part.until:
        following = bisect.bisect_right(places, at)
        limit = places[following] if following < len(places) else part.stop
        intact = _find(segment, at + 8, min(limit, part.stop), entry)
        if intact >= 0:
            return DamagedRange(start, intact, error)
        at = min(limit, part.stop)
        if at >= part.stop:
            break
        if _begins_something(segment, at, part.stop):
            return DamagedRange(start, at, error)
    return DamagedRange(start, _blank_before(segment, start, at), error)


def _blank_before(segment: Segment, start: int, stop: int) -> int:
    blank = segment.find_blank(start + 8) if stop == segment.size else -1
    return stop if blank < 0 else blank


def _known_places(segment: Segment, directory: Path) -> list[int]:
    index = segment.index or indexes.load(directory, segment)
    return [] if index is None else [index.block(i)[1] for i in range(len(index))]


def _begins_something(segment: Segment, offset: int, stop: int) -> bool:
    status = segment.check(offset, stop)
    return status > 0 or status == BLANK


def _find(segment: Segment, offset: int, stop: int, entry: int) -> int:
    """Return the offset of the first intact record from `offset` on whose entry number may follow; -1: none.

    The number is compared because values may hold copies of records.
    """
    while offset < stop:
        offset = segment.find_intact(offset, stop)
        if offset < 0:
            return -1
        if segment.first_entry < 0 or segment.head_at(offset)[1] > entry:
            return offset
        offset += 8
    return -1
