"""Time, chance, and what happened."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class World:
    """Events in the order of their time; of equal ones, in the order in which they were planned."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.random = random.Random(seed)
        self.leaving = random.Random(f"bookies that leave, {seed}")  # what was drawn before there were any stays
        self.now = 0.0
        self.trace: list[str] = []
        self.tracing = tracing
        self.is_calm = False  # nothing is lost or late any more
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: float, call: Callable[..., Any], *args: Any) -> None:
        self._planned += 1
        heappush(self._events, (time, self._planned, call, args))

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + seconds, call, *args)

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, args = heappop(events)
            call(*args)
        self.now = until

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, *words: object) -> None:
        if self.tracing:
            self.trace.append(f"{self.now * 1000:10.3f} ms  {' '.join(map(str, words))}")
