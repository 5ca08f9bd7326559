"""The two clocks."""

from __future__ import annotations

import time

import pytest

from pyreplog.clock import Clock, ClockWatch, ManualClock, SystemClock, ahead_us
from pyreplog.errors import InvalidArgumentError


def test_system_clock_returns_wall_time_in_microseconds() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns()
    now = clock.now_us()
    after = time.time_ns()
    assert before // 1000 <= now <= after // 1000


def test_system_clock_returns_monotonic_time_in_microseconds() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic_ns()
    now = clock.monotonic_us()
    after = time.monotonic_ns()
    assert before // 1000 <= now <= after // 1000


def test_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock: Clock = ManualClock(start_us=1_700_000_000_000_000)
    assert [clock.now_us(), clock.now_us()] == [1_700_000_000_000_000] * 2
    assert [clock.monotonic_us(), clock.monotonic_us()] == [0, 0]


def test_advancing_a_manual_clock_moves_both_times() -> None:
    clock = ManualClock(start_us=100)
    clock.advance(7)
    clock.advance(0)
    assert (clock.now_us(), clock.monotonic_us()) == (107, 7)


def test_a_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(start_us=100)
    with pytest.raises(InvalidArgumentError, match="0 or more, found -1"):
        clock.advance(-1)
    assert (clock.now_us(), clock.monotonic_us()) == (100, 0)


def test_a_clock_that_is_set_is_noticed_once() -> None:
    clock = ManualClock(start_us=10**15)
    watch = ClockWatch(clock)
    clock.advance(3_600_000_000)
    assert watch.step_us() == 0
    clock.set(5)
    assert clock.now_us() == 5 and clock.monotonic_us() == 3_600_000_000
    assert watch.step_us() == 5 - 10**15 - 3_600_000_000
    assert watch.step_us() == 0
    for _ in range(2):
        clock.set(clock.now_us() + 6_000)  # two small ones are one
    assert watch.step_us() == 12_000


def test_the_system_clock_is_not_set_meanwhile() -> None:
    assert ahead_us(SystemClock()) > 0
