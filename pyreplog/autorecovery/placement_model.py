"""PlacementModel: draws the ensembles of many ledgers at once, with the distribution of `ledger.placement.choose`.

`choose` uses rendezvous hashes, which are random for each pair of a ledger and a bookie. The highest hashes win among
the bookies whose racks share the fewest windows with the place. A random bookie of those racks, drawn in proportion to
its weight, has the same distribution. For new ledgers the order of racks is taken from calls of `choose` for some
ledgers, and the racks are permuted at random. A test compares both.
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
        bookies: number of bookies.
        racks: number of racks.
        ensemble: E, the ensemble size.
        write_quorum: Qw, the write quorum.
        random: source of random numbers.
    """

    def __init__(self, bookies: int, racks: int, ensemble: int, write_quorum: int, random: np.random.Generator) -> None:
        self._ensemble, self._quorum, self._random, self._racks = ensemble, write_quorum, random, racks
        self._bookies = bookies
        self.rack_of: Ints = (np.arange(bookies) % racks).astype(np.int32)

    def new_ledgers(self, count: int) -> Ints:
        """Return the ensembles of new ledgers, one in each row, if all bookies run and have equal weights."""
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
        """Return the racks of each place as chosen by `choose`, numbered in the order of their first occurrence."""
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
        """Return different racks in random order for each ledger, as many as an ensemble can have."""
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
            ensembles: ensembles, one in each row.
            lost: members that are lost, so that their racks do not count; of the same shape.
            places: the place to fill, for each ledger.
            weights: weight of each bookie; 0: it takes no entries.

        Returns:
            A bookie for each ledger; -1: no bookie can take the place.
        """
        count = len(ensembles)
        chosen = np.full(count, -1, np.int32)
        candidates = np.flatnonzero(weights > 0).astype(np.int32)
        if not count or not len(candidates):
            return chosen
        ensembles = ensembles.copy()
        ensembles[np.arange(count), places] = -1  # a new incarnation of the replaced member may be chosen
        sums = np.cumsum(weights[candidates])
        rows = np.arange(count)
        if len(np.unique(self.rack_of[candidates])) >= self._ensemble:  # at least one rack has no member
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
        for row in rows:  # few bookies qualify: choose among them exactly
            allowed = candidates[self._fits(candidates, np.full(len(candidates), row), others, best)]
            if len(allowed):
                shares = weights[allowed] / weights[allowed].sum()
                chosen[row] = self._random.choice(allowed, p=shares)
        return chosen

    def _fits(self, drawn: Ints, rows: NDArray[np.int64], others: Ints, best: Flags | None) -> Flags:
        """Return whether bookies can take the places of rows.

        `others` are the members that stay and, if `best` is None, also their racks. `best` are the racks that may be
        chosen; None: those without a member.
        """
        size, racks = self._ensemble, self.rack_of[drawn]
        fine: Flags = (others[rows, :size] != drawn[:, None]).all(axis=1)
        if best is not None:
            fine &= best[rows, racks]
        else:
            fine &= (others[rows, size:] != racks[:, None]).all(axis=1)
        return fine

    def _best_racks(self, ensembles: Ints, lost: Flags, places: Ints, weights: NDArray[np.float64]) -> Flags:
        """Return the racks that share the fewest windows with the place, and of these those with the fewest members."""
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
