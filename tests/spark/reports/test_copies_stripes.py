"""Stripes and slots, against sets of entries."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.reports.copies.intervals import cut, inside, union, without
from pyreplog.reports.copies.stripes import Stripes, joined, runs_of, stripes_of
from pyreplog.reports.records.slots import Slots
from tests.spark.reports.striped import metadata_of, random_metadata, write_set

NAMES = ["a", "b", "c", "d", "e"]
Place = tuple[int, int, bool, int]

places = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.booleans(), st.integers(0, 30)), max_size=60
)  # fmt: skip
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8).map(
    lambda report: np.array([(low, low + length) for low, length in report], np.int64).reshape(-1, 2)
)


def of(places: list[Place]) -> Stripes:
    table = np.array(places, np.int64).reshape(-1, 4).T
    return stripes_of(len(places), ledger=table[0], bookie=table[1], held=table[2], first=table[3])


def entries_of(stripes: Stripes) -> set[Place]:
    return {
        (int(run["ledger"]), int(run["bookie"]), bool(run["held"]), int(run["first"]) + n)
        for run in runs_of(stripes)
        for n in range(run["run"])
    }


@given(places, st.integers(0, 60))
def test_joined_stripes_have_the_same_entries(places: list[Place], middle: int) -> None:
    once = joined(of(places))
    twice = joined(np.concatenate((joined(of(places[middle:])), joined(of(places[:middle])))))
    assert entries_of(once) == entries_of(twice) == set(places)


def test_a_bookie_is_a_stripe() -> None:
    """However its entries are cut into batches: five of seven, and what is cut off at both ends."""
    own = [entry for entry in range(3000) if (entry - 3) % 7 < 5]
    for size in (1, 4, 1000, 3000):
        parts = [of([(0, 0, True, entry) for entry in own[at : at + size]]) for at in range(0, len(own), size)]
        ranges = parts[0]
        for part in parts[1:]:
            ranges = joined(np.concatenate((ranges, joined(part))))
        assert len(joined(ranges)) <= 3


@given(st.integers(0, 1 << 30))
def test_slots_are_those_of_their_entries(seed: int) -> None:
    """Entry by entry: which slot it is, and which slots some entries cover."""
    rng = random.Random(seed)
    ledgers = [random_metadata(NAMES, rng, ledger) for ledger in range(3)]
    numbers = {name: at for at, name in enumerate(NAMES)}
    slots = Slots.of([(ledger, ledger.last_entry + 1) for ledger in ledgers], numbers)
    expected = sorted(
        (ledger.ledger, numbers[bookie], entry)
        for ledger in ledgers
        for entry in range(ledger.last_entry + 1)
        for bookie in write_set(ledger, entry)
    )
    every = np.arange(len(expected))
    rows = slots.row(every)
    assert slots.offset[-1] == len(expected)
    assert list(zip(slots.ledger[rows], slots.bookie[rows], slots.entry(every), strict=True)) == expected
    some = [rng.choice(expected) for _ in range(rng.randrange(20))] if expected else []
    some += [(rng.randrange(4), rng.randrange(6), rng.randrange(50)) for _ in range(10)]
    some += [place for place in expected if rng.random() < 0.7]
    covered = slots.covered(joined(of([(ledger, bookie, True, entry) for ledger, bookie, entry in some])))
    assert [expected[slot] for slot in every[inside(covered, every)]] == sorted(set(some) & set(expected))


def test_a_stripe_that_fits_another_fragment() -> None:
    """One run and distance, in two fragments in which the bookie has other places."""
    metadata = metadata_of(0, (3, 1, 1), [(0, ["a", "b", "c"]), (10, ["b", "a", "c"])], 29)
    slots = Slots.of([(metadata, 30)], {"a": 0})
    own = [entry for entry in range(30) if write_set(metadata, entry) == ["a"]]
    stray = stripes_of(1, first=0, step=3, times=10)
    mask = inside(slots.covered(stray), np.arange(len(own)))
    assert [entry for entry, item in zip(own, mask, strict=True) if item] == [0, 3, 6, 9]


@given(ranges, ranges, st.lists(st.integers(0, 45), max_size=5))
def test_intervals_behave_as_sets_of_numbers(some: np.ndarray, others: np.ndarray, borders: list[int]) -> None:
    def members(array: np.ndarray) -> set[int]:
        return {number for low, stop in array.tolist() for number in range(low, stop)}

    first, other = union(some), union(others)
    assert members(first) == members(some)
    assert (first[1:, 0] > first[:-1, 1]).all()
    assert members(without(first, other)) == members(first) - members(other)
    parts = cut(first, np.array(borders, np.int64))
    assert members(parts) == members(first)
    assert not any(low < border < stop for low, stop in parts.tolist() for border in borders)
