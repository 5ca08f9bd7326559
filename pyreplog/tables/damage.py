"""Bytes of a segment that are no record: where the next record begins behind them."""

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
    """Bytes [start, stop) of a segment file, and what is wrong with them."""

    start: int
    stop: int
    error: CorruptionError


def damage_at(segment: Segment, part: Slice, start: int, entry: int, error: CorruptionError) -> DamagedRange:
    """The damage that a scan met at offset `start`. entry: number of the last one before it, -1: not known.

    It ends at the next offset that the segment's index knows of, or before, where a record with a right CRC and a
    number that may follow is found by its looks. Without an index it is found by its looks alone. Damage at the end of
    a sealed segment ends at its blank.
    """
    at, places = start, _known_places(segment, Path(part.log.directory))
    while at < part.until:
        known = bisect.bisect_right(places, at)
        limit = places[known] if known < len(places) else part.stop
        found = _find(segment, at + 8, min(limit, part.stop), entry)
        if found >= 0:
            return DamagedRange(start, found, error)
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
    """Offset of the first intact record from `offset` on that may follow, for values may hold copies; -1: none."""
    while offset < stop:
        offset = segment.find_intact(offset, stop)
        if offset < 0:
            return -1
        if segment.first_entry < 0 or segment.head_at(offset)[1] > entry:
            return offset
        offset += 8
    return -1
