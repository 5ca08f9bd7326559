"""Messages of a key_shared subscription that were read and could not be delivered yet: their offsets and slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyreplog.topic.model.dispatch.keyring import SLOTS
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import Slots

_NEVER = np.iinfo(np.int64).max


class BlockedMessages:
    """Two columns, by offset. Small: reading stops before it is not."""

    def __init__(self) -> None:
        self.offsets: Offsets = NONE
        self.slots: Slots = np.empty(0, np.uint16)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offsets: Offsets, slots: Slots) -> None:
        """Ascending offsets; those that are there stay."""
        new = ~_found(self.offsets, offsets)
        at = np.searchsorted(self.offsets, offsets[new])
        self.slots = np.insert(self.slots, at, slots[new])
        self.offsets = np.insert(self.offsets, at, offsets[new])

    def remove(self, offsets: Offsets) -> None:
        """Ascending offsets; those that are not there do not matter."""
        if len(self.offsets) and len(offsets):
            self._keep(~_found(offsets, self.offsets))

    def remove_range(self, start: int, end: int) -> None:
        self._keep((self.offsets < start) | (self.offsets >= end))

    def has_slots(self, slots: Slots) -> bool:
        """Whether any message is of one of these."""
        return bool(len(self.slots)) and bool(np.isin(self.slots, slots).any())

    def in_turn(self, offsets: Offsets, slots: Slots) -> NDArray[np.bool_]:
        """Which of the messages of a batch have none of their slot waiting before them that is not in the batch."""
        if not len(self.offsets):
            return np.ones(len(offsets), np.bool_)
        others = ~_found(offsets, self.offsets)
        first = np.full(SLOTS + 1, _NEVER, np.int64)
        first[self.slots[others][::-1]] = self.offsets[others][::-1]  # of several, the last written counts: the lowest
        in_turn: NDArray[np.bool_] = offsets < first[slots]
        return in_turn

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self.offsets, self.slots = self.offsets[kept], self.slots[kept]


def _found(among: Offsets, offsets: Offsets) -> NDArray[np.bool_]:
    """Which of the offsets are among ascending ones."""
    if not len(among):
        return np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(among, offsets), len(among) - 1)
    found: NDArray[np.bool_] = among[at] == offsets
    return found
