"""Dead entries: copies that no metadata assign to this bookie, which garbage collection removes. See `surplus`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DeadEntries:
    """The dead entries of a closed ledger.

    Attributes:
        kept: the entries that the bookie has to hold; they are live.
        below: a position in the log. Records from there on are live, because they were added after the decision.
    """

    kept: tuple[range, ...]
    below: int

    def mask(self, entries: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which entries are dead.

        Args:
            entries: numbers of entries, ascending.
            positions: positions of their records in the log.
        """
        return (positions < self.below) & ~are_among(entries, self.kept)


def are_among(entries: npt.NDArray[np.int64], ranges: Iterable[range]) -> npt.NDArray[np.bool_]:
    """Return which of some entries, ascending, lie in one of the ranges."""
    is_dead = np.zeros(len(entries), np.bool_)
    for wanted in ranges:
        start, stop = np.searchsorted(entries, (wanted.start, wanted.stop))
        is_dead[start:stop] |= (entries[start:stop] - wanted.start) % wanted.step == 0
    return is_dead


def count_among(ranges: Iterable[range], first: int, last: int) -> int:
    """Count the entries of disjoint ranges that lie in [first, last]."""
    count = 0
    for wanted in ranges:
        start = wanted.start + max(0, -(-(first - wanted.start) // wanted.step)) * wanted.step
        count += len(range(start, min(wanted.stop, last + 1), wanted.step))
    return count
