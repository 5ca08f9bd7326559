"""How much of a backlog comes into one batch, and which task reads what of it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def shares(limit: int, waiting: Mapping[K, int]) -> dict[K, int]:
    """Of each what comes: as much of `limit` as it has of what waits, all of them together no more than it.

    None waits for ever: whose share is rounded to nothing grows until it is not.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    found, before = {}, 0
    for key, amount in waiting.items():
        found[key] = limit * (before + amount) // total - limit * before // total
        before += amount
    return found


def cut(ranges: Mapping[K, tuple[int, int]], count: int) -> Iterator[list[tuple[K, tuple[int, int]]]]:
    """Ranges in order, cut into `count` parts with as many numbers each; parts without any are left out."""
    total = sum(high - low for low, high in ranges.values())
    bounds = [total * k // count for k in range(count + 1)]
    for first, stop in pairwise(bounds):
        part, before = [], 0
        for key, (low, high) in ranges.items():
            start, end = max(low, low + first - before), min(high, low + stop - before)
            if start < end:
                part.append((key, (start, end)))
            before += high - low
        if part:
            yield part
