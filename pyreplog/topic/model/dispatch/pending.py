"""The pending messages, by consumer: messages that were delivered and are not acknowledged yet."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets

PAGE_BITS = 10
PAGE = 1 << PAGE_BITS
NO_HOLDER = 0
DEAD_LETTERS = 1
"""The holder of messages that are being published as dead letters; consumers have higher numbers."""

Slots = NDArray[np.uint16]
_END = 1 << 62
_ROW = np.dtype([("since_us", np.int64), ("holder", np.uint32), ("slot", np.uint16)])


class Released(NamedTuple):
    """Messages that a holder does not have any more; the offsets ascend, the slots are those of their keys."""

    offsets: Offsets
    slots: Slots


NOTHING = Released(NONE, np.empty(0, np.uint16))


class Pending:
    """The pending messages in rows by offset, in pages for those parts of the topic that have any."""

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.void]] = {}
        self._used: dict[int, int] = {}  # page -> number of rows in use
        self._counts: dict[int, int] = {}
        self.total = 0

    def count(self, holder: int) -> int:
        """Return the number of messages that a holder has."""
        return self._counts.get(holder, 0)

    # ---- taking ---------------------------------------------------------------------------------------------

    def hold(self, offsets: Offsets, holder: int, slots: Slots | None, now_us: int) -> None:
        """Note that messages without a holder were delivered. The offsets ascend."""
        for number, low, high in _by_page(offsets):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = np.zeros(PAGE, _ROW)
                self._used[number] = 0
            at = offsets[low:high] & (PAGE - 1)
            page["since_us"][at] = now_us
            page["holder"][at] = holder
            page["slot"][at] = 0 if slots is None else slots[low:high]
            self._used[number] += high - low
        self._counts[holder] = self.count(holder) + len(offsets)
        self.total += len(offsets)

    def hold_range(self, start: int, end: int, holder: int, now_us: int) -> None:
        """Note that all messages of [start, end) were delivered."""
        self.hold(np.arange(start, end, dtype=np.int64), holder, None, now_us)

    def holds(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Return which of ascending offsets are held."""
        mask = np.zeros(len(offsets), np.bool_)
        for number, low, high in _by_page(offsets) if self.total else ():
            if (page := self._pages.get(number)) is not None:
                mask[low:high] = page["holder"][offsets[low:high] & (PAGE - 1)] != NO_HOLDER
        return mask

    def is_free(self, start: int, end: int) -> bool:
        """Return whether no message of [start, end) is held. False: a message may be held."""
        return not self._pages or not self._numbers(start >> PAGE_BITS, (end - 1) >> PAGE_BITS)

    # ---- releasing ------------------------------------------------------------------------------------------

    def release(self, offsets: Offsets, holder: int | None = None) -> Released:
        """Release those of ascending offsets that are held by any holder, or by this one."""
        parts = []
        for number, low, high in _by_page(offsets) if self.total else ():
            if (page := self._pages.get(number)) is not None:
                at = offsets[low:high] & (PAGE - 1)
                held = page["holder"][at]
                parts.append(self._clear(number, at[held != NO_HOLDER if holder is None else held == holder]))
        return _joined(parts)

    def release_range(self, start: int, end: int) -> Released:
        """Release the messages of [start, end)."""
        parts = []
        first, last = start >> PAGE_BITS, (end - 1) >> PAGE_BITS
        for number in self._numbers(first, last) if start < end else ():
            held = np.flatnonzero(self._pages[number]["holder"]) + (number << PAGE_BITS)
            parts.append(self._clear(number, held[(held >= start) & (held < end)] & (PAGE - 1)))
        return _joined(parts)

    def release_holder(self, holder: int) -> Released:
        """Release all messages of a holder."""
        if not self.count(holder):
            return NOTHING
        pages = [(number, self._pages[number]["holder"] == holder) for number in sorted(self._pages)]
        return _joined([self._clear(number, np.flatnonzero(held)) for number, held in pages])

    def release_consumers(self) -> Released:
        """Release all messages except dead letters."""
        pages = [(number, self._pages[number]["holder"] > DEAD_LETTERS) for number in sorted(self._pages)]
        return _joined([self._clear(number, np.flatnonzero(held)) for number, held in pages])

    def release_since(self, until_us: int) -> Released:
        """Release the messages that were delivered to consumers at a time or before."""
        parts = []
        for number in sorted(self._pages):
            page = self._pages[number]
            late = (page["holder"] > DEAD_LETTERS) & (page["since_us"] <= until_us)
            parts.append(self._clear(number, np.flatnonzero(late)))
        return _joined(parts)

    def _numbers(self, first: int, last: int) -> list[int]:
        if last - first < len(self._pages):
            return [number for number in range(first, last + 1) if number in self._pages]
        return sorted(number for number in self._pages if first <= number <= last)

    def _clear(self, number: int, at: NDArray[np.int64]) -> Released:
        page = self._pages[number]
        holders = page["holder"][at]
        while len(holders):  # usually all have one holder
            holder = int(holders[0])
            others = holders[holders != holder]
            self._counts[holder] -= len(holders) - len(others)
            if not self._counts[holder]:
                del self._counts[holder]
            holders = others
        released = Released(at + (number << PAGE_BITS), page["slot"][at])
        page["holder"][at] = NO_HOLDER
        self._used[number] -= len(at)
        self.total -= len(at)
        if not self._used[number]:
            del self._pages[number], self._used[number]
        return released


