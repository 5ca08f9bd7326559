"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.groups"
SCHEDULES = 400 // one_in(4)


def test_sampled_schedules_of_consumer_groups_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    outputs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert outputs[0] == outputs[1] == explain(seed, Schedule, PROGRAM) + "\n"


def test_runs_are_worth_their_while() -> None:
    """Among a few there are elections that cut the log, rewritten partitions, generations, transactions, and refusals."""
    reconciled = elections = lost = rewritten = acks = assigned = fetched = refused = transactions = 0
    for seed in range(60):
        schedule = Schedule(seed)
        run_checked(schedule)
        log, invariants = schedule.log, schedule.invariants
        elections, lost, rewritten = elections + log.elections, lost + log.lost, rewritten + log.rewritten
        acks, assigned, fetched = acks + invariants.acks, assigned + invariants.assigned, fetched + invariants.fetched
        reconciled += invariants.reconciled
        refused, transactions = refused + invariants.refused, transactions + invariants.transactions
    assert elections > 80 and lost > 5 and rewritten > 30, (elections, lost, rewritten)
    assert acks > 2_000 and assigned > 300 and fetched > 300, (acks, assigned, fetched)
    assert refused > 30 and transactions > 50 and reconciled > 150, (refused, transactions, reconciled)
