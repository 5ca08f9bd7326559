"""Ranges of entry numbers with a step, and the parts of them that a bookie holds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def last_of(entries: range, last: int) -> int:
    """Return the highest of the given entries that is not above `last`.

    Args:
        entries: ascending, the first of them not above `last`.
        last: number of an entry.
    """
    return entries[min((last - entries.start) // entries.step, len(entries) - 1)]


def runs_of(entries: npt.NDArray[np.int64], step: int) -> list[range]:
    """Return entries as a minimal list of ranges with the given step.

    Args:
        entries: numbers of the entries, ascending.
        step: step of the ranges.
    """
    if not len(entries):
        return []
    cuts = np.flatnonzero(np.diff(entries) != step) + 1
    return [range(int(part[0]), int(part[-1]) + 1, step) for part in np.split(entries, cuts)]
