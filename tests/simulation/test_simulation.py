"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more."""

from __future__ import annotations

import pytest

from pyreplog.future import AppendFuture, settle_all
from tests.thorough import one_in

from .invariants import BrokenInvariantError, demand
from .program import simulate
from .runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation"
SCHEDULES = 8000 // one_in(8)


def test_sampled_schedules_of_ledgers_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    outputs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert outputs[0] == outputs[1] == explain(seed) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in outputs[0]


def test_runs_differ_and_are_worth_their_while() -> None:
    """Among a few hundred there are ensemble changes, recoveries, lost copies, degraded writers, some of which have all
    bookies again, members that had to leave and are replaced, and ledgers of all lengths."""
    changed = recovered = lossy = degraded = whole_again = left = 0
    ends = set()
    for seed in range(300):
        schedule = Schedule(seed)
        run_checked(schedule)
        metadata = schedule.store.metadata
        ends.add(metadata.last_entry)
        changed += len(metadata.fragments) > 1
        had_to_leave = schedule.nodes.had_to_leave
        left += bool(had_to_leave & metadata.bookies() - set(metadata.last_fragment.ensemble))
        recovered += any(client.has_ended for client in schedule.clients if hasattr(client, "has_ended"))
        lossy += any(node.has_lost for node in schedule.nodes.by_name.values())
        degraded += schedule.writer.was_degraded
        whole_again += schedule.writer.was_degraded and not schedule.writer.machine.degraded
    assert left > 3
    assert degraded > 10 and whole_again > 1
    assert changed > 30 and recovered > 100 and lossy > 30 and len(ends) > 25


def test_a_note_for_a_close_names_an_entry_that_the_bookie_is_to_hold() -> None:
    """A recovery gave the first entries of a bookie to another one; the writer closed on top of that."""
    run_checked(Schedule(524211732874307))


def test_a_demand_in_a_callback_that_the_shipped_code_only_logs_fails_the_run() -> None:
    class Run:
        def run(self) -> None:
            future: AppendFuture[None] = AppendFuture()
            future.add_done_callback(lambda _: demand(False, "Never", "this does not hold"))
            settle_all([(future, None)])

    with pytest.raises(BrokenInvariantError, match="Never: this does not hold"):
        run_checked(Run())
