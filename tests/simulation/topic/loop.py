"""Simulated time, in which several processes wait: each wait goes on with what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop

from pyreplog.clock import Clock

from ..invariants import demand
from ..world import World

START_US = 1_700_000_000_000_000
LIMIT_S = 600.0
"""Of simulated time: whoever waits for longer waits for ever."""


class Loop(World):
    """As World; calls that events make may wait for others. One that waits goes on when those that began to wait later
    are done: as if its thread were late."""

    def run(self, until: float) -> None:
        self.pump(lambda: False, until - self.now)

    def step(self) -> None:
        """The next event."""
        self.now, _, call, args = heappop(self._events)
        call(*args)

    def pump(self, is_over: Callable[[], object], seconds: float) -> None:
        """Let others go on until then, or for so long."""
        until = self.now + seconds
        while not is_over() and self._events and self._events[0][0] <= until:
            demand(self.now < LIMIT_S, "Liveness", "somebody waits for ever")
            self.step()
        if not is_over():
            self.now = max(self.now, until)


class LoopClock(Clock):
    """A process' clock: the loop's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return START_US + round(self._loop.now * 1e6)

    def monotonic_us(self) -> int:
        return round(self._loop.now * 1e6)
