"""Ranges of entry numbers with a step: what a member of an ensemble holds, and parts of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def last_of(entries: range, last: int) -> int:
    """Return the highest of some entries that is not above `last`.

    Args:
        entries: ascending, the first of them not above `last`.
        last: number of an entry.
    """
    return entries[min((last - entries.start) // entries.step, len(entries) - 1)]


def runs_of(entries: npt.NDArray[np.int64], step: int) -> list[range]:
    """Return entries as few ranges of one step.

    Args:
        entries: ascending.
        step: of the ranges.
    """
    if not len(entries):
        return []
    cuts = np.flatnonzero(np.diff(entries) != step) + 1
    return [range(int(part[0]), int(part[-1]) + 1, step) for part in np.split(entries, cuts)]
