"""Dividing a batch with a limit among partitions, and among tasks. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def shares(limit: int, waiting: Mapping[K, int], turn: int = 0) -> dict[K, int]:
    """Return the share of each key in a batch: 1, and of the rest of `limit` a part proportional to what waits.

    So a small backlog does not wait for a large one. The sum is at most `limit`. If more keys wait than that, some get
    1 and the others nothing; `turn` decides which.
    """
    if sum(waiting.values()) <= limit:
        return dict(waiting)
    result = dict.fromkeys(waiting, 0)
    for key in in_turn([key for key, amount in waiting.items() if amount], turn)[:limit]:
        result[key] = 1
    remaining = limit - sum(result.values())
    total, before = sum(waiting.values()) - sum(result.values()), 0
    for key, amount in waiting.items():
        amount -= result[key]
        result[key] += remaining * (before + amount) // total - remaining * before // total
        before += amount
    return result


def in_turn(keys: Sequence[K], turn: int) -> list[K]:
    """Return all keys, beginning with the one that `turn` selects."""
    at = turn % len(keys) if keys else 0
    return [*keys[at:], *keys[:at]]


def cut(ranges: Mapping[K, tuple[int, int]], count: int) -> Iterator[list[tuple[K, tuple[int, int]]]]:
    """Yield `count` parts of ranges in order, with equally many numbers each; empty parts are left out."""
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
