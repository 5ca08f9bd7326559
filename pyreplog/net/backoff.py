"""Delays between attempts to connect."""

from __future__ import annotations

from collections.abc import Callable

BACKOFF_FIRST_S = 0.02
BACKOFF_MOST_S = 5.0


class Backoff:
    """Doubling delays with jitter: each is between half of it and the whole (Brooker, "Exponential Backoff and Jitter",
    2015).

    random: returns a number from 0 to 1.
    """

    __slots__ = ("_delay_s", "_first_s", "_most_s", "_random")

    def __init__(self, first_s: float, most_s: float, random: Callable[[], float]) -> None:
        self._first_s, self._most_s, self._random = first_s, most_s, random
        self._delay_s = first_s

    def next_s(self) -> float:
        """Return the delay before the next attempt, seconds."""
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, self._most_s)
        return delay_s * (0.5 + self._random() / 2)

    def reset(self) -> None:
        """Start with the first delay again, after a success."""
        self._delay_s = self._first_s
