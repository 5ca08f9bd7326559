"""CopyRateLimiter: limits the bytes per second of one worker's copies."""

from __future__ import annotations

import threading

from pyreplog.clock import Clock
from pyreplog.stream.rate_limiter import RateLimiter

_RATE_MIN = 4096
_RECOVERY = 1.25
_RECOVERY_US = 1_000_000
"""After a failure the rate is halved. Then each `_RECOVERY_US` of copying multiplies it by `_RECOVERY`, up to the
limit."""


class CopyRateLimiter:
    """Limits bytes per second, and halves the rate when copies fail. Any thread may use it.

    `rate` is the limit in bytes per second; None: no limit, also after failures.
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._limit, self._rate = rate, rate
        self._halved_us = self._changed_us = clock.monotonic_us()
        self._throttle = RateLimiter.of(rate, self._changed_us)

    @property
    def rate(self) -> int | None:
        """Current rate, bytes per second; None: no limit."""
        return self._rate

    def limit(self, rate: int | None) -> None:
        """Set the limit in bytes per second; None: no limit."""
        with self._lock:
            if rate != self._limit:
                self._limit = rate
                self._set(rate)

    def spend(self, count: int) -> float:
        """Count copied bytes. Returns the seconds to wait before the next copy."""
        with self._lock:
            self._speed_up()
            if self._throttle is None:
                return 0.0
            self._throttle.allowed(self._clock.monotonic_us())
            self._throttle.spend(count)
            return self._throttle.wait_us() / 1e6

    def slow_down(self, began_us: int) -> None:
        """Halve the rate, because a copy failed or a bookie is overloaded.

        The failure of one bookie ends all copies in progress. All copies that began before the rate was halved count as
        one failure, as TCP halves its window once for the losses of one window.

        Args:
            began_us: monotonic time at which the copy began, microseconds.
        """
        with self._lock:
            if self._rate is not None and began_us >= self._halved_us:
                self._set(max(self._rate // 2, min(_RATE_MIN, self._rate)))
                self._halved_us = self._changed_us

    def _speed_up(self) -> None:
        """Raise a rate that was halved, if no copy failed for a while."""
        if self._throttle is None or self._rate is None or self._limit is None or self._rate >= self._limit:
            return
        now_us = self._clock.monotonic_us()
        if now_us - self._changed_us >= _RECOVERY_US:
            self._rate, self._changed_us = min(int(self._rate * _RECOVERY) + 1, self._limit), now_us
            self._throttle.allowed(now_us)
            self._throttle.set_rate(self._rate)

    def _set(self, rate: int | None) -> None:
        self._rate, self._changed_us = rate, self._clock.monotonic_us()
        self._throttle = RateLimiter.of(rate, self._changed_us)
