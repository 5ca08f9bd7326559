"""Pace: how many bytes one worker copies in a second. Shared by all copies of the worker."""

from __future__ import annotations

import threading

from pyreplog.clock import Clock
from pyreplog.stream.throttle import Throttle

_RATE_MIN = 4096
_RECOVERY = 1.25
"""After a failure the rate is halved; each ledger that was copied since raises it by this factor, up to the limit."""


class Pace:
    """A limit of bytes per second that is halved when a copy fails. Any thread may use it.

    rate: bytes per second; None: no limit, also after failures.
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._limit, self._rate = rate, rate
        self._throttle = Throttle.of(rate, clock.monotonic_us())

    @property
    def rate(self) -> int | None:
        """Bytes per second at present; None: no limit."""
        return self._rate

    def limit(self, rate: int | None) -> None:
        """Set the limit: bytes per second, None: no limit."""
        with self._lock:
            if rate != self._limit:
                self._limit = rate
                self._set(rate)

    def spend(self, count: int) -> float:
        """Count bytes that were copied. Returns the seconds to wait before more are copied."""
        with self._lock:
            if self._throttle is None:
                return 0.0
            self._throttle.allowed(self._clock.monotonic_us())
            self._throttle.spend(count)
            return self._throttle.wait_us() / 1e6

    def slow_down(self) -> None:
        """Halve the rate, because a copy failed or a bookie is overloaded."""
        with self._lock:
            if self._rate is not None:
                self._set(max(self._rate // 2, min(_RATE_MIN, self._rate)))

    def speed_up(self) -> None:
        """Raise a rate that was halved, because a copy went well."""
        with self._lock:
            if self._rate is not None and self._limit is not None and self._rate < self._limit:
                self._set(min(int(self._rate * _RECOVERY) + 1, self._limit))

    def _set(self, rate: int | None) -> None:
        self._rate = rate
        self._throttle = Throttle.of(rate, self._clock.monotonic_us())
