"""One bookie takes the place of another in what is already written: beside a map of who holds each entry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.member_change import (
    KEPT_RANGES_MAX,
    MemberChange,
    drop_empty,
    kept_ranges,
    merge_equal,
    written_end,
)
from pyreplog.autorecovery.protocol.priority import copies_left, fewest_copies
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key

PROOF = key_proof(ledger_key(b""))


def ledger(*fragments: tuple[int, str], last: int | None = None, size: int = 3, quorum: int = 2) -> LedgerMetadata:
    """A ledger with bookies of one letter; closed if `last` is given."""
    state = {} if last is None else {"state": State.CLOSED, "last_entry": last}
    return LedgerMetadata(
        ledger=7,
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=quorum,
        fragments=tuple(Fragment(first, tuple(members)) for first, members in fragments),
        proof=PROOF,
        **state,  # type: ignore[arg-type]
    )


def shape(metadata: LedgerMetadata | None) -> dict[int, str] | None:
    return None if metadata is None else {first: "".join(members) for first, members in metadata.fragments}


def holders(metadata: LedgerMetadata, entries: range) -> dict[int, set[str]]:
    """Who is to hold each entry."""
    actual = {}
    for entry in entries:
        ensemble = metadata.fragment_of(entry).ensemble
        actual[entry] = {ensemble[at] for at in write_set(entry, metadata.ensemble_size, metadata.write_quorum)}
    return actual


def test_a_member_is_replaced_in_one_fragment() -> None:
    before = ledger((0, "abc"), (10, "adc"), last=20)
    assert shape(MemberChange(7, 0, 10, 0, "a", "x").applied(before)) == {0: "xbc", 10: "adc"}
    assert shape(MemberChange(7, 10, 21, 2, "c", "x").applied(before)) == {0: "abc", 10: "adx"}


def test_neighbours_that_become_equal_are_one_when_the_ledger_is_closed() -> None:
    change = MemberChange(7, 0, 10, 1, "b", "d")
    assert shape(change.applied(ledger((0, "abc"), (10, "adc"), last=20))) == {0: "adc"}
    assert shape(change.applied(ledger((0, "abc"), (10, "adc")))) == {0: "adc", 10: "adc"}


def test_changes_of_other_fragments_are_kept() -> None:
    now = ledger((0, "abc"), (10, "adc"), (15, "aec"))
    assert shape(MemberChange(7, 0, 10, 0, "a", "x").applied(now)) == {0: "xbc", 10: "adc", 15: "aec"}


def test_another_member_of_the_same_fragment_may_have_changed() -> None:
    assert shape(MemberChange(7, 0, 10, 0, "a", "x").applied(ledger((0, "ayc"), (10, "adc")))) == {0: "xyc", 10: "adc"}


@pytest.mark.parametrize(
    "now",
    [
        ledger((0, "zbc"), (10, "adc"), last=20),  # somebody else has the place
        ledger((0, "bac"), (10, "adc"), last=20),  # it has another place: other entries
        ledger((0, "abc"), (9, "adc"), last=20),  # the fragment is shorter
        ledger((0, "abc"), (11, "adc"), last=20),  # it is longer: entry 10 was not proved
        ledger((0, "abc"), last=20),
        ledger((0, "abx"), (10, "adc"), last=20),  # the target is a member
        ledger((0, "abc")),  # the last fragment of a ledger that is not closed
    ],
)
def test_a_member_change_without_its_proof_is_not_applied(now: LedgerMetadata) -> None:
    assert MemberChange(7, 0, 10, 0, "a", "x").applied(now) is None


def test_the_last_fragment_of_a_ledger_that_is_not_closed_stays() -> None:
    still_open = ledger((0, "abc"), (10, "adc"))
    assert written_end(still_open, still_open.fragments[0]) == 10
    assert written_end(still_open, still_open.fragments[1]) is None
    for end in (10, 11, 21):
        assert MemberChange(7, 10, end, 0, "a", "x").applied(still_open) is None


def test_another_ledger_is_left_alone() -> None:
    assert MemberChange(8, 0, 21, 0, "a", "x").applied(ledger((0, "abc"), last=20)) is None


def test_entries_that_only_the_source_may_have_stay_with_it() -> None:
    before = ledger((0, "abc"), last=20)
    change = MemberChange(7, 0, 21, 0, "a", "x", (range(5, 6), range(20, 21)))
    assert shape(change.applied(before)) == {0: "xbc", 5: "abc", 6: "xbc", 20: "abc"}
    assert shape(MemberChange(7, 0, 21, 0, "a", "x", (range(3),)).applied(before)) == {0: "abc", 3: "xbc"}


def test_a_change_that_keeps_all_changes_nothing() -> None:
    before = ledger((0, "abc"), last=20)
    assert MemberChange(7, 0, 21, 0, "a", "x", (range(21),)).applied(before) == before


@pytest.mark.parametrize(
    "kept", [(range(5, 5),), (range(3, 6), range(6, 7)), (range(6, 8), range(2, 3)), (range(20, 22),)]
)
def test_ranges_that_are_not_apart_or_outside(kept: tuple[range, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"kept: expected ranges apart within \[0, 21\)"):
        MemberChange(7, 0, 21, 0, "a", "x", kept)


def test_the_number_of_ranges_is_bounded() -> None:
    kept = tuple(range(4 * at, 4 * at + 1) for at in range(KEPT_RANGES_MAX + 1))
    with pytest.raises(InvalidArgumentError, match=f"kept: expected up to {KEPT_RANGES_MAX} ranges, found"):
        MemberChange(7, 0, 1000, 0, "a", "x", kept)
    most = MemberChange(7, 0, 1000, 0, "a", "x", kept[1:]).applied(ledger((0, "abc"), last=999))
    assert most is not None
    assert len(most.fragments) == 1 + 2 * KEPT_RANGES_MAX


def test_an_empty_ledger_drops_a_lost_bookie() -> None:
    """BookKeeper #3220: an empty ledger that names a lost bookie keeps it for ever."""
    empty = ledger((0, "abc"), last=-1)
    assert shape(drop_empty(empty, "b", "x")) == {0: "axc"}
    assert drop_empty(empty, "z", "x") is None
    assert drop_empty(empty, "b", "c") is None
    assert drop_empty(ledger((0, "abc")), "b", "x") is None, "its writer may add to it"
    assert drop_empty(ledger((0, "abc"), last=0), "b", "x") is None


