"""The choice of bookies for the ensemble of a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog.ledger.placement import Candidate, choose

TEN = [Candidate(f"bookie{i}") for i in range(10)]
RACKS = "abcd"


def new(ledger: int, count: int, candidates: Iterable[Candidate], write_quorum: int | None = None) -> list[str]:
    """Choose the first ensemble of a ledger."""
    return list(
        choose(ledger, [None] * count, range(count), candidates, write_quorum=write_quorum or max(count, 1)).values()
    )


def replacement_of(ledger: int, turn: int = 0) -> str:
    return choose(ledger, [None], [0], TEN, write_quorum=1, turn=turn)[0]


def spread(racks: Sequence[str | None], write_quorum: int) -> tuple[int, int]:
    """Return the number of racks of the window with the fewest, and the sum over all windows, by which ensembles are
    compared."""
    size = len(racks)
    windows = [{racks[(at + k) % size] for k in range(write_quorum)} - {None} for at in range(size)]
    return min(map(len, windows)), sum(map(len, windows))


def best_spread(
    racks: list[str | None], places: Sequence[int], free: Mapping[str, int], write_quorum: int
) -> tuple[int, int]:
    """Find the best spread by trying all ensembles."""
    pool = [rack for rack, count in free.items() for _ in range(min(count, len(places)))]
    best = (-1, -1)
    for filling in set(permutations(pool, len(places))):
        for place, rack in zip(places, filling, strict=True):
            racks[place] = rack
        best = max(best, spread(racks, write_quorum))
    return best


def test_the_same_arguments_give_the_same_answer() -> None:
    assert new(7, 3, TEN) == new(7, 3, reversed(TEN))


@given(st.integers(0, 1 << 62), st.integers(0, 12), st.sets(st.sampled_from([c.bookie for c in TEN])))
def test_no_bookie_twice_and_none_that_is_taken(ledger: int, count: int, taken: set[str]) -> None:
    chosen = choose(ledger, [None] * count, range(count), TEN, write_quorum=2, taken=taken)
    assert len(set(chosen.values())) == len(chosen) == min(count, 10 - len(taken))
    assert list(chosen) == list(range(len(chosen)))
    assert not taken & set(chosen.values())


def test_no_bookie_takes_a_second_place() -> None:
    members = ["bookie0", "bookie1", "bookie2"]
    for ledger in range(50):
        chosen = choose(ledger, members, [1], TEN, write_quorum=3)
        assert not {"bookie0", "bookie2"} & set(chosen.values())


def test_bookie_of_the_ensemble_may_be_chosen_again_unless_taken() -> None:
    assert choose(7, ["x", "y"], [1], [Candidate("y")], write_quorum=2) == {1: "y"}
    assert choose(7, ["x", "y"], [1], [Candidate("y")], write_quorum=2, taken={"y"}) == {}


def test_if_bookies_are_too_few_the_first_places_are_filled() -> None:
    chosen = choose(7, ["a", "b", "c", "d"], [3, 1, 2], [Candidate("x"), Candidate("y")], write_quorum=2)
    assert list(chosen) == [3, 1] and set(chosen.values()) == {"x", "y"}


def test_ledgers_are_spread_evenly() -> None:
    load = Counter(bookie for ledger in range(2000) for bookie in new(ledger, 3, TEN))
    assert all(480 < load[candidate.bookie] < 720 for candidate in TEN)


def test_bookies_with_more_space_are_chosen_more_often() -> None:
    candidates = [Candidate("large", weight=3e9), Candidate("small", weight=1e9)]
    first = Counter(new(ledger, 1, candidates)[0] for ledger in range(2000))
    assert 2.5 < first["large"] / first["small"] < 3.6


def test_a_full_bookie_is_the_last_choice() -> None:
    candidates = [Candidate("full", weight=0.0), *TEN]
    assert not any("full" in new(ledger, 3, candidates) for ledger in range(200))


def test_losing_a_bookie_moves_only_what_it_held() -> None:
    fewer = TEN[1:]
    for ledger in range(200):
        before, after = new(ledger, 3, TEN), new(ledger, 3, fewer)
        assert set(before) - {"bookie0"} <= set(after)


def test_ensembles_are_spread_over_racks() -> None:
    candidates = [Candidate(f"bookie{i}", rack=f"rack{i % 3}") for i in range(9)]
    for ledger in range(100):
        racks = Counter(int(bookie[-1]) % 3 for bookie in new(ledger, 3, candidates))
        assert len(racks) == 3
        racks = Counter(int(bookie[-1]) % 3 for bookie in new(ledger, 5, candidates))
        assert sorted(racks.values()) == [1, 2, 2]


def test_every_window_of_a_wide_ensemble_has_all_the_racks_it_can() -> None:
    candidates = [Candidate(f"{rack}{i}", rack=rack) for rack in "abc" for i in range(3)]
    for ledger in range(100):
        members = new(ledger, 6, candidates, write_quorum=3)
        assert spread([name[0] for name in members], 3) == (3, 18), members


def test_replacing_one_member_after_the_other_never_gathers_copies_in_one_rack() -> None:
    """BookKeeper #3971: each choice on its own may use the rack of a member that stays."""
    candidates = [Candidate(f"{rack}{i}", rack=rack) for rack in "ab" for i in range(6)]
    racks = {candidate.bookie: candidate.rack for candidate in candidates}
    for ledger in range(60):
        members: list[str | None] = ["a0", "b0", "a1", "b1"]
        for turn in range(12):
            place = (turn * 7 + ledger) % 4
            gone = {str(members[place])}
            members[place] = choose(
                ledger, members, [place], candidates, write_quorum=2, racks=racks, taken=gone, turn=turn
            )[place]
            assert spread([str(name)[0] for name in members], 2)[0] == 2, members


