"""Ensembles drawn at random, beside those of `choose`: racks, loads, pairs and replacements occur as often."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from pyreplog.autorecovery.placement_model import PlacementModel
from pyreplog.ledger.placement import Candidate, choose

LEDGERS = 3000
FEW = 300
"""Where `choose` finds no ensemble without a repeated rack, and searches long."""
SHAPES = [(12, 4, 3, 3), (12, 4, 5, 3), (30, 10, 5, 3), (12, 2, 3, 3), (9, 3, 4, 2), (6, 1, 3, 3), (10, 3, 3, 2)]
"""Bookies, racks, E, Qw."""


def candidates(bookies: int, racks: int) -> list[Candidate]:
    return [Candidate(str(bookie), 1.0, str(bookie % racks)) for bookie in range(bookies)]


def chosen(bookies: int, racks: int, size: int, quorum: int) -> np.ndarray:
    """As clusters do it."""
    known = candidates(bookies, racks)
    count = FEW if size > racks > 1 else LEDGERS
    rows = [choose(ledger, [None] * size, range(size), known, write_quorum=quorum) for ledger in range(count)]
    return np.array([[int(row[place]) for place in range(size)] for row in rows])


def modelled(bookies: int, racks: int, size: int, quorum: int) -> np.ndarray:
    return PlacementModel(bookies, racks, size, quorum, np.random.default_rng(7)).new_ledgers(LEDGERS)


def window_racks(ensembles: np.ndarray, racks: int, quorum: int) -> Counter[tuple[int, ...]]:
    """How many racks the windows of a ledger have, counted over ledgers."""
    size = ensembles.shape[1]
    rows = (ensembles % racks).tolist()
    return Counter(tuple(len({row[(at + k) % size] for k in range(quorum)}) for at in range(size)) for row in rows)


def distance(counts: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """Total variation."""
    return sum(abs(counts[key] / counts.total() - other[key] / other.total()) for key in counts | other) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_new_ledgers_lie_as_choose_places_them(shape: tuple[int, int, int, int]) -> None:
    bookies, racks, size, quorum = shape
    real, drawn = chosen(*shape), modelled(*shape)
    assert all(len(set(row)) == size for row in drawn.tolist())
    assert distance(window_racks(real, racks, quorum), window_racks(drawn, racks, quorum)) < 0.15
    loads = [np.bincount(rows.ravel(), minlength=bookies) / rows.size for rows in (real, drawn)]
    assert np.all(abs(loads[0] - loads[1]) < 6 * np.sqrt(loads[0] / real.size))
    pairs = [Counter(pair for row in rows.tolist() for pair in combinations(sorted(row), 2)) for rows in (real, drawn)]
    same = [sum(count for (a, b), count in pair.items() if (a - b) % racks == 0) / pair.total() for pair in pairs]
    assert same[0] == pytest.approx(same[1], abs=0.03), "pairs within a rack"


@pytest.mark.parametrize("shape", SHAPES)
def test_replacements_lie_as_choose_places_them(shape: tuple[int, int, int, int]) -> None:
    bookies, racks, size, quorum = shape
    model = PlacementModel(bookies, racks, size, quorum, np.random.default_rng(11))
    ensembles = chosen(*shape)[:1000].astype(np.int32)
    rows = np.arange(len(ensembles))
    places = (rows % size).astype(np.int32)
    lost = np.zeros(ensembles.shape, np.bool_)
    lost[rows, places] = True
    target = model.targets(ensembles, lost, places, np.ones(bookies))
    known = candidates(bookies, racks)
    racks_of = {candidate.bookie: candidate.rack for candidate in known}
    tallies: list[Counter[tuple[int, ...]]] = [Counter(), Counter()]
    for ledger, row in enumerate(ensembles.tolist()):
        place = int(places[ledger])
        members: list[str | None] = [str(bookie) for bookie in row]
        real = choose(
            ledger, members, [place], known, write_quorum=quorum, racks=racks_of, taken={str(row[place])}, turn=1
        )  # fmt: skip
        assert target[ledger] not in [bookie for at, bookie in enumerate(row) if at != place]
        for counts, bookie in zip(tallies, (int(real[place]), int(target[ledger])), strict=True):
            changed = np.array([[*row[:place], bookie, *row[place + 1 :]]])
            counts.update(window_racks(changed, racks, quorum))
    assert distance(*tallies) < 0.1


def test_targets_are_drawn_in_proportion_to_their_weights() -> None:
    model = PlacementModel(6, 6, 3, 3, np.random.default_rng(3))
    count = 6000
    ensembles = np.tile(np.array([0, 1, 2], np.int32), (count, 1))
    lost = np.zeros((count, 3), np.bool_)
    weights = np.array([1.0, 1.0, 0.0, 1.0, 3.0, 0.0])
    counts = np.bincount(model.targets(ensembles, lost, np.full(count, 2, np.int32), weights), minlength=6)
    assert counts[[0, 1, 2, 5]].sum() == 0 and counts[4] / counts[3] == pytest.approx(3.0, rel=0.1)


def test_no_target_is_drawn_when_no_bookie_is_free() -> None:
    model = PlacementModel(4, 2, 3, 3, np.random.default_rng(3))
    ensembles, lost = np.array([[0, 1, 2]], np.int32), np.array([[False, False, True]])
    place = np.array([2], np.int32)
    assert model.targets(ensembles, lost, place, np.array([1.0, 1.0, 0.0, 0.0])).tolist() == [-1]
    assert model.targets(ensembles, lost, place, np.array([1.0, 1.0, 1.0, 0.0])).tolist() == [2], "its new incarnation"
    assert model.targets(ensembles, lost, place, np.zeros(4)).tolist() == [-1]
    assert model.targets(ensembles[:0], lost[:0], place[:0], np.ones(4)).tolist() == []