def changes(metadata: LedgerMetadata, rng: random.Random) -> Iterator[MemberChange]:
    for fragment in metadata.fragments:
        end = written_end(metadata, fragment)
        if end is not None:
            index = rng.randrange(metadata.ensemble_size)
            stripe = [
                e
                for e in range(fragment.first, end)
                if index in write_set(e, metadata.ensemble_size, metadata.write_quorum)
            ]
            missing = rng.sample(stripe, min(len(stripe), rng.randrange(4)))
            alone = LedgerMetadata.holdings(metadata, fragment.ensemble[index])
            inside = [part for part in alone if len(part) and part.start in range(fragment.first, end)]
            kept = kept_ranges(inside, missing)
            target = rng.choice("uvwxyz")
            yield MemberChange(metadata.ledger, fragment.first, end, index, fragment.ensemble[index], target, kept)


@pytest.mark.parametrize("seed", range(200))
def test_every_entry_has_the_holders_that_were_proved(seed: int) -> None:
    """E up to 6 and E > Qw: only the source's entries change hands, but those that it keeps."""
    rng = random.Random(seed)
    size = rng.randint(2, 6)
    quorum = rng.randint(1, size)
    last = rng.randint(8, 60)
    firsts = [0, *sorted(rng.sample(range(1, last), rng.randrange(3)))]
    members = "abcdefghijk"
    before = ledger(
        *((first, "".join(rng.sample(members, size))) for first in firsts), last=last, size=size, quorum=quorum
    )
    for change in changes(before, rng):
        after = change.applied(before)
        if after is None:
            assert change.target in before.fragment_of(change.first).ensemble
            continue
        old, new = holders(before, range(last + 1)), holders(after, range(last + 1))
        for entry in range(last + 1):
            moved = change.first <= entry < change.end and change.index in write_set(entry, size, quorum)
            if moved and not any(entry in kept for kept in change.kept):
                assert new[entry] == old[entry] - {change.source} | {change.target}
            else:
                assert new[entry] == old[entry]
        assert merge_equal(after.fragments) == list(after.fragments)
        before = after


@pytest.mark.parametrize("seed", range(100))
def test_kept_ranges_hold_no_other_entry_of_the_source(seed: int) -> None:
    rng = random.Random(seed)
    size, quorum, index = 5, 3, rng.randrange(5)
    stripe = [entry for entry in range(50) if index in write_set(entry, size, quorum)]
    missing = {*rng.sample(stripe, rng.randrange(10))}
    kept = kept_ranges([range(start, 50, size) for start in {e % size for e in stripe}], missing)
    assert {entry for part in kept for entry in part if entry in stripe} == missing
    assert all(part[0] in missing and part[-1] in missing for part in kept)
    assert all(left.stop < right.start for left, right in pairwise(kept))


# ---- priority --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_copies_left_of_the_worst_entry(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 6)
    quorum = rng.randint(1, size)
    metadata = ledger((0, "".join(rng.sample("abcdefgh", size))), last=40, size=size, quorum=quorum)
    gone = {*rng.sample("abcdefgh", rng.randrange(4))}
    worst = min(len(who - gone) for who in holders(metadata, range(41)).values())
    assert copies_left(metadata, metadata.fragments[0], gone) == fewest_copies(metadata, gone) == worst


def test_the_fragment_with_the_fewest_copies_counts() -> None:
    assert fewest_copies(ledger((0, "abc"), (5, "abd"), last=9), {"c"}) == 1
