"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.thorough import one_in

from ..invariants import BrokenInvariantError
from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.ha"
SCHEDULES = 2000 // one_in(8)


def test_sampled_schedules_of_replica_groups_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_each_member_is_promoted_at_every_step(seed: int) -> None:
    """Of each member, before any event of three schedules, whatever else goes wrong in them: one try in 32, or each
    one (tests/thorough.py)."""
    drawn = (seed << 20 | number for number in itertools.count())
    quiet = (draw for draw in drawn if (plan := Schedule(draw).plan).members > 1 and not plan.storm)
    stride, elections = one_in(32), 0
    for chosen in itertools.islice(quiet, 3):
        tries = [(moment, place) for moment in moments_of(chosen) for place in range(Schedule(chosen).plan.members)]
        for moment, place in tries[seed % stride :: stride]:
            schedule = Schedule(chosen)
            schedule.world.at(moment, schedule.nodes[place].promote)
            try:
                run_checked(schedule)
            except BrokenInvariantError as error:
                raise AssertionError(f"seed {chosen}, {schedule.nodes[place]} promoted at {moment}: {error}") from error
            elections += schedule.invariants.elections
    assert elections > 5


def moments_of(seed: int) -> list[float]:
    """When something happens in a schedule, until its faults end."""
    schedule, times = Schedule(seed), set[float]()
    at = schedule.world.at

    def noted(time: float, call: Callable[..., Any], *args: Any) -> None:
        times.add(time)
        at(time, call, *args)

    schedule.world.at = noted  # type: ignore[method-assign]
    run_checked(schedule)
    return sorted(time for time in times if time <= schedule.plan.busy_s)


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    outputs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert outputs[0] == outputs[1] == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in outputs[0]


def test_runs_are_worth_their_while() -> None:
    """Among a few hundred there are elections, cuts, changes of members, masters that go on alone, losses by force; what
    they committed alone is owed for a while; retention removes segments, and leaves some behind that nobody kept them for."""
    elected = cut = changed = alone = acknowledged = forced = owed = trimmed = behind = 0
    for seed in range(200):
        schedule = Schedule(seed)
        run_checked(schedule)
        invariants = schedule.invariants
        acknowledged += invariants.acknowledged
        elected += invariants.elections
        cut += invariants.cuts
        changed += invariants.changes
        alone += invariants.went_alone
        forced += invariants.lost_by_force
        owed += invariants.owed
        trimmed += invariants.trimmed
        behind += invariants.left_behind
    assert acknowledged > 1000 and elected > 100 and cut > 30 and changed > 30 and alone > 20 and forced > 0
    assert owed > 20 and trimmed > 200 and behind > 3
