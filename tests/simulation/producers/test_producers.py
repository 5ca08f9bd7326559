"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.producers"
SCHEDULES = 800 // one_in(8)


def test_sampled_schedules_of_global_producers_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    output = simulate(PROGRAM, "--seed", str(seed), hash_seed="1").stdout
    assert output == explain(seed, Schedule, PROGRAM) + "\n"


def test_runs_are_worth_their_while() -> None:
    """Among a few there are crashes, moves, numbers that are sent again, and messages that become gaps."""
    crashes = moves = repeated = duplicates = 0
    for seed in range(40):
        schedule = Schedule(seed)
        run_checked(schedule)
        crashes += sum(place.crashes for place in schedule.places)
        moves += sum(mover.moves for mover in schedule.movers)
        repeated += sum(mover.repeated for mover in schedule.movers)
        duplicates += schedule.invariants.duplicates
    assert crashes > 10 and moves > 100 and repeated > 200 and duplicates > 100
