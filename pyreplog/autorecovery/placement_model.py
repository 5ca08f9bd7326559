"""Ensembles of very many ledgers at once: drawn at random as `pyreplog.ledger.placement.choose` spreads them.

`choose` takes rendezvous hashes, which are random numbers for each pair of a ledger and a bookie. The highest ones win
among the bookies whose racks share the fewest windows with the place. So a random bookie of those racks, drawn in
proportion to its weight, has the same distribution. For new ledgers the order of racks is taken from `choose` itself,
for some ledgers, and the racks are exchanged at random. A test compares both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyreplog.ledger.placement import Candidate, choose

_PATTERNS = 128
_ROUNDS = 64

Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


class PlacementModel:
    """Places ledgers on bookies. Bookies are numbers; bookie b is in rack b modulo the number of racks.

    Args:
        bookies: how many there are.
        racks: how many there are.
        ensemble: E.
        write_quorum: Qw.
        random: where random numbers come from.
    """

    def __init__(self, bookies: int, racks: int, ensemble: int, write_quorum: int, random: np.random.Generator) -> None:
        self._ensemble, self._quorum, self._random, self._racks = ensemble, write_quorum, random, racks
        self._bookies = bookies
        self.rack_of: Ints = (np.arange(bookies) % racks).astype(np.int32)

    def new_ledgers(self, count: int) -> Ints:
        """Return ensembles of new ledgers, a row for each, while all bookies run and are alike."""
        patterns = self._patterns()
        rows = patterns[self._random.integers(len(patterns), size=count)]
        racks = np.take_along_axis(self._permutations(count), rows, axis=1)
        sizes = np.bincount(self.rack_of, minlength=self._racks)
        chosen = np.empty((count, self._ensemble), np.int32)
        for place in range(self._ensemble):
            wrong = np.arange(count)
            while len(wrong):
                within = (self._random.random(len(wrong)) * sizes[racks[wrong, place]]).astype(np.int32)
                chosen[wrong, place] = racks[wrong, place] + within * self._racks
                wrong = wrong[(chosen[wrong, :place] == chosen[wrong, place : place + 1]).any(axis=1)]
        return chosen

    def _patterns(self) -> Ints:
        """Racks by place as `choose` takes them, numbered in the order in which they occur."""
        racks = min(self._racks, 4 * self._ensemble)
        sizes = [len(range(rack, self._bookies, self._racks)) for rack in range(racks)]
        candidates = [
            Candidate(f"{rack}.{number}", 1.0, str(rack))
            for rack, size in enumerate(sizes)
            for number in range(min(size, self._ensemble))
        ]
        racks_of = {candidate.bookie: candidate.rack for candidate in candidates}
        patterns = np.empty((_PATTERNS, self._ensemble), np.int32)
        empty, places = [None] * self._ensemble, range(self._ensemble)
        for ledger in range(_PATTERNS):
            chosen = choose(ledger, empty, places, candidates, write_quorum=self._quorum)
            numbers: dict[str, int] = {}
            for place in places:
                rack = racks_of[chosen[place]]
                patterns[ledger, place] = numbers.setdefault(rack, len(numbers))
        return patterns

    def _permutations(self, count: int) -> Ints:
        """For each ledger different racks in random order, as many as an ensemble can have."""
        used = min(self._racks, self._ensemble)
        racks = np.empty((count, used), np.int32)
        for at in range(used):
            wrong = np.arange(count)
            while len(wrong):
                racks[wrong, at] = self._random.integers(self._racks, size=len(wrong))
                wrong = wrong[(racks[wrong, :at] == racks[wrong, at : at + 1]).any(axis=1)]
        return racks

    def targets(self, ensembles: Ints, lost: Flags, places: Ints, weights: NDArray[np.float64]) -> Ints:
        """Choose a bookie for one place of each ensemble.

        Args:
            ensembles: a row for each ledger.
            lost: members whose racks do not count, since they are lost; of the same shape.
            places: the place to be filled, for each ledger.
            weights: by bookie; 0: it takes nothing.

        Returns:
            A bookie for each ledger; -1: none can take the place.
        """
        count = len(ensembles)
        chosen = np.full(count, -1, np.int32)
        candidates = np.flatnonzero(weights > 0).astype(np.int32)
        if not count or not len(candidates):
            return chosen
        ensembles = ensembles.copy()
        ensembles[np.arange(count), places] = -1  # a new incarnation of the member that leaves is welcome
        sums = np.cumsum(weights[candidates])
        rows = np.arange(count)
        if len(np.unique(self.rack_of[candidates])) >= self._ensemble:  # some rack has no member
            racks = np.where(lost | (ensembles < 0), -1, self.rack_of[ensembles])
            others = np.concatenate([ensembles, racks], axis=1)
            best = None
        else:
            others, best = ensembles, self._best_racks(ensembles, lost, places, weights)
        for _ in range(_ROUNDS):
            if not len(rows):
                return chosen
            drawn = candidates[np.searchsorted(sums[:-1], self._random.random(len(rows)) * sums[-1], side="right")]
            fine = self._fits(drawn, rows, others, best)
            chosen[rows[fine]] = drawn[fine]
            rows = rows[~fine]
        for row in rows:  # where few are left to choose from
            allowed = candidates[self._fits(candidates, np.full(len(candidates), row), others, best)]
            if len(allowed):
                shares = weights[allowed] / weights[allowed].sum()
                chosen[row] = self._random.choice(allowed, p=shares)
        return chosen

    def _fits(self, drawn: Ints, rows: NDArray[np.int64], others: Ints, best: Flags | None) -> Flags:
        """Whether bookies may take the places of rows.

        others: members that stay and, where `best` is None, their racks behind them. best: racks that may be chosen;
        None: those that have no member.
        """
        size, racks = self._ensemble, self.rack_of[drawn]
        fine: Flags = (others[rows, :size] != drawn[:, None]).all(axis=1)
        if best is not None:
            fine &= best[rows, racks]
        else:
            fine &= (others[rows, size:] != racks[:, None]).all(axis=1)
        return fine

    def _best_racks(self, ensembles: Ints, lost: Flags, places: Ints, weights: NDArray[np.float64]) -> Flags:
        """Racks that share fewest windows with the place, and of these those with the fewest members."""
        size, rows = self._ensemble, np.arange(len(ensembles))
        near = np.zeros((len(ensembles), self._racks), np.int32)
        free = np.bincount(self.rack_of[weights > 0], minlength=self._racks)
        room = np.repeat(free[None, :], len(ensembles), axis=0)
        for other in range(size):
            distance = np.minimum((other - places) % size, (places - other) % size)
            shared = np.maximum(self._quorum - distance, 0)
            counts = (other != places) & ~lost[:, other]
            racks = self.rack_of[ensembles[:, other]]
            near[rows, racks] += np.where(counts, shared * (size + 1) + 1, 0).astype(np.int32)
            room[rows, racks] -= (other != places) & (weights[ensembles[:, other]] > 0)
        near[room <= 0] = np.iinfo(np.int32).max
        least = near.min(axis=1, keepdims=True)
        best: Flags = (near == least) & (room > 0)
        return best
