"""A sample of schedules in every test run; `make simulate SEEDS=100000` runs more."""

from __future__ import annotations

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.topic"
SCHEDULES = 16


def test_sampled_schedules_of_topics_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    output = simulate(PROGRAM, "--seed", str(seed), hash_seed="1").stdout
    assert output == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in output


def test_runs_are_worth_their_while() -> None:
    """Among a few there are takeovers, kills, messages of unknown outcome, and messages that come again; and a
    client whose connections break, that flushes and seeks."""
    confirmed = taken = killed = refused = repeated = breaks = flushes = seeks = replicated = sessions = 0
    for seed in range(12):
        schedule = Schedule(seed)
        run_checked(schedule)
        invariants = schedule.invariants
        confirmed += len(invariants.confirmed)
        taken += invariants.attachments - 1
        killed += len(schedule.killed)
        refused += invariants.refused
        repeated += invariants.repeated
        breaks += schedule.far.road.breaks
        flushes += schedule.far.flushes
        seeks += schedule.far.seeks
        replicated += schedule.source.told
        sessions += schedule.source.session
    assert confirmed > 100 and taken > 8 and killed > 3 and refused > 3 and repeated > 20
    assert breaks > 5 and flushes > 20 and seeks > 0 and replicated > 100 and sessions > 12
