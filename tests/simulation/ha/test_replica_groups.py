"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain
from .schedule import Schedule

PROGRAM = "tests.simulation.ha"
SCHEDULES = 2000 // one_in(4)


def test_schedules(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    there = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert there[0] == there[1] == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in there[0]


def test_runs_are_worth_their_while() -> None:
    """Among a few hundred there are elections, cuts, changes of members, masters that go on alone, losses by force; what
    they committed alone is owed for a while; retention removes segments, and leaves some behind that nobody kept them for."""
    elected = cut = changed = alone = acknowledged = forced = owed = trimmed = behind = 0
    for seed in range(200):
        schedule = Schedule(seed)
        schedule.run()
        found = schedule.invariants
        acknowledged += found.acknowledged
        elected += found.elections
        cut += found.cuts
        changed += found.changes
        alone += found.went_alone
        forced += found.lost_by_force
        owed += found.owed
        trimmed += found.trimmed
        behind += found.left_behind
    assert acknowledged > 1000 and elected > 100 and cut > 30 and changed > 30 and alone > 20 and forced > 0
    assert owed > 20 and trimmed > 200 and behind > 3
