"""A sample of schedules in every test run; `make simulate SEEDS=1000000` runs more."""

from __future__ import annotations

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from .schedule import Schedule

PROGRAM = "tests.simulation.autorecovery"
SCHEDULES = 480 // one_in(8)


def test_sampled_schedules_of_auto_recovery_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    outputs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert outputs[0] == outputs[1] == explain(seed, Schedule, PROGRAM) + "\n"


def test_runs_differ_and_are_worth_their_while() -> None:
    """Among a few dozen there are lost disks, drains, killed workers, orders, and copies that were moved."""
    lost = drained = ordered = moved = repaired = actual = rescued = 0
    for seed in range(60):
        schedule = Schedule(seed)
        run_checked(schedule)
        lost += schedule.disk_losses > 0
        drained += schedule.drains > 0
        ordered += schedule.orders_placed > 0
        moved += any(life.moves for life in schedule.lives)
        repaired += any(life.repairs for life in schedule.lives)
        actual += any(life.found for life in schedule.lives)
        rescued += any(life.rescues for life in schedule.lives)
    counts = {"lost": lost, "drained": drained, "ordered": ordered, "moved": moved}
    assert min(counts.values()) > 4, counts
    rarer = {"repaired": repaired, "found": actual, "rescued": rescued}
    assert min(rarer.values()) > 0, rarer


def test_a_member_without_entries_needs_no_proof() -> None:
    """A worker waited for ever for the proof of a fragment whose few entries lie on other members."""
    run_checked(Schedule(1))


def test_a_proof_is_void_when_surplus_copies_go() -> None:
    run_checked(Schedule(3))
