"""CatchUpQuota: the bytes per second that replicas outside of the ISR may fetch, all of a broker together (KIP-73)."""

from __future__ import annotations

from _thread import allocate_lock

from pyreplog.clock import Clock
from pyreplog.stream.rate_limiter import RateLimiter


class CatchUpQuota:
    """The quota of a broker's replicas outside of the ISR. Any thread may use it.

    A fetch reserves bytes before it is sent. When it is answered, bytes that it did not fetch are returned.

    Args:
        rate: bytes per second; None: no limit.
        clock: the time.
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._clock, self._lock = clock, allocate_lock()
        self._limiter = RateLimiter.of(rate, clock.monotonic_us())

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._limiter is not None

    def reserve(self, max_bytes: int) -> int:
        """Reserve at most `max_bytes` of the bytes that are allowed now; return their number."""
        assert self._limiter is not None
        with self._lock:
            reserved = min(self._limiter.allowed(self._clock.monotonic_us()), max_bytes)
            self._limiter.spend(reserved)
            return reserved

    def settle(self, reserved: int, fetched: int) -> None:
        """Count the bytes of an answer. The first batch may be larger than what was reserved: the rest is owed."""
        assert self._limiter is not None
        with self._lock:
            self._limiter.spend(fetched - reserved)

    def next_us(self) -> int:
        """Return the monotonic time in microseconds from which on a fetch is allowed."""
        assert self._limiter is not None
        with self._lock:
            now_us = self._clock.monotonic_us()
            self._limiter.allowed(now_us)
            return now_us + self._limiter.wait_us()
