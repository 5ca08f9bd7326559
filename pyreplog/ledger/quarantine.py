"""Bookies that failed lately: others are chosen before them, for a while (BookKeeper: quarantinedBookies)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pyreplog.clock import Clock
from pyreplog.net.backoff import Backoff

FIRST_S = 1.0
MOST_S = 60.0
"""A bookie is held for the former, doubled with each failure up to the latter; one that has not failed for the latter
since it was let go begins anew."""


class _QuarantinedBookie:
    """One bookie. until_us: on the monotonic clock."""

    __slots__ = ("backoff", "until_us")

    def __init__(self, random: Callable[[], float]) -> None:
        self.backoff, self.until_us = Backoff(FIRST_S, MOST_S, random), 0


class Quarantine:
    """Of one client, for all of its ledgers. Any thread may call anything.

    random: a number from 0 to 1, for the durations.
    """

    def __init__(self, clock: Clock, random: Callable[[], float]) -> None:
        self._clock, self._random = clock, random
        self._lock = threading.Lock()
        self._held: dict[str, _QuarantinedBookie] = {}

    def add(self, bookie: str) -> None:
        """It failed. What fails meanwhile, of other ledgers, is the same failure."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            self._forget(now_us)
            held = self._held.setdefault(bookie, _QuarantinedBookie(self._random))
            if held.until_us <= now_us:
                held.until_us = now_us + round(held.backoff.next_s() * 1e6)

    def release(self, bookies: Iterable[str]) -> None:
        """They have registered anew, or something else says that they should be tried."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            for bookie in bookies:
                held = self._held.get(bookie)
                if held is not None:
                    held.until_us = min(held.until_us, now_us)

    def __contains__(self, bookie: str) -> bool:
        held = self._held.get(bookie)
        return held is not None and held.until_us > self._clock.monotonic_us()

    def _forget(self, now_us: int) -> None:
        for bookie in [name for name, held in self._held.items() if now_us > held.until_us + MOST_S * 1e6]:
            del self._held[bookie]
