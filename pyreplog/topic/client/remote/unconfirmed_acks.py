"""What a consumer of a client has acknowledged, and no flush has confirmed: said again over the next connection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.interfaces import Noted

RANGES_MAX = 1 << 20
"""As many as a RESUME may have."""


class UnconfirmedAcks:
    """Offsets, in layers: a flush confirms those that were there when it was asked for. Pure; not for several threads
    at once."""

    def __init__(self) -> None:
        self._layers: list[RangeSet] = []
        self._first = 0  # how many were confirmed
        self._is_open = False  # the last layer takes more
        self._ends: list[tuple[int, int]] = []  # of cumulative acknowledgements: layer, and where they end

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def count(self) -> int:
        """Ranges, about."""
        return sum(map(len, self._layers))

    def add(self, noted: Noted) -> None:
        """These were acknowledged."""
        layer = self._open()
        if isinstance(noted, tuple):
            layer.add(*noted)
        else:
            layer.add_offsets(noted)

    def add_below(self, end: int) -> int:
        """All below it were acknowledged; a cut from this number on has it."""
        self._open()
        layer = self._first + len(self._layers)
        self._ends.append((layer, end))
        return layer

    def remove_below(self, end: int) -> None:
        """They are not: the owner refused it."""
        self._ends = [(layer, other) for layer, other in self._ends if other != end]

    def _open(self) -> RangeSet:
        if not self._is_open:
            self._layers.append(RangeSet())
            self._is_open = True
        return self._layers[-1]

    def remove(self, noted: Noted) -> None:
        """These are none: the owner refused them."""
        for layer in self._layers:
            if isinstance(noted, tuple):
                layer.remove(*noted)
            else:
                layer.remove_offsets(noted)

    def cut(self) -> int:
        """What is there is about to be flushed, or said again; for `confirmed`, and `ranges`."""
        self._is_open = False
        return self._first + len(self._layers)

    def confirmed(self, cut: int) -> None:
        """A flush that was asked for behind that cut has succeeded."""
        while self._layers and self._first < cut:
            self._first += 1
            del self._layers[0]
        self._ends = [(layer, end) for layer, end in self._ends if layer > self._first]

    def clear(self) -> None:
        """Nothing of it counts any more."""
        self.confirmed(self.cut())

    @property
    def below(self) -> int:
        """All that lies before it is acknowledged; 0: nothing."""
        return max((end for _, end in self._ends), default=0)

    def ranges(self, cut: int = 0) -> NDArray[np.int64]:
        """From and up to, of what was acknowledged besides, behind a cut."""
        merged = RangeSet()
        for layer in self._layers[max(cut - self._first, 0) :]:
            merged.add_ranges(*layer.intersect())
        return np.stack(merged.intersect(), axis=1)
