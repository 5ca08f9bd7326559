"""A sample of schedules in every test run; `make simulate SEEDS=100000` runs more."""

from __future__ import annotations

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.replication"
SCHEDULES = 300


def test_sampled_schedules_of_replication_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    output = simulate(PROGRAM, "--seed", str(seed), hash_seed="1").stdout
    assert output == explain(seed, Schedule, PROGRAM) + "\n"


def test_runs_are_worth_their_while() -> None:
    """Among a few there are crashes of both ends, lost connections, refusals, gaps, forwarded messages and
    forwarders, sources and targets that were restored."""
    crashes = kills = connections = refusals = forwarded = own = trimmed = restored = renewed = targets = 0
    causes: set[str] = set()
    for seed in range(80):
        schedule = Schedule(seed)
        run_checked(schedule)
        crashes += schedule.target.crashes
        kills += schedule.kills
        connections += schedule.connections
        refusals += schedule.target.refusals
        own += schedule.invariants.messages.get(schedule.log.own, 0)
        forwarded += schedule.invariants.messages.get(schedule.log.other, 0)
        trimmed += schedule.log.start > 0
        restored += schedule.restored
        renewed += schedule.renewed
        targets += schedule.targets_restored
        causes |= {cause.name for cause in schedule.invariants.causes}
    assert crashes > 10 and kills > 10 and connections > 80 and refusals > 20
    assert own > 3000 and forwarded > 500 and trimmed > 10 and restored > 2 and renewed > 1 and targets > 2
    assert {"FOREIGN", "FILTERED", "EXPIRED", "REFUSED", "DUPLICATE"} <= causes
