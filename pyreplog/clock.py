"""Where time comes from: the system, or a test's hand.

Nothing below the drivers asks for the time; they are told it. Wall time stamps records, monotonic time
measures delays and deadlines; the two are never compared with each other.
"""

from __future__ import annotations

from typing import Protocol

from pyreplog._native.system.polling import monotonic_us, wall_us
from pyreplog.errors import InvalidArgumentError

STEP_US = 10_000
"""A clock that is off by no more was not set."""


class Clock(Protocol):
    """What a driver needs of a clock. Implementations may be read from any thread."""

    def now_us(self) -> int:
        """Wall time in microseconds since 1970-01-01 UTC. Goes back when the machine's clock is set back."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since an arbitrary moment. Never goes back, whatever the clock is set to."""
        ...


def ahead_us(clock: Clock) -> int:
    """How far the wall time is ahead of the monotonic one: another number once the clock was set, or the machine slept.

    Both are read one after the other: 10 ms more or less say nothing.
    """
    return clock.now_us() - clock.monotonic_us()


class ClockWatch:
    """Finds out that the wall's clock was set. One thread at a time."""

    __slots__ = ("_ahead_us", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ahead_us = clock, ahead_us(clock)

    def step_us(self) -> int:
        """How far it was set forward since the last call (negative: back); 0: it was not, or by 10 ms at most."""
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
    """A clock that stands still until `advance`.

    Its wall time begins at `start_us` (microseconds since 1970) and its monotonic time at 0, so that code
    which takes one for the other shows. Any thread may read it; one thread at a time may advance or set it.
    """

    __slots__ = ("_elapsed_us", "_start_us")

    def __init__(self, start_us: int) -> None:
        self._start_us = start_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._start_us + self._elapsed_us

    def monotonic_us(self) -> int:
        return self._elapsed_us

    def advance(self, us: int) -> None:
        """Moves both times on by `us` microseconds. Raises InvalidArgumentError when `us` is negative."""
        if us < 0:
            raise InvalidArgumentError(f"a clock advances by 0 us or more, not by {us}")
        self._elapsed_us += us

    def set(self, us: int) -> None:
        """Sets the wall time to `us` (microseconds since 1970); the monotonic time stays."""
        self._start_us = us - self._elapsed_us
