"""Clock: the source of time, which is the system or a test.

State machines read no clock: their drivers pass them the time. Wall time stamps records, monotonic time measures delays
and deadlines; the two are never compared with each other.
"""

from __future__ import annotations

from typing import Protocol

from pyreplog._native.system.polling import monotonic_us, wall_us
from pyreplog.errors import InvalidArgumentError

STEP_US = 10_000
"""Difference, in microseconds, up to which a `ClockWatch` does not take the clock for set."""


class Clock(Protocol):
    """A source of wall time and monotonic time, which any thread may read.

    Wall time stamps records, and monotonic time measures delays. Pass a `ManualClock` to `pyreplog.open`
    to test code that depends on time.
    """

    def now_us(self) -> int:
        """Return the wall time, in microseconds since 1970-01-01 UTC.

        It goes back when the clock of the machine is set back.
        """
        ...

    def monotonic_us(self) -> int:
        """Return microseconds since an arbitrary moment.

        It never goes back, also when the clock of the machine is set.
        """
        ...


def ahead_us(clock: Clock) -> int:
    """Return the microseconds by which the wall time is ahead of the monotonic time.

    The number changes when the clock is set or the machine sleeps. The two times are read one after the other, so that
    a difference of 10 ms means nothing.
    """
    return clock.now_us() - clock.monotonic_us()


class ClockWatch:
    """Detects that the clock of the machine was set. For one thread at a time."""

    __slots__ = ("_ahead_us", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ahead_us = clock, ahead_us(clock)

    def step_us(self) -> int:
        """Return the microseconds by which the clock was set forward since the last call.

        Negative: it was set back. 0: it was not set, or by 10 ms at most.
        """
        ahead = ahead_us(self._clock)
        step = ahead - self._ahead_us
        if abs(step) <= STEP_US:
            return 0
        self._ahead_us = ahead
        return step


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    now_us = staticmethod(wall_us)
    monotonic_us = staticmethod(monotonic_us)


class ManualClock:
    """A clock for tests that stands still until `advance` is called.

    Its monotonic time begins at 0, so that code which confuses the two times fails. Any thread may read the clock; one
    thread at a time may advance or set it.

    Args:
        start_us: wall time at the beginning, in microseconds since 1970-01-01 UTC.

    Example:
        ```python
        clock = ManualClock(start_us=1_700_000_000_000_000)
        log = pyreplog.open("data/test", clock=clock, retention_ms=60_000)
        clock.advance(61_000_000)  # 61 seconds
        ```
    """

    __slots__ = ("_elapsed_us", "_start_us")

    def __init__(self, start_us: int) -> None:
        self._start_us = start_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        """Return the wall time, in microseconds since 1970-01-01 UTC."""
        return self._start_us + self._elapsed_us

    def monotonic_us(self) -> int:
        """Return the microseconds by which the clock was advanced."""
        return self._elapsed_us

    def advance(self, us: int) -> None:
        """Advance both times.

        Args:
            us: microseconds, 0 or more.

        Raises:
            InvalidArgumentError: `us` is negative.
        """
        if us < 0:
            raise InvalidArgumentError(f"us: expected 0 or more, found {us}; `set` moves the wall time back")
        self._elapsed_us += us

    def set(self, us: int) -> None:
        """Set the wall time, and leave the monotonic time as it is.

        Args:
            us: microseconds since 1970-01-01 UTC.
        """
        self._start_us = us - self._elapsed_us
