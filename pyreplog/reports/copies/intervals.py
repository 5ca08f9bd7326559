"""Sets of whole numbers as int64[n, 2]: half-open ranges, ascending, with gaps between them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Intervals: TypeAlias = "NDArray[np.int64]"


def union(parts: Intervals) -> Intervals:
    """Return the union of ranges in any order, which may overlap or be empty."""
    parts = parts[parts[:, 1] > parts[:, 0]]
    if not len(parts):
        return parts
    parts = parts[np.argsort(parts[:, 0], kind="stable")]
    reach = np.maximum.accumulate(parts[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], parts[1:, 0] > reach[:-1])))
    return np.stack((parts[starts, 0], np.maximum.reduceat(parts[:, 1], starts)), axis=1)


def without(some: Intervals, others: Intervals) -> Intervals:
    """Return the numbers that are in `some` and not in `others`."""
    parts = cut(some, others.ravel())
    return union(parts[~inside(others, parts[:, 0])])


def cut(some: Intervals, borders: NDArray[np.int64]) -> Intervals:
    """Split ranges at borders. The parts may touch."""
    points = np.unique(np.concatenate((some.ravel(), borders)))
    parts = np.stack((points[:-1], points[1:]), axis=1)
    return parts[inside(some, parts[:, 0])]


def inside(some: Intervals, points: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which points lie in one of the ranges."""
    is_inside: NDArray[np.bool_] = np.searchsorted(some.ravel(), points, side="right") % 2 == 1
    return is_inside