def test_a_member_in_no_known_rack_counts_for_none() -> None:
    """It might be in any rack, so that the window gets a rack that the others lack."""
    candidates = [Candidate("a1", rack="a"), Candidate("b1", rack="b", weight=1e-9)]
    assert choose(7, ["a0", "x", "y"], [2], candidates, write_quorum=3, racks={"a0": "a"}) == {2: "b1"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_windows_have_as_many_racks_as_the_best_of_all_choices_gives(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    write_quorum = data.draw(st.integers(1, size))
    layout = [data.draw(st.sampled_from([*RACKS, None])) for _ in range(size)]
    free = {rack: data.draw(st.integers(0, 3)) for rack in RACKS}
    places = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, min(size, 4, sum(free.values()))))]
    members = [f"m{at}" for at in range(size)]
    racks = {name: rack for name, rack in zip(members, layout, strict=True) if rack is not None}
    candidates = [Candidate(f"{rack}{i}", rack=rack) for rack, count in free.items() for i in range(count)]
    chosen = choose(data.draw(st.integers(0, 99)), members, places, candidates, write_quorum=write_quorum, racks=racks)
    assert set(chosen) == set(places) and len(set(chosen.values())) == len(places)
    after = [chosen[at][0] if at in chosen else rack for at, rack in enumerate(layout)]
    assert spread(after, write_quorum) == best_spread(layout.copy(), places, free, write_quorum)


def test_a_large_ensemble_of_scarce_racks_is_chosen_soon() -> None:
    """When each choice leaves a window with too few racks, not all choices are tried."""
    candidates = [
        Candidate(f"{rack}{i}", rack=rack)
        for rack, count in zip("abcdefgh", (90, 1, 1, 1, 1, 1, 1, 1), strict=True)
        for i in range(count)
    ]
    members = new(7, 60, candidates, write_quorum=3)
    assert len(set(members)) == 60 and {name[0] for name in members} == set("abcdefgh")


def test_later_turns_choose_other_replacements() -> None:
    """If the replacement of a ledger fails as well, the ledger is given another one."""
    assert len({replacement_of(7, turn) for turn in range(30)}) > 5


def test_no_bookie_is_chosen_from_no_candidates() -> None:
    assert new(7, 3, []) == []
