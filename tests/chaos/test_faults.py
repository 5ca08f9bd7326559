"""A round of chaos that disturbed nobody is not taken for one that did."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import Fault, Faults
from tests.chaos.partitions import check_effects
from tests.chaos.victims import Victim
from tests.histories.history import Append, History, Outcome, Transaction


class FaultsOf(Faults):
    def __init__(self, *faults: Fault) -> None:
        super().__init__([])
        self.past = [*faults]

    def _run(self) -> None:
        pass


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    victim = Victim("victim", tmp_path, ["http.server", "--help"], has_clock=False)
    yield victim
    victim.end()


def test_a_round_without_a_fault_fails() -> None:
    faults = FaultsOf()
    faults.start()
    with pytest.raises(AssertionError, match="no fault"):
        faults.end()


def test_a_process_that_ended_by_itself_was_not_killed(victim: Victim) -> None:
    victim.spawn()
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RuntimeError, match="before it was killed"):
        victim.kill()


def test_a_clock_without_libfaketime_cannot_be_set(victim: Victim) -> None:
    victim.spawn()
    with pytest.raises(RuntimeError, match="without libfaketime"):
        victim.set_clock(60)


@pytest.mark.parametrize(
    ("kind", "duration_s", "outcome", "expected"),
    [
        ("kill -9", 0.01, Outcome.COMMITTED, ["kill -9 neither delayed nor failed anything"]),
        ("kill -9", 0.01, Outcome.UNKNOWN, []),
        ("SIGSTOP", 1.0, Outcome.COMMITTED, []),
        ("clock", 0.01, Outcome.COMMITTED, []),
    ],
    ids=["a kill that nobody noticed", "a failure", "a delay", "a clock"],
)
def test_kills_and_stops_must_be_noticed(kind: str, duration_s: float, outcome: Outcome, expected: list[str]) -> None:
    now = time.monotonic()
    history = History([Transaction(now, now + duration_s, outcome, (Append(0, "v"),))])
    assert check_effects(history, FaultsOf(Fault(kind, "a", now, now + 1.0))) == expected
