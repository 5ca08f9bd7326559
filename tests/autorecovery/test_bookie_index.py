"""The index of ledgers by bookie, beside a dictionary of sets."""

from __future__ import annotations

import random

import pytest

from pyreplog.autorecovery.bookie_index import BookieIndex

BOOKIES = [f"b{number}@{number:x}" for number in range(7)]


@pytest.mark.parametrize("seed", range(20))
def test_bookie_index_equals_a_dictionary_of_sets(seed: int) -> None:
    rng, index, plain = random.Random(seed), BookieIndex(), dict[int, set[str]]()
    for _ in range(400):
        ledger = rng.randrange(60)
        if rng.random() < 0.2:
            index.remove(ledger)
            plain.pop(ledger, None)
        else:
            members = rng.choices(BOOKIES, k=rng.randint(1, 5))
            index.update(ledger, members)
            plain[ledger] = {*members}
        if rng.random() < 0.1:
            counts = {bookie: sum(bookie in members for members in plain.values()) for bookie in BOOKIES}
            assert index.counts() == {bookie: count for bookie, count in counts.items() if count}
            assert {*index} == {bookie for bookie, count in counts.items() if count}
        bookie = rng.choice(BOOKIES)
        assert index.ledgers_of(bookie).tolist() == sorted(n for n, members in plain.items() if bookie in members)


def test_many_changes_are_folded_into_the_arrays() -> None:
    index = BookieIndex()
    for ledger in range(20_000):
        index.update(ledger, BOOKIES[ledger % 5 : ledger % 5 + 3])
    assert index.nbytes >= 12 * 3 * 10_000, "most of them lie in the arrays"
    assert len(index.ledgers_of(BOOKIES[2])) == 12_000
    assert index.nbytes <= 12 * 3 * 20_000


def test_bookie_without_ledgers_has_an_empty_index() -> None:
    assert BookieIndex().ledgers_of("b9@9").tolist() == []
