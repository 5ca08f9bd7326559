"""Bookies that failed lately, before which others are chosen for a while (BookKeeper: quarantinedBookies)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pyreplog.clock import Clock
from pyreplog.net.backoff import Backoff

FIRST_S = 1.0
MOST_S = 60.0
"""The first quarantine of a bookie lasts FIRST_S seconds. Each further failure doubles the time, up to MOST_S. A bookie
that has not failed for MOST_S since its release starts with FIRST_S again."""


class _QuarantinedBookie:
    """A bookie in quarantine. until_us: time of its release on the monotonic clock, microseconds."""

    __slots__ = ("backoff", "until_us")

    def __init__(self, random: Callable[[], float]) -> None:
        self.backoff, self.until_us = Backoff(FIRST_S, MOST_S, random), 0


class Quarantine:
    """The bookies that failed lately, as one client saw it with any of its ledgers. Any thread.

    random: gives a number from 0 to 1, which spreads the durations.
    """

    def __init__(self, clock: Clock, random: Callable[[], float]) -> None:
        self._clock, self._random = clock, random
        self._lock = threading.Lock()
        self._held: dict[str, _QuarantinedBookie] = {}

    def add(self, bookie: str) -> None:
        """Put a bookie that failed into quarantine. Failures while it is there count as the same failure."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            self._forget(now_us)
            quarantined = self._held.setdefault(bookie, _QuarantinedBookie(self._random))
            if quarantined.until_us <= now_us:
                quarantined.until_us = now_us + round(quarantined.backoff.next_s() * 1e6)

    def release(self, bookies: Iterable[str]) -> None:
        """Release bookies that should be tried again, for they have registered anew."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            for bookie in bookies:
                quarantined = self._held.get(bookie)
                if quarantined is not None:
                    quarantined.until_us = min(quarantined.until_us, now_us)

    def __contains__(self, bookie: str) -> bool:
        quarantined = self._held.get(bookie)
        return quarantined is not None and quarantined.until_us > self._clock.monotonic_us()

    def _forget(self, now_us: int) -> None:
        for bookie in [
            name for name, quarantined in self._held.items() if now_us > quarantined.until_us + MOST_S * 1e6
        ]:
            del self._held[bookie]
