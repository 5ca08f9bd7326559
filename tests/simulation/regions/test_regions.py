"""A sample of schedules in every test run; `make simulate SEEDS=100000` runs more."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import SHAPES, Schedule

PROGRAM = "tests.simulation.regions"
SCHEDULES = 320 // one_in(4)


def test_sampled_schedules_of_regions_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    output = simulate(PROGRAM, "--seed", str(seed), hash_seed="1").stdout
    assert output == explain(seed, Schedule, PROGRAM) + "\n"


def test_runs_are_worth_their_while() -> None:
    """Among a few there are all shapes, crashes, targets that go and come back, topics that are created again, and
    messages that are trimmed when all targets have them, or without a target that was removed or detached."""
    crashes = removals = resyncs = created_again = messages = forwarded = 0
    trimmed = unkept = detached = lacking = 0
    shapes: set[str] = set()
    for seed in range(50):
        schedule = Schedule(seed)
        run_checked(schedule)
        shapes.add(schedule.shape)
        crashes += schedule.crashes
        removals += schedule.removals
        resyncs += schedule.resyncs
        created_again += schedule.created_again
        messages += len(schedule.published)
        forwarded += sum(entry.origin is not None for site in schedule.sites for entry in site.log.history)
        trimmed += sum(site.trimmed for site in schedule.sites)
        unkept += sum(site.unkept for site in schedule.sites)
        lacking += sum(bool(site.excused) for site in schedule.sites)
        detached += schedule.detached
    assert shapes == {*SHAPES}
    assert crashes > 10 and removals > 10 and created_again > 5 and resyncs > 5
    assert messages > 1000 and forwarded > 2 * messages - 200
    assert trimmed > 3000 and unkept > 50 and lacking > 3 and detached > 5
