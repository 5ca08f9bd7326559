"""Bookies that failed lately are not chosen for a while, and longer after each failure."""

from __future__ import annotations

from pyreplog.clock import ManualClock
from pyreplog.ledger.quarantine import MOST_S, Quarantine


def held_s(quarantine: Quarantine, clock: ManualClock, bookie: str = "a") -> float:
    """Let a bookie fail now; return for how many seconds it is in quarantine."""
    begin = clock.monotonic_us()
    quarantine.add(bookie)
    assert bookie in quarantine
    while bookie in quarantine:
        clock.advance(100_000)
    return (clock.monotonic_us() - begin) / 1e6


def test_a_bookie_is_held_longer_each_time() -> None:
    clock = ManualClock(0)
    quarantine = Quarantine(clock, lambda: 1.0)
    assert [held_s(quarantine, clock) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "b" not in quarantine and held_s(quarantine, clock, "b") == 1


def test_quarantine_time_restarts_after_a_time_without_failures() -> None:
    clock = ManualClock(0)
    quarantine = Quarantine(clock, lambda: 1.0)
    assert [held_s(quarantine, clock) for _ in range(3)] == [1, 2, 4]
    clock.advance(int(MOST_S * 1e6) + 1)
    assert held_s(quarantine, clock) == 1


def test_simultaneous_failures_of_a_bookie_count_as_one() -> None:
    clock = ManualClock(0)
    quarantine = Quarantine(clock, lambda: 1.0)
    for _ in range(100):
        quarantine.add("a")
    assert held_s(quarantine, clock) == 1
    assert held_s(quarantine, clock) == 2


def test_bookie_that_registers_again_leaves_quarantine_but_keeps_its_failure_count() -> None:
    clock = ManualClock(0)
    quarantine = Quarantine(clock, lambda: 1.0)
    quarantine.add("a")
    quarantine.add("b")
    quarantine.release(["a", "c"])
    assert "a" not in quarantine and "b" in quarantine
    assert held_s(quarantine, clock) == 2, "but not forgotten: it may fail again, as often as it registers"