def _by_page(offsets: Offsets) -> Iterator[tuple[int, int, int]]:
    """Yield (page, start, stop): the part of ascending offsets that lies in each page."""
    if not len(offsets):
        return
    first, last = int(offsets[0]) >> PAGE_BITS, int(offsets[-1]) >> PAGE_BITS
    if first == last:
        yield first, 0, len(offsets)
        return
    numbers = offsets >> PAGE_BITS
    bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(offsets)]
    for low, high in itertools.pairwise(bounds):
        yield int(numbers[low]), low, high


def _joined(parts: list[Released]) -> Released:
    """Join the released messages of several pages, which ascend."""
    parts = [released for released in parts if len(released.offsets)]
    if len(parts) <= 1:
        return parts[0] if parts else NOTHING
    return Released(
        np.concatenate([released.offsets for released in parts]), np.concatenate([released.slots for released in parts])
    )


class PendingRanges:
    """The pending messages as ranges, for subscriptions with one active consumer and no acknowledgement timeout.

    All slots are 0.
    """

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
        mask = np.zeros(len(offsets), np.bool_)
        for held in self._held.values():
            if held:
                mask |= held.mask(offsets)
        return mask

    def is_free(self, start: int, end: int) -> bool:
        free = True
        for held in self._held.values():
            free = free and held.missing(start, end) == end - start
        return free

    def release(self, offsets: Offsets, holder: int | None = None) -> Released:
        released = []
        for number, held in list(self._held.items()):
            if holder in (None, number) and held:
                cut = offsets[held.mask(offsets)]
                self.total -= held.remove_offsets(cut)
                released.append(cut)
        return _released(released)

    def release_range(self, start: int, end: int) -> Released:
        return _released([self._cut(held, start, end) for held in self._held.values()])

    def drop_range(self, start: int, end: int) -> int:
        """Release the messages of [start, end); return their number."""
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
        """Release nothing: this class is used where times do not matter."""
        return NOTHING

    def _cut(self, held: RangeSet, start: int, end: int) -> Offsets:
        """Release and return the held offsets of [start, end)."""
        if start >= end or not held:
            return NONE
        starts, ends = held.intersect(start, end)
        self.total -= held.remove(start, end)
        ranges = zip(starts.tolist(), ends.tolist(), strict=True)
        parts = [np.arange(low, high, dtype=np.int64) for low, high in ranges]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [NONE])


def _released(parts: list[Offsets]) -> Released:
    """Join the released offsets of several holders, which are disjoint."""
    parts = [offsets for offsets in parts if len(offsets)]
    if not parts:
        return NOTHING
    offsets = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
    return Released(offsets, np.zeros(len(offsets), np.uint16))
