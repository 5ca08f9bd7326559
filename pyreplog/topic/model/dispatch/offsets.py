"""Arrays of ascending offsets, and ranges of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
NONE: Offsets = np.empty(0, np.int64)


def ascending(offsets: Offsets) -> Offsets:
    """Return offsets sorted and without duplicates."""
    if len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all()):
        return offsets
    return np.unique(offsets)


def runs(offsets: Offsets) -> tuple[Offsets, Offsets]:
    """Return ascending offsets as ranges: their starts, their ends."""
    if not len(offsets):
        return NONE, NONE
    breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + 1)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return starts, ends


def within(offsets: Offsets, starts: Offsets, ends: Offsets) -> NDArray[np.bool_]:
    """Return which offsets lie in one of the ranges, which are disjoint and ascend."""
    if not len(starts):
        return np.zeros(len(offsets), np.bool_)
    at = np.searchsorted(starts, offsets, "right") - 1
    mask: NDArray[np.bool_] = (at >= 0) & (offsets < ends[at])
    return mask
