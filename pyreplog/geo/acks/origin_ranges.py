"""Sets of messages by their identity: for each origin, ranges of offsets there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.origins.origin import Origin

Offsets: TypeAlias = npt.NDArray[np.int64]
Ranges: TypeAlias = tuple[Offsets, Offsets]
"""Starts and exclusive ends of ascending ranges."""


def copy_ranges(ranges: RangeSet) -> RangeSet:
    """Return a set of its own with the same members."""
    copy = RangeSet()
    copy.add_ranges(*ranges.intersect())
    return copy


def ranges_of(starts: Offsets, ends: Offsets) -> RangeSet:
    """Return the set of these ranges, in any order."""
    ranges = RangeSet()
    ranges.add_ranges(starts, ends)
    return ranges


def subtract(ranges: RangeSet, other: RangeSet) -> RangeSet:
    """Return the members of `ranges` that are not in `other`."""
    rest = copy_ranges(ranges)
    if rest and other:
        rest.remove_ranges(*other.intersect(rest.first or 0, (rest.last or 0) + 1))
    return rest


class OriginRanges:
    """A set of messages: for each origin, the offsets of its members.

    Two sets are equal if they have the same members.
    """

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[Origin, RangeSet] = {}

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._sets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OriginRanges) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OriginRanges({self.total} messages of {len(self._sets)} origins)"

    @property
    def total(self) -> int:
        """Number of messages in the set."""
        return sum(ranges.total for ranges in self._sets.values())

    @property
    def ranges(self) -> int:
        """Number of ranges, of all origins."""
        return sum(map(len, self._sets.values()))

    def dump(self) -> dict[Origin, bytes]:
        """Return the bytes of each origin's set."""
        return {origin: ranges.dump() for origin, ranges in self._sets.items()}

    def contains(self, origin: Origin, offset: int) -> bool:
        """Return whether a message is in the set."""
        ranges = self._sets.get(origin)
        return ranges is not None and offset in ranges

    def between(self, origin: Origin, start: int = 0, end: int = OFFSET_END) -> Ranges:
        """Return the ranges of an origin, cut to `start` to `end`."""
        return (self._sets.get(origin) or RangeSet()).intersect(start, end)

    def of(self, origin: Origin) -> RangeSet:
        """Return the set of an origin, which must not be changed."""
        return self._sets.get(origin) or RangeSet()

    def last(self, origin: Origin) -> int:
        """Return the highest offset of an origin in the set; -1: it has no members."""
        ranges = self._sets.get(origin)
        last = ranges.last if ranges is not None else None
        return -1 if last is None else last

    def add(self, origin: Origin, starts: Offsets, ends: Offsets) -> RangeSet:
        """Add ranges of an origin; return their new members."""
        new = ranges_of(starts, ends)
        if not new:
            return new
        ranges = self._sets.setdefault(origin, RangeSet())
        if ranges:
            new = subtract(new, ranges)
        if new:
            ranges.add_ranges(*new.intersect())
        return new

    def remove(self, origin: Origin, starts: Offsets, ends: Offsets) -> None:
        """Remove ranges of an origin."""
        if (ranges := self._sets.get(origin)) is not None:
            ranges.remove_ranges(starts, ends)
            if not ranges:
                del self._sets[origin]

    def discard(self, origin: Origin) -> None:
        """Remove all members of an origin."""
        self._sets.pop(origin, None)

    def add_all(self, other: OriginRanges) -> OriginRanges:
        """Add the members of `other`; return the new ones."""
        added = OriginRanges()
        for origin in other:
            new = self.add(origin, *other.between(origin))
            if new:
                added.add(origin, *new.intersect())
        return added

    def intersect_all(self, other: OriginRanges) -> bool:
        """Keep the members that are in `other`, too; return whether a member was removed."""
        before = self.total
        for origin in [*self._sets]:
            kept = other.of(origin)
            rest = subtract(self._sets[origin], kept)
            self.remove(origin, *rest.intersect())
        return self.total < before

    def copy(self) -> OriginRanges:
        """Return a set of its own with the same members."""
        copy = OriginRanges()
        copy.add_all(self)
        return copy
