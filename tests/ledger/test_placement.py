"""Which bookies hold a ledger."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyreplog.ledger.placement import Candidate, choose

TEN = [Candidate(f"bookie{i}") for i in range(10)]


def test_the_same_arguments_give_the_same_answer() -> None:
    assert choose(7, 3, TEN, set()) == choose(7, 3, reversed(TEN), set())


@given(st.integers(0, 1 << 62), st.integers(0, 12), st.sets(st.sampled_from([c.bookie for c in TEN])))
def test_never_twice_and_never_who_is_taken(ledger: int, count: int, taken: set[str]) -> None:
    chosen = choose(ledger, count, TEN, taken)
    assert len(set(chosen)) == len(chosen) == min(count, 10 - len(taken))
    assert not taken & set(chosen)


def test_ledgers_are_spread_evenly() -> None:
    load = Counter(bookie for ledger in range(2000) for bookie in choose(ledger, 3, TEN, set()))
    assert all(480 < load[candidate.bookie] < 720 for candidate in TEN)


def test_space_weighs() -> None:
    candidates = [Candidate("large", weight=3e9), Candidate("small", weight=1e9)]
    first = Counter(choose(ledger, 1, candidates, set())[0] for ledger in range(2000))
    assert 2.5 < first["large"] / first["small"] < 3.6


def test_a_full_bookie_is_the_last_choice() -> None:
    candidates = [Candidate("full", weight=0.0), *TEN]
    assert not any("full" in choose(ledger, 3, candidates, set()) for ledger in range(200))


def test_losing_a_bookie_moves_only_what_it_held() -> None:
    fewer = TEN[1:]
    for ledger in range(200):
        before, after = choose(ledger, 3, TEN, set()), choose(ledger, 3, fewer, set())
        assert set(before) - {"bookie0"} <= set(after)


def test_racks_are_spread() -> None:
    candidates = [Candidate(f"bookie{i}", rack=f"rack{i % 3}") for i in range(9)]
    for ledger in range(100):
        racks = Counter(int(bookie[-1]) % 3 for bookie in choose(ledger, 3, candidates, set()))
        assert len(racks) == 3
        racks = Counter(int(bookie[-1]) % 3 for bookie in choose(ledger, 5, candidates, set()))
        assert sorted(racks.values()) == [1, 2, 2]


def test_turns_differ() -> None:
    """So that a ledger whose replacement fails, too, is given another one."""
    assert len({choose(7, 1, TEN, set(), turn=turn)[0] for turn in range(30)}) > 5


def test_nobody_is_there() -> None:
    assert choose(7, 3, [], set()) == []
