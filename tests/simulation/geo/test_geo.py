"""A sample of schedules in every test run, a larger one for planted bugs (tests/thorough.py); `make simulate
SEEDS=1000000` runs more. PIP-33 beside what is shipped."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.thorough import one_in

from ..program import simulate
from ..runner import explain, run_checked
from . import crashes, failovers
from .scenarios import LOSSES, REPEATS, FailOver, Story, behind_the_snapshot, compare, in_order, out_of_order
from .schedule import Schedule

PROGRAM = "tests.simulation.geo"
CRASHES = "tests.simulation.geo.crashes"
FAIL_OVERS = "tests.simulation.geo.failovers"
ROOT = Path(__file__).parents[3]
SCHEDULES = 320 // one_in(16)


def test_sampled_schedules_of_replicated_subscriptions_pass(seed: int) -> None:
    done = simulate(PROGRAM, "--seeds", str(SCHEDULES), "--first", str(seed << 20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout
    shares = re.findall(r"compared with a fail-over in (\d+) of (\d+) schedules", done.stdout)
    assert len(shares) == 1, done.stdout
    compared, completed = map(int, shares[0])
    assert completed == SCHEDULES and compared >= 0.75 * completed, "readiness is compared in nearly all schedules"


def test_a_seed_gives_the_same_run_everywhere(seed: int) -> None:
    """What happens depends on nothing but the seed: neither on the process nor on the order of sets."""
    runs = [simulate(PROGRAM, "--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert runs[0] == runs[1] == explain(seed, Schedule, PROGRAM) + "\n"
    assert f"repeat with: python -m {PROGRAM} --seed {seed}" in runs[0]


def test_runs_are_worth_their_while() -> None:
    """Among a few there are acknowledgements that come early, and of what consumers hold; seeks that lose; handovers;
    deaths; changes of policies; clusters that are restored, and topics that get another identity then; fail-overs that are
    ready and others that are not; messages that come twice, as they must at times."""
    cancelled = taken_over = early = dropped = lost = handovers = dead = ready = compared = repeated = delivered = 0
    failed_over = policies = restored = renewed = 0
    for seed in range(25):
        schedule = Schedule(seed)
        run_checked(schedule)
        truth = schedule.truth
        early += truth.early
        dropped += truth.dropped
        lost += truth.lost_seeks
        handovers += schedule.handovers
        cancelled += schedule.cancelled
        taken_over += schedule.taken_over
        dead += len(truth.dead)
        ready += truth.ready
        compared += truth.compared
        failed_over += truth.failed_over
        policies += schedule.policies
        repeated += truth.repeated
        restored += schedule.restored
        renewed += schedule.renewed
        delivered += truth.delivered
    assert cancelled > 1 and taken_over > 1 and restored > 5 and renewed > 2
    assert early > 50 and dropped > 5 and lost > 0 and handovers > 3 and dead > 3
    assert compared > ready > 20 and delivered > 1000 and failed_over > 21
    assert policies > 5
    assert 0 < repeated < delivered / 4


def test_a_crash_at_any_write_of_either_cluster_breaks_nothing(seed: int) -> None:
    """A share of the moments in every test run, another one each time; all of them for planted bugs."""
    done = simulate(CRASHES, "--seeds", "6", "--first", str(seed << 20), "--share", str(one_in(4)))
    assert done.returncode == 0, done.stdout + done.stderr
    tried = re.findall(r"(\d+) crashes in 6 schedules from seed \d+, 0 failed", done.stdout)
    assert len(tried) == 1 and int(tried[0]) > 60 // one_in(4)


def test_moments_of_crashes_are_found_in_both_clusters() -> None:
    letters = Counter(letter for seed in range(5) for letter, _ in crashes.moments(seed))
    assert {*letters} == {"a", "b"} and min(letters.values()) > 40


# ---- PIP-33 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", LOSSES, ids=lambda story: story.__name__)
def test_pip33_loses_messages_that_replicated_subscriptions_deliver(story: Story) -> None:
    """Nobody got the message; consumers that go on in b do not get it from PIP-33 either."""
    reference, shipped = compare(story)
    assert "lost" not in reference.delivered and {*reference.lost} == {"lost"}
    assert {*shipped.delivered} == {"lost"} and not shipped.lost


def test_pip33_repeats_more_messages_after_a_failover() -> None:
    reference, shipped = compare(out_of_order)
    assert (len(reference.repeated), shipped) == (9, FailOver(9, ["0"], [], []))
    reference, shipped = compare(behind_the_snapshot)
    assert (len(reference.repeated), shipped) == (5, FailOver(6, [], [], []))


def test_pip33_loses_nothing_when_messages_are_acknowledged_in_order() -> None:
    """The reference does what it should where it can: all was acknowledged in order, up to a snapshot."""
    assert compare(in_order) == (FailOver(3, [], [], []), FailOver(3, [], [], []))


def test_the_table_of_fail_overs_is_that_of_the_guide() -> None:
    """The command prints it and finds no broken promise; docs/geo.md has the rows of stories as they are printed."""
    done = simulate(FAIL_OVERS, "--seeds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    stories = 2 + len(LOSSES) + len(REPEATS)
    page = (ROOT / "docs" / "geo.md").read_text()
    assert "\n".join(lines[:stories]) in page and f"python -m {FAIL_OVERS}" in page
    random = [[int(cell.replace(",", "")) for cell in line.split("|")[2:-1]] for line in lines[stories:]]
    assert len(random) == len(failovers.TRAFFIC)
    acknowledged, lost, shipped_lost, repeated, shipped_repeated, promised = zip(*random, strict=True)
    assert not any(shipped_lost)
    assert all(repeats <= most for repeats, most in zip(shipped_repeated, promised, strict=True))
    assert sum(acknowledged) > sum(repeated) > sum(promised)
    assert [count > 0 for count in lost] == [False] * 4 + [True], "messages for b alone are lost with PIP-33"


def test_a_broken_promise_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(failovers, "PROMISE_S", 0.0)
    assert failovers.main(["--seeds", "2"]) == 1
    assert "pyreplog breaks its promise" in capsys.readouterr().err
