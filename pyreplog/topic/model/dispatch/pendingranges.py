"""Who has which messages, where all go to one consumer and no time matters: ranges, however many messages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, NOTHING, Released, Slots

_END = 1 << 62


class PendingRanges:
    """What `Pending` does, but for the times; all slots are 0."""

    def __init__(self) -> None:
        self._held: defaultdict[int, RangeSet] = defaultdict(RangeSet)
        self.total = 0

    def count(self, holder: int) -> int:
        held = self._held.get(holder)
        return 0 if held is None else held.total

    def hold(self, offsets: Offsets, holder: int, slots: Slots | None, now_us: int) -> None:
        if len(offsets):
            self.total += self._held[holder].add_offsets(offsets)

    def hold_range(self, start: int, end: int, holder: int, now_us: int) -> None:
        self.total += self._held[holder].add(start, end)

    def holds(self, offsets: Offsets) -> NDArray[np.bool_]:
        found = np.zeros(len(offsets), np.bool_)
        for held in self._held.values():
            if held:
                found |= held.mask(offsets)
        return found

    def is_free(self, start: int, end: int) -> bool:
        free = True
        for held in self._held.values():
            free = free and held.missing(start, end) == end - start
        return free

    def release(self, offsets: Offsets, holder: int | None = None) -> Released:
        released = []
        for number, held in list(self._held.items()):
            if holder in (None, number) and held:
                found = offsets[held.mask(offsets)]
                self.total -= held.remove_offsets(found)
                released.append(found)
        return _released(released)

    def release_range(self, start: int, end: int) -> Released:
        return _released([self._cut(held, start, end) for held in self._held.values()])

    def drop_range(self, start: int, end: int) -> int:
        """As `release_range`; how many these were."""
        count = 0
        if start < end:
            for held in self._held.values():
                count += held.remove(start, end)
            self.total -= count
        return count

    def release_holder(self, holder: int) -> Released:
        held = self._held.pop(holder, None)
        return NOTHING if held is None else _released([self._cut(held, 0, _END)])

    def release_consumers(self) -> Released:
        others = [number for number in self._held if number > DEAD_LETTERS]
        return _released([self.release_holder(number).offsets for number in others])

    def release_since(self, until_us: int) -> Released:
        """Nothing: it is kept where times matter."""
        return NOTHING

    def _cut(self, held: RangeSet, start: int, end: int) -> Offsets:
        """What there is of [start, end), which is no more then."""
        if start >= end or not held:
            return NONE
        starts, ends = held.intersect(start, end)
        self.total -= held.remove(start, end)
        ranges = zip(starts.tolist(), ends.tolist(), strict=True)
        several = [np.arange(low, high, dtype=np.int64) for low, high in ranges]
        return several[0] if len(several) == 1 else np.concatenate(several or [NONE])


def _released(several: list[Offsets]) -> Released:
    """Of several holders, which share nothing."""
    several = [offsets for offsets in several if len(offsets)]
    if not several:
        return NOTHING
    offsets = several[0] if len(several) == 1 else np.sort(np.concatenate(several))
    return Released(offsets, np.zeros(len(offsets), np.uint16))
