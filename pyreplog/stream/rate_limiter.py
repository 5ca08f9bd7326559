"""RateLimiter: limits how fast a log is sent."""

from __future__ import annotations


class RateLimiter:
    """A token bucket for the bytes of frame bodies: `rate` bytes per second, and at most `burst` bytes after a pause.

    A sender may overdraw it; then nothing is allowed until the rate has made up for that. Callers pass the time.
    """

    def __init__(self, rate: int, burst: int, now_us: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at_us = float(burst), now_us

    @classmethod
    def of(cls, rate: int | None, now_us: int) -> RateLimiter | None:
        """Return a throttle with bursts of a tenth of a second; None if `rate` is None: no limit."""
        return None if rate is None else cls(rate, _burst_of(rate), now_us)

    def set_rate(self, rate: int) -> None:
        """Change the rate, with bursts of a tenth of a second, from the last call of `allowed` on. A debt remains."""
        self._rate, self._burst = rate, _burst_of(rate)

    def allowed(self, now_us: int) -> int:
        """Return the bytes that may be sent now."""
        self._tokens = min(self._burst, self._tokens + (now_us - self._at_us) * self._rate / 1e6)
        self._at_us = now_us
        return max(int(self._tokens), 0)

    def spend(self, count: int) -> None:
        """Note that `count` bytes were sent."""
        self._tokens -= count

    def wait_us(self) -> int:
        """Return the microseconds until the first byte is allowed, counted from the last call of `allowed`."""
        return max(int((1 - self._tokens) * 1e6 / self._rate) + 1, 0)


def _burst_of(rate: int) -> int:
    return max(rate // 10, 4096)
