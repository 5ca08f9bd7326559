"""How often all copies of an entry are lost: a Markov chain of the copies of one write quorum.

The state is, for each rack that holds copies, how many of them were lost one by one, or that the whole rack was lost.
Racks with equal states are alike, so that a state is a sorted tuple. Whenever nothing is left the chain counts a loss
and begins anew, so that the flow of losses in its stationary distribution is the rate of losses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class RackState(NamedTuple):
    """A rack that holds `copies` of an entry; `lost` of them one by one; all at once if `is_lost`."""

    copies: int
    lost: int = 0
    is_lost: bool = False

    @property
    def missing(self) -> int:
        return self.copies if self.is_lost else self.lost


State = tuple[RackState, ...]


@dataclass(frozen=True)
class LossRates:
    """What drives the chain.

    Attributes:
        bookie: losses of one bookie by itself, in a year.
        rack: losses of one rack, in a year.
        single_s: mean time until a copy of a bookie is made again.
        rack_s: the same for the bookies of a rack.
        urgent_single_s: mean time for a ledger that lacks several copies, the last loss being that of a bookie.
        urgent_rack_s: the same, the last loss being that of a rack.
        unreadable: by number of good copies, the probability that an entry cannot be read from any of them.
    """

    bookie: float
    rack: float
    single_s: float
    rack_s: float
    urgent_single_s: float
    urgent_rack_s: float
    unreadable: tuple[float, ...]


@dataclass(frozen=True)
class Loss:
    """How often a write quorum loses its last copy in one way.

    Attributes:
        state: at the loss.
        per_year: of one write quorum.
        is_latent: the last copies were there, but unreadable.
    """

    state: State
    per_year: float
    is_latent: bool

    def events(self, windows: float, racks: int, in_rack: float) -> float:
        """Return how often in a year at least one of so many write quorums is lost in this way.

        The same bookies and racks that fail together take all write quorums with them that lie on them alone: a number
        that is drawn from a Poisson distribution.
        """
        if self.is_latent:
            return windows * self.per_year
        sets = 1.0
        for at, rack in enumerate(self.state):
            sets *= max(racks - at, 1) * (1.0 if rack.is_lost else _choices(in_rack, rack.lost))
        for alike in Counter(self.state).values():
            sets /= math.factorial(alike)
        sets = max(sets, 1.0)
        # A write quorum meets each of its labellings of one state: racks of equal size are exchanged.
        ways = 1.0
        for size, count in Counter(rack.copies for rack in self.state).items():
            ways *= math.factorial(count)
            for alike in Counter(rack for rack in self.state if rack.copies == size).values():
                ways /= math.factorial(alike)
        return sets / ways * self.per_year * -math.expm1(-windows * ways / sets)


def _choices(count: float, size: int) -> float:
    """How many sets of `size` there are among `count` bookies, which may be no whole number."""
    return math.prod(max(count - at, 1.0) / (at + 1) for at in range(size))


def rack_layout(write_quorum: int, racks: int) -> tuple[int, ...]:
    """Return how many copies of an entry lie in each rack that has some: as many racks as can be, evenly."""
    used = min(write_quorum, racks)
    return tuple(sorted(write_quorum // used + (at < write_quorum % used) for at in range(used)))


class LossChain:
    """The chain of one write quorum.

    Args:
        layout: copies by rack, see `rack_layout`.
        rates: what drives it.
        year_s: seconds of a year.
    """

    def __init__(self, layout: tuple[int, ...], rates: LossRates, year_s: float) -> None:
        self._layout, self._rates, self._year_s = layout, rates, year_s
        self._total = sum(layout)

    def losses(self) -> list[Loss]:
        """Return every way in which the last copy is lost, and how often."""
        states = self._states()
        numbers = {state: number for number, state in enumerate(states)}
        flows = [[0.0] * len(states) for _ in states]
        ends: list[tuple[int, Loss]] = []
        for number, state in enumerate(states):
            for target, rate in self._moves(state):
                if _missing(target) == self._total:
                    ends.append((number, Loss(target, rate, is_latent=False)))
                    flows[number][0] += rate
                else:
                    flows[number][numbers[target]] += rate
            for target, rate in self._repairs(state):
                unreadable = self._rates.unreadable[self._total - _missing(state)]
                ends.append((number, Loss(state, rate * unreadable, is_latent=True)))
                flows[number][0] += rate * unreadable
                flows[number][numbers[target]] += rate * (1 - unreadable)
        shares = stationary(flows)
        return [Loss(loss.state, loss.per_year * shares[number], loss.is_latent) for number, loss in ends]

    def _states(self) -> list[State]:
        """Those that can be reached before a loss; the first one lacks nothing."""
        states = [_sorted(RackState(copies) for copies in self._layout)]
        known = set(states)
        for state in states:
            for target, rate in (*self._moves(state), *self._repairs(state)):
                if rate > 0 and target not in known and _missing(target) < self._total:
                    known.add(target)
                    states.append(target)
        return states

    def _moves(self, state: State) -> Iterator[tuple[State, float]]:
        """Losses of bookies and racks."""
        for at, rack in enumerate(state):
            if rack.is_lost:
                continue
            if rack.lost < rack.copies and self._rates.bookie > 0:
                yield (
                    _with(state, at, rack._replace(lost=rack.lost + 1)),
                    (rack.copies - rack.lost) * self._rates.bookie,
                )
            if self._rates.rack > 0:
                yield _with(state, at, RackState(rack.copies, 0, True)), self._rates.rack

    def _repairs(self, state: State) -> Iterator[tuple[State, float]]:
        """Copies that are made again. Ledgers that lack several come first: see docs/durability.md."""
        lost = sum(rack.lost > 0 or rack.is_lost for rack in state)
        rates = self._rates
        for at, rack in enumerate(state):
            if rack.is_lost:
                rate = 1 / rates.rack_s
                if lost > 1:
                    rate = max(rate, 1 / (lost * rates.urgent_rack_s))
                yield _with(state, at, RackState(rack.copies)), rate * self._year_s
            elif rack.lost:
                rate = rack.lost / rates.single_s
                if _missing(state) > 1:
                    rate = max(rate, rack.lost / (_missing(state) * rates.urgent_single_s))
                yield _with(state, at, rack._replace(lost=rack.lost - 1)), rate * self._year_s


def _sorted(racks: Iterator[RackState]) -> State:
    return tuple(sorted(racks))


def _with(state: State, at: int, rack: RackState) -> State:
    return _sorted(rack if number == at else count for number, count in enumerate(state))


def _missing(state: State) -> int:
    return sum(rack.missing for rack in state)


def stationary(flows: list[list[float]]) -> list[float]:
    """Return the stationary distribution of a chain from the rates between its states.

    Grassmann, Taksar and Heyman's elimination: it subtracts nothing, so that the smallest probability is as exact as
    the largest one. Every state must be reachable from the first one, and the first one from every state.
    """
    rows = [list(row) for row in flows]
    for last in range(len(rows) - 1, 0, -1):
        leaving = sum(rows[last][:last])
        for row in rows[:last]:
            row[last] /= leaving
            if row[last]:
                for target in range(last):
                    row[target] += row[last] * rows[last][target]
    shares = [1.0]
    for state in range(1, len(rows)):
        shares.append(sum(shares[other] * rows[other][state] for other in range(state)))
    whole = sum(shares)
    return [share / whole for share in shares]
