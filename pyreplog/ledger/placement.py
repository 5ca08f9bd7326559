"""Chooses the bookies of an ensemble: rendezvous hashing, weighted by free space, and spread over racks.

The score of a bookie is weight / -ln(hash in (0, 1)), and the k highest scores win (weighted rendezvous hashing). If a
bookie is lost, only its own places change.

The copies of an entry lie on a *window*: Qw neighbouring places of the ensemble, where the last place is next to the
first one. A ledger survives the loss of a rack only if no window lies within one rack. So the search counts the racks
of each window, with the members that stay and the new ones together. BookKeeper counted only the new ones (#3971), and
one replacement after the other moved all copies to one rack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import mmh3

STEPS_MAX = 2000
"""Most places that are filled on trial; then the best ensemble so far is used. It is reached only with few racks."""


@dataclass(frozen=True)
class Candidate:
    """A bookie that takes entries.

    Attributes:
        bookie: id of the bookie.
        weight: free bytes, or another number in proportion to them.
        rack: rack of the bookie; "": unknown.
    """

    bookie: str
    weight: float = 1.0
    rack: str = ""


def choose(
    ledger: int,
    ensemble: Sequence[str | None],
    places: Sequence[int],
    candidates: Iterable[Candidate],
    *,
    write_quorum: int,
    racks: Mapping[str, str] | None = None,
    taken: Set[str] = frozenset(),
    turn: int = 0,
) -> dict[int, str]:
    """Choose bookies for places of an ensemble. Members that stay are never chosen.

    The choice maximizes the number of racks in the window that has fewest racks, then the sum over all windows. Among
    equal choices, racks with the fewest members of the ensemble come first, then the highest scores. The same arguments
    give the same result in every process.

    Args:
        ledger: id of the ledger, which the scores depend on.
        ensemble: the members; None marks an empty place. Members at `places` leave the ensemble.
        places: places to fill; with too few candidates, only the first ones are filled.
        candidates: bookies that may be chosen.
        write_quorum: Qw, the size of a window.
        racks: racks of the members that stay, by bookie. The rack of a member without one is unknown and does not
            count.
        taken: bookies that may not be chosen.
        turn: changes with every choice for the same ledger, so that a failed bookie is not always replaced by the same
            one.

    Returns:
        The bookie for each place that is filled, in the order of `places`.
    """
    leaving = set(places)
    members = {place: bookie for place, bookie in enumerate(ensemble) if bookie is not None and place not in leaving}
    unavailable = taken | set(members.values())
    ranked: dict[str, list[tuple[float, str]]] = {}
    for candidate in candidates:
        if candidate.bookie not in unavailable:
            score = _score(ledger, turn, candidate)
            ranked.setdefault(candidate.rack, []).append((-score, candidate.bookie))
    for bookies in ranked.values():
        bookies.sort()
    known = racks or {}
    layout: list[str | None] = [known.get(members.get(place, "")) for place in range(len(ensemble))]
    filled = list(places[: sum(map(len, ranked.values()))])
    used = dict.fromkeys(ranked, 0)
    chosen: dict[int, str] = {}
    for place, rack in _Search(layout, filled, ranked, write_quorum).run():
        chosen[place] = ranked[rack][used[rack]][1]
        used[rack] += 1
    return {place: chosen[place] for place in filled}


class _Search:
    """Tries racks for one place after the other, the most promising rack first, until no better choice is possible."""

    def __init__(
        self,
        layout: list[str | None],
        places: Sequence[int],
        ranked: Mapping[str, Sequence[tuple[float, str]]],
        write_quorum: int,
    ) -> None:
        self._layout, self._places, self._ranked, self._size = layout, sorted(places), ranked, write_quorum
        self._left = {rack: len(bookies) for rack, bookies in ranked.items()}
        count = len(set(ranked).union(rack for rack in layout if rack is not None))
        most = min(write_quorum, count)
        self._bound = (most, most * len(layout))  # an upper bound of `_spread`
        self._value = (-1, -1)
        self._best: list[tuple[int, str]] = []
        self._steps = 0

    def run(self) -> list[tuple[int, str]]:
        """Return the rack for each place."""
        self._fill(0)
        return self._best

    def _fill(self, at: int) -> bool:
        """Fill the places from index `at` on; return whether the search is over."""
        if at == len(self._places):
            value = self._spread()
            if value > self._value:
                self._value = value
                self._best = [(place, self._layout[place] or "") for place in self._places]
            return value >= self._bound or self._steps >= STEPS_MAX
        place = self._places[at]
        for rack in self._ranked_racks(place):
            self._steps += 1
            self._layout[place] = rack
            self._left[rack] -= 1
            over = self._fill(at + 1)
            self._left[rack] += 1
            self._layout[place] = None
            if over:
                return True
        return False

    def _ranked_racks(self, place: int) -> list[str]:
        """Return the racks with bookies left, first those that share the fewest windows with the place, then the rarest
        ones."""
        layout, size = self._layout, len(self._layout)
        near: dict[str, int] = {}
        members: dict[str, int] = {}
        for other, rack in enumerate(layout):
            if rack is not None:
                distance = min((other - place) % size, (place - other) % size)
                near[rack] = near.get(rack, 0) + max(self._size - distance, 0)
                members[rack] = members.get(rack, 0) + 1

        def badness(rack: str) -> tuple[int, int, float, str]:
            bookies = self._ranked[rack]
            return (near.get(rack, 0), members.get(rack, 0), *bookies[len(bookies) - self._left[rack]])

        return sorted((rack for rack, left in self._left.items() if left), key=badness)

    def _spread(self) -> tuple[int, int]:
        """Return the number of racks of the window with the fewest racks, and the sum over all windows."""
        size = len(self._layout)
        twice = self._layout * 2
        counts = [len({rack for rack in twice[at : at + self._size] if rack is not None}) for at in range(size)]
        return min(counts, default=0), sum(counts)


def _score(ledger: int, turn: int, candidate: Candidate) -> float:
    digest = mmh3.hash128(f"{ledger}/{turn}/{candidate.bookie}".encode(), signed=False)
    return max(candidate.weight, 1e-9) / -math.log((digest + 0.5) / (1 << 128))
