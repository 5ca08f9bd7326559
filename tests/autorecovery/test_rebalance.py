"""Plans of moves between bookies: they end, and worsen nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from pyreplog.autorecovery.protocol.rack_windows import keeps_racks, single_rack_windows, window_racks
from pyreplog.autorecovery.protocol.rebalance import (
    SLACK,
    BookieLoad,
    LedgerCopies,
    NoMoveReason,
    RebalancePlan,
    overfull,
    plan_moves,
)
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State

FREE = 1_000_000


def ledger(number: int, *ensembles: Sequence[str], write_quorum: int = 2, size: int = 100) -> LedgerCopies:
    """Copies of the same size on each member."""
    members = {bookie for ensemble in ensembles for bookie in ensemble}
    return LedgerCopies(number, write_quorum, tuple(map(tuple, ensembles)), dict.fromkeys(members, size))


def used(ledgers: Sequence[LedgerCopies], bookie: str) -> int:
    return sum(copies.sizes.get(bookie, 0) for copies in ledgers)


def loads(
    ledgers: Sequence[LedgerCopies], racks: Mapping[str, str], *, read_only: Sequence[str] = (), free: int = FREE
) -> list[BookieLoad]:
    return [
        BookieLoad(bookie, used(ledgers, bookie), free - used(ledgers, bookie), rack, bookie not in read_only)
        for bookie, rack in racks.items()
    ]


def applied(ledgers: Sequence[LedgerCopies], plan: RebalancePlan) -> list[LedgerCopies]:
    moves = {move.ledger: move for move in plan.moves}
    return [
        copies.moved(moves[copies.ledger].source, moves[copies.ledger].target) if copies.ledger in moves else copies
        for copies in ledgers
    ]


NO_RACKS = dict.fromkeys("abcde", "")


def test_copies_move_from_the_full_to_the_empty() -> None:
    """E = 3, Qw = 2."""
    ledgers = [ledger(number, "abc") for number in range(30)]
    plan = plan_moves(loads(ledgers, NO_RACKS), ledgers)
    assert {move.source for move in plan.moves} == set("abc")
    assert {move.target for move in plan.moves} == set("de")
    assert len({move.ledger for move in plan.moves}) == len(plan.moves)
    while plan.moves:
        ledgers = applied(ledgers, plan)
        plan = plan_moves(loads(ledgers, NO_RACKS), ledgers)
    assert all(len(set(copies.ensembles[0])) == 3 for copies in ledgers)
    assert max(plan.after.values()) <= 1 + SLACK


def test_a_balanced_cluster_moves_nothing() -> None:
    ledgers = [ledger(number, "abc"[number % 3 :] + "abc"[: number % 3]) for number in range(30)]
    here = loads(ledgers, dict.fromkeys("abc", ""))
    assert not overfull(here)
    assert plan_moves(here, ledgers) == RebalancePlan((), {}, dict.fromkeys("abc", 1.0), dict.fromkeys("abc", 1.0))


def test_an_empty_cluster_has_no_moves() -> None:
    assert plan_moves([], []) == RebalancePlan((), {}, {}, {})
    assert not plan_moves(loads([], NO_RACKS), []).moves


def test_shares_of_bytes_follow_sizes_of_disks() -> None:
    """A bookie with twice the space has twice the bytes, and that is right."""
    ledgers = [ledger(number, "ab", write_quorum=1, size=100 if number % 3 else 0) for number in range(30)]
    here = [BookieLoad("a", 2000, 8000), BookieLoad("b", 2000, 8000), BookieLoad("c", 4000, 16000)]
    assert not plan_moves(here, ledgers).moves


def test_moves_and_bytes_are_bounded() -> None:
    ledgers = [ledger(number, "abc") for number in range(30)]
    here = loads(ledgers, NO_RACKS)
    assert len(plan_moves(here, ledgers, moves_max=3).moves) == 3
    assert plan_moves(here, ledgers, bytes_max=450).size == 400


def test_read_only_bookies_give_and_do_not_take() -> None:
    ledgers = [ledger(number, "abc") for number in range(30)]
    plan = plan_moves(loads(ledgers, NO_RACKS, read_only=["a", "d"]), ledgers)
    assert {move.target for move in plan.moves} == {"e"}
    assert "a" in {move.source for move in plan.moves}


def test_a_plan_counts_copies_that_stay_by_reason() -> None:
    whole = [ledger(number, "abcde", write_quorum=3) for number in range(5)]
    more = [ledger(number, "abc") for number in range(5, 9)]
    here = loads([*whole, *more], NO_RACKS, read_only=["d", "e"])
    assert plan_moves(here, whole).kept == {NoMoveReason.NO_TARGET: 3 * 5}
    large = [ledger(1, "ab", size=1000)]
    assert plan_moves(loads(large, {"a": "", "b": "", "c": ""}), large).kept == {NoMoveReason.NO_GAIN: 2}
    pairs = [ledger(number, "ab") for number in range(10)]
    plan = plan_moves(loads(pairs, {"a": "1", "b": "2", "c": "1"}), pairs)
    assert {move.source for move in plan.moves} == {"a"}, "the rack of b has no other bookie"
    assert plan.kept[NoMoveReason.RACKS] > 0
    full = loads(pairs, {"a": "", "b": "", "c": ""}, free=2000)
    assert plan_moves(full, pairs, keep_free_bytes=1950).kept == {NoMoveReason.NO_SPACE: 2 * 10}


@pytest.mark.parametrize("ensembles", [[("a0", "a1"), ("a0", "a2")], [("a0", "a1", "a2")], [("a0", "a1", "b0", "c0")]])
def test_copies_in_one_rack_are_moved_to_another(ensembles: list[tuple[str, ...]]) -> None:
    """Before bytes are looked at: here the racks b and c have more of them."""
    racks = {"a0": "a", "a1": "a", "a2": "a", "b0": "b", "b1": "b", "c0": "c", "c1": "c"}
    quorum = min(len(ensembles[0]), 3) if len(ensembles[0]) < 4 else 2
    ledgers = [ledger(1, *ensembles, write_quorum=quorum, size=1)]
    ledgers += [ledger(number, ("b0", "c0"), ("b1", "c1")) for number in range(2, 6)]
    assert ledgers[0].violations(racks)
    move = plan_moves(loads(ledgers, racks), ledgers).moves[0]
    assert (move.ledger, move.fixed_violations) == (1, ledgers[0].violations(racks))
    after = ledgers[0].moved(move.source, move.target)
    assert after.violations(racks) == 0


def test_plan_counts_rack_violations_that_no_move_can_mend() -> None:
    """E = 3, Qw = 2, two racks: two neighbours are in one rack, whoever they are."""
    racks = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}
    ledgers = [ledger(1, ("a0", "a1", "b0"))]
    plan = plan_moves(loads(ledgers, racks), ledgers)
    assert (plan.moves, plan.violations_left) == ((), 1)


def test_bytes_of_striped_ledgers_are_estimated() -> None:
    """E = 4, Qw = 2, two fragments: each member has half of the entries of its fragments."""
    metadata = LedgerMetadata(
        ledger=1, ensemble_size=4, write_quorum=2, ack_quorum=1, proof="", state=State.CLOSED, last_entry=79,
        length=8000, fragments=(Fragment(0, tuple("abcd")), Fragment(40, tuple("abce"))),
    )  # fmt: skip
    copies = LedgerCopies.of(metadata)
    assert copies.sizes == {"a": 4000, "b": 4000, "c": 4000, "d": 2000, "e": 2000}
    assert not copies.admits("a", "d") and copies.admits("d", "e") and not copies.admits("c", "e")


def test_windows_with_members_of_unknown_racks() -> None:
    racks = {"a": "1", "b": "2", "x": ""}
    assert window_racks("abx", 2, racks) == [2, None, None]
    assert not keeps_racks("ab", 0, "x", 2, racks)
    assert keeps_racks("xb", 0, "a", 2, racks)
    assert single_rack_windows("ab", 2, {"a": "1", "b": "1", "c": "2"}) == 2


def drawn(seed: int) -> tuple[dict[str, str], list[LedgerCopies], list[str]]:
    """A cluster with E >= Qw, several fragments, sizes of several magnitudes."""
    draw = random.Random(seed)
    count = draw.randint(3, 9)
    names = [f"b{number}" for number in range(count)]
    kinds = draw.choice([1, 2, 3])
    racks = {
        name: draw.choice(["", *"xyz"[:kinds]]) if draw.random() < 0.2 else "xyz"[i % kinds]
        for i, name in enumerate(names)
    }
    ledgers = []
    for number in range(draw.randint(0, 60)):
        size = draw.randint(1, count)
        quorum = draw.randint(1, size)
        favoured = sorted(names, key=lambda name: draw.random() * (0.3 if name in names[:2] else 1.0))
        ensembles = [tuple(favoured[:size])]
        ensembles += [tuple(draw.sample(names, size)) for _ in range(draw.randint(0, 2))]
        members = {bookie for ensemble in ensembles for bookie in ensemble}
        sizes = {bookie: draw.choice([0, 10, 1000, 50_000]) for bookie in sorted(members)}
        ledgers.append(LedgerCopies(number, quorum, tuple(ensembles), sizes))
    read_only = [name for name in names if draw.random() < 0.15]
    return racks, ledgers, read_only


@pytest.mark.parametrize("seed", range(150))
def test_plans_end_and_worsen_nothing(seed: int) -> None:
    """One plan after the other, of clusters drawn at random."""
    racks, ledgers, read_only = drawn(seed)
    free = 20_000_000
    violations = sum(copies.violations(racks) for copies in ledgers)
    seen: set[tuple[tuple[tuple[str, ...], ...], ...]] = set()
    for _ in range(400):
        state = tuple(copies.ensembles for copies in ledgers)
        assert state not in seen, "it oscillates"
        seen.add(state)
        here = loads(ledgers, racks, read_only=read_only, free=free)
        plan = plan_moves(here, ledgers, moves_max=7)
        assert len(plan.moves) <= 7
        if not plan.moves:
            break
        peak = max(plan.before.values())
        after = applied(ledgers, plan)
        for old, new, move in (
            (old, new, move) for old, new in zip(ledgers, after, strict=True) for move in plan.moves
        ):
            if move.ledger != old.ledger:
                continue
            assert move.target not in read_only
            assert sum(old.sizes.values()) == sum(new.sizes.values())
            for before, changed in zip(old.ensembles, new.ensembles, strict=True):
                assert len(set(changed)) == len(before), "members stay distinct, so that each entry has Qw copies"
                pairs = zip(
                    window_racks(before, old.write_quorum, racks),
                    window_racks(changed, new.write_quorum, racks),
                    strict=True,
                )
                assert all(was is None or (now is not None and now >= was) for was, now in pairs)
        now = sum(copies.violations(racks) for copies in after)
        assert now <= violations
        if not any(move.fixed_violations for move in plan.moves):
            assert max(plan.after.values()) <= peak
        assert now == plan.violations_left
        violations, ledgers = now, after
    else:
        raise AssertionError("it does not end")
