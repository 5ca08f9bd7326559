"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more. PIP-33 beside what is shipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain
from .scenarios import LOSSES, Clusters, behind_the_snapshot, compare, in_order, out_of_order
from .schedule import Schedule

PROGRAM = "tests.simulation.geo"
SCHEDULES = 320 // one_in(16)


def test_schedules(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    runs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert runs[0] == runs[1] == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in runs[0]


def test_runs_are_worth_their_while() -> None:
    """Among a few there are acknowledgements that come early, and of what consumers hold; seeks that lose; handovers;
    deaths; fail-overs that are ready and others that are not; messages that come twice, as they must at times."""
    cancelled = taken_over = early = dropped = lost = handovers = dead = ready = compared = repeated = delivered = 0
    failed_over = 0
    for seed in range(25):
        schedule = Schedule(seed)
        schedule.run()
        truth = schedule.truth
        early += truth.early
        dropped += truth.dropped
        lost += truth.lost_seeks
        handovers += schedule.handovers
        cancelled += schedule.cancelled
        taken_over += schedule.taken_over
        dead += len(truth.dead)
        ready += truth.ready
        compared += truth.compared
        failed_over += truth.failed_over
        repeated += truth.repeated
        delivered += truth.delivered
    assert cancelled > 1 and taken_over > 1
    assert early > 50 and dropped > 5 and lost > 0 and handovers > 3 and dead > 3
    assert compared > ready > 20 and delivered > 1000 and failed_over > 5
    assert 0 < repeated < delivered / 4


# ---- PIP-33 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", LOSSES, ids=lambda story: story.__name__)
def test_what_pip33_loses(story: Callable[[Callable[[list[str]], Clusters]], list[str]]) -> None:
    """Nobody got the message; consumers that go on in b do not get it from PIP-33 either."""
    reference, shipped = compare(story)
    assert "lost" not in reference
    assert {*shipped} == {"lost"}


def test_what_pip33_repeats() -> None:
    reference, shipped = compare(out_of_order)
    assert (len(reference), shipped) == (10, ["0"])
    reference, shipped = compare(behind_the_snapshot)
    assert (len(reference), shipped) == (5, [])


def test_what_pip33_is_for() -> None:
    """The reference does what it should where it can: all was acknowledged in order, up to a snapshot."""
    assert compare(in_order) == ([], [])
