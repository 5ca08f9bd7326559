"""CatchUpQuota: the bytes per second that all replicas of a broker outside of the ISR may fetch together (KIP-73)."""

from __future__ import annotations

from _thread import allocate_lock

from pyreplog.clock import Clock
from pyreplog.stream.rate_limiter import RateLimiter


class CatchUpQuota:
    """The quota of a broker's replicas outside of the ISR. Any thread may use it.

    A fetch reserves bytes before it is sent. When it is answered, the quota gets back the bytes that it did not fetch.

    Args:
        rate: bytes per second; None: no limit.
        clock: source of time.
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._clock, self._lock = clock, allocate_lock()
        self._limiter = RateLimiter.of(rate, clock.monotonic_us())

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._limiter is not None

    def reserve(self, max_bytes: int) -> int:
        """Reserve some of the bytes that are allowed now.

        Args:
            max_bytes: most bytes to reserve.

        Returns:
            The number of reserved bytes; 0: the quota allows no fetch yet.
        """
        assert self._limiter is not None
        with self._lock:
            reserved = min(self._limiter.allowed(self._clock.monotonic_us()), max_bytes)
            self._limiter.spend(reserved)
            return reserved

    def settle(self, reserved: int, fetched: int) -> None:
        """Count the bytes of an answer. If a large first batch exceeds the reserved bytes, later fetches wait longer.

        Args:
            reserved: bytes that the fetch had reserved.
            fetched: bytes of the answer.
        """
        assert self._limiter is not None
        with self._lock:
            self._limiter.spend(fetched - reserved)

    def next_us(self) -> int:
        """Return the time from which on the quota allows a fetch, monotonic microseconds."""
        assert self._limiter is not None
        with self._lock:
            now_us = self._clock.monotonic_us()
            self._limiter.allowed(now_us)
            return now_us + self._limiter.wait_us()
