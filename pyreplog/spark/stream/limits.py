"""How much of a backlog comes into one batch, and which task reads what of it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def shares(limit: int, waiting: Mapping[K, int], turn: int = 0) -> dict[K, int]:
    """Of each what comes: one, and of the rest of `limit` as much as it has of what waits; all together no more than
    that. So what is small is not kept waiting by what is large.

    Of more than `limit`, some have one each. turn: which of them; with another number they are others.
    """
    if sum(waiting.values()) <= limit:
        return dict(waiting)
    found = dict.fromkeys(waiting, 0)
    for key in in_turn([key for key, amount in waiting.items() if amount], turn)[:limit]:
        found[key] = 1
    rest = limit - sum(found.values())
    total, before = sum(waiting.values()) - sum(found.values()), 0
    for key, amount in waiting.items():
        amount -= found[key]
        found[key] += rest * (before + amount) // total - rest * before // total
        before += amount
    return found


def in_turn(keys: Sequence[K], turn: int) -> list[K]:
    """All of them, from one of them on, and then those before it."""
    at = turn % len(keys) if keys else 0
    return [*keys[at:], *keys[:at]]


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
