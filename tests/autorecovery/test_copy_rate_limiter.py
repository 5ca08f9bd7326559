"""How fast a worker copies: up to its limit, and slower after failures."""

from __future__ import annotations

from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.clock import ManualClock

LIMIT = 1_000_000


def test_copies_without_a_limit_do_not_wait() -> None:
    rate_limiter = CopyRateLimiter(None, ManualClock(0))
    rate_limiter.slow_down(0)
    assert rate_limiter.rate is None and rate_limiter.spend(1 << 30) == 0.0


def test_spend_beyond_the_rate_returns_the_time_to_wait() -> None:
    clock = ManualClock(0)
    rate_limiter = CopyRateLimiter(LIMIT, clock)
    assert rate_limiter.spend(50_000) == 0.0, "within a tenth of a second"
    assert 0.95 < rate_limiter.spend(1_050_000) < 1.05
    clock.advance(500_000)
    assert 0.45 < rate_limiter.spend(0) < 0.55


def test_copies_that_fail_together_halve_the_rate_once() -> None:
    """A bookie that stops ends all copies that read from it. With 64 at a time, nothing would be left of the rate."""
    clock = ManualClock(0)
    rate_limiter = CopyRateLimiter(LIMIT, clock)
    began = [clock.monotonic_us()] * 64
    clock.advance(5_000_000)  # the requests to a bookie time out
    for began_us in began:
        clock.advance(1_000)
        rate_limiter.slow_down(began_us)
    assert rate_limiter.rate == LIMIT // 2
    clock.advance(1_000)
    rate_limiter.slow_down(clock.monotonic_us())
    assert rate_limiter.rate == LIMIT // 4, "another failure, of a copy that was slower already"


def test_copy_rate_recovers_while_one_ledger_is_copied() -> None:
    """However large that ledger is: a rate that rose with each ledger that is done would never rise."""
    clock = ManualClock(0)
    rate_limiter = CopyRateLimiter(LIMIT, clock)
    for _ in range(20):
        rate_limiter.slow_down(clock.monotonic_us())
    assert rate_limiter.rate == 4096
    rates = []
    while rate_limiter.rate != LIMIT:
        rates.append(rate_limiter.rate)
        clock.advance(500_000)
        rate_limiter.spend(100)
        assert len(rates) < 100
    assert rates == sorted(rates) and len(rates) >= 2 * 20, "each second, by a quarter"


def test_a_copy_that_began_before_the_rate_rose_counts() -> None:
    clock = ManualClock(0)
    rate_limiter = CopyRateLimiter(LIMIT, clock)
    rate_limiter.slow_down(clock.monotonic_us())
    clock.advance(500_000)
    began_us = clock.monotonic_us()
    clock.advance(1_000_000)
    rate_limiter.spend(1)
    assert rate_limiter.rate == 625_001
    rate_limiter.slow_down(began_us)
    assert rate_limiter.rate == 312_500


def test_a_debt_stays_when_the_rate_rises() -> None:
    clock = ManualClock(0)
    rate_limiter = CopyRateLimiter(LIMIT, clock)
    rate_limiter.slow_down(clock.monotonic_us())
    assert 19 < rate_limiter.spend(10_000_000) < 20
    clock.advance(1_000_000)
    assert 14 < rate_limiter.spend(0) < 16, "9.5 MB are owed, at 625 kB a second"
