"""Which consumer a key belongs to: consistent hashing, so that a change of consumers moves few keys."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.spread import key_hash
from pyreplog.topic.model.dispatch.pending import NOBODY, Slots

SLOTS = 65_535
"""Keys fall into slots 1 to this."""
POINTS = 100
"""Of each consumer on the ring."""

_NO_KEY = key_hash(b"NONE_KEY")


def slot_of(hashes: NDArray[np.uint32]) -> Slots:
    """Slots of keys by their murmur3 hash."""
    return ((hashes & 0x7FFFFFFF) % SLOTS + 1).astype(np.uint16)


def slots_of(batch: MessageBatch) -> Slots:
    """Slots of messages; those without a key share one."""
    hashes = batch.key_hash()
    return slot_of(np.where(batch.key_size < 0, np.uint32(_NO_KEY), hashes))


class KeyRing:
    """Members by name: one that comes back under its name gets its keys back. Several of one name are numbered."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], tuple[int, Slots]] = {}  # (name, number) -> (holder, its points)
        self._points: Slots = np.empty(0, np.uint16)
        self._holders: NDArray[np.uint32] = np.empty(0, np.uint32)

    def add(self, holder: int, name: str) -> None:
        number = next(number for number in itertools.count() if (name, number) not in self._members)
        hashes = [key_hash(f"{name}\0{number}\0{point}".encode()) for point in range(POINTS)]
        self._members[name, number] = holder, slot_of(np.array(hashes, np.uint32))
        self._arrange()

    def remove(self, holder: int) -> None:
        self._members = {member: entry for member, entry in self._members.items() if entry[0] != holder}
        self._arrange()

    def owners(self, slots: Slots) -> NDArray[np.uint32]:
        """The holder that each slot belongs to: that of the next point, around the ring."""
        if not len(self._points):
            return np.full(len(slots), NOBODY, np.uint32)
        at = np.searchsorted(self._points, slots)
        return self._holders[np.where(at < len(self._points), at, 0)]

    def _arrange(self) -> None:
        """A point that several have belongs to the first by name and number."""
        members = [self._members[member] for member in sorted(self._members)]
        points = np.concatenate([np.empty(0, np.uint16), *(points for _, points in members)])
        holders = np.repeat(np.array([holder for holder, _ in members], np.uint32), POINTS)
        self._points, first = np.unique(points, return_index=True)
        self._holders = holders[first]
