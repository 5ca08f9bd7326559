"""The applier crashes at each step, with both kinds of store."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.thorough import one_in

from .simulation import Schedule, explore


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable logging, as each of the many planned failures is logged."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly once", "at least once"])
def test_an_applier_survives_a_crash_at_every_step(exactly_once: bool, seed: int) -> None:
    """Crash three schedules at every third step, or at every step (tests/thorough.py)."""
    stride = one_in(3)
    assert sum(explore((seed << 8) + n, exactly_once=exactly_once, stride=stride) for n in range(3)) > 300


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly once", "at least once"])
def test_random_schedules_of_an_applier_hold_its_guarantees(exactly_once: bool, seed: int) -> None:
    """Run many schedules without a crash, and count failures and groups that were prepared side by side."""
    failures = side_by_side = 0
    for n in range(200 // one_in(2)):
        schedule = Schedule((seed << 10) + n, exactly_once=exactly_once)
        schedule.run()
        failures += schedule.failures
        side_by_side += schedule.most_in_flight > 1
    assert failures > 20 and side_by_side > 5  # the averages are 350 and 34


def test_a_crash_repeats_at_least_once_and_never_exactly_once(seed: int) -> None:
    def repeats(seed: int, exactly_once: bool) -> int:
        runs = [Schedule(seed, exactly_once=exactly_once, crash_at=step) for step in range(5, 60)]
        for run in runs:
            run.run()
        return sum(run.disk.repeats for run in runs)

    assert repeats(seed, True) == 0
    assert repeats(1, False) > 5, "of a schedule that does, whatever the seed is"
