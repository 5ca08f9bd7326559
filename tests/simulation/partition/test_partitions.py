"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py)."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.partition"
SCHEDULES = 800 // one_in(8)


def test_sampled_schedules_of_partitions_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    outputs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert outputs[0] == outputs[1] == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in outputs[0]


def test_runs_are_worth_their_while() -> None:
    """Among some hundred there are elections, of members of the ELR too, and unclean ones that lose records; cuts, changes
    of the ISR, reassignments, removed segments, deletions by order, acknowledgements of idempotent producers, and transactions, some of which are
    aborted; clocks are set, and transactions time out."""
    names = (
        "elections", "from_elr", "unclean", "lost", "cuts", "trims", "expansions", "shrinks", "reassigned", "acks", "resets",
        "read", "skipped", "deletions", "deleted_everywhere",
    )  # fmt: skip
    counts = dict.fromkeys(names, 0)
    published = committed = fenced = steps = timed_out = gone = 0
    for seed in range(150):
        schedule = Schedule(seed)
        run_checked(schedule)
        for name in names:
            counts[name] += getattr(schedule.invariants, name)
        published += sum(producer.acknowledged for producer in schedule.producers)
        committed += sum(producer.committed for producer in schedule.transactional)
        fenced += schedule.coordinator.fenced
        timed_out += schedule.coordinator.timed_out
        gone += sum(producer.is_gone for producer in schedule.transactional)
        steps += schedule.clocks.steps
    assert counts["elections"] > 500 and counts["cuts"] > 50 and counts["shrinks"] > 300 and counts["acks"] > 3000, (
        counts
    )
    assert all(counts.values()) and published > 1000, (counts, published)
    assert counts["skipped"] > 500 and committed > 100 and fenced, (counts, committed, fenced)
    assert steps > 500 and timed_out > 10 and gone > 10, (steps, timed_out, gone)
