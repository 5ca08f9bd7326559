"""Timers of a reactor."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable

from pyreplog.clock import Clock
from pyreplog.timing_wheel import TimingWheel

TICK_US = 1000


class Timer:
    """One scheduled call; `cancel` cancels it."""

    __slots__ = ("_deadline_us", "_timers", "call")

    def __init__(self, timers: Timers, call: Callable[[], object], deadline_us: int) -> None:
        self._timers, self.call, self._deadline_us = timers, call, deadline_us

    def cancel(self) -> bool:
        """Cancel the call; return False if it was made, or is about to be. Any thread may call it."""
        return self._timers.cancel(self, self._deadline_us)


class Timers:
    """The timers of a reactor: a timing wheel with a lock and a clock. Any thread may use it."""

    __slots__ = ("_clock", "_lock", "_wheel", "next_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = allocate_lock()
        self._wheel: TimingWheel[Timer] = TimingWheel(TICK_US)
        self.next_us: int | None = None
        """When the next timer is due; None: there is none. An attribute, because every message reads it."""

    def add(self, delay_s: float, call: Callable[[], object]) -> tuple[Timer, bool]:
        """Return a new timer, and whether it is the next one to expire."""
        timer = Timer(self, call, self._clock.monotonic_us() + int(delay_s * 1e6))
        with self._lock:
            next_us = self.next_us
            self._wheel.add(timer, timer._deadline_us)
            self.next_us = self._wheel.next_deadline_us()
        return timer, next_us is None or timer._deadline_us < next_us

    def cancel(self, timer: Timer, deadline_us: int) -> bool:
        """Cancel a timer; return whether it had not expired."""
        with self._lock:
            cancelled = self._wheel.cancel(timer, deadline_us)
            self.next_us = self._wheel.next_deadline_us()
        return cancelled

    def due(self) -> list[Timer]:
        """Return the timers that have expired, each once."""
        next_us = self.next_us
        if next_us is None or next_us > (now_us := self._clock.monotonic_us()):
            return []
        with self._lock:
            due = self._wheel.expire(now_us)
            self.next_us = self._wheel.next_deadline_us()
        return due
