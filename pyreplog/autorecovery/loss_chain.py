"""LossChain: a Markov chain of the copies of one write quorum, for the rate at which all copies of an entry are lost.

A state has, for each rack with copies, how many of them were lost independently, or that the whole rack was lost. Racks
with equal states are interchangeable, so a state is a sorted tuple. When no copy is left, the chain counts a loss and
restarts, so the flow of losses in its stationary distribution is the rate of losses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class RackState(NamedTuple):
    """A rack that holds `copies` of an entry, of which `lost` were lost independently, or all at once if `is_lost`."""

    copies: int
    lost: int = 0
    is_lost: bool = False

    @property
    def missing(self) -> int:
        return self.copies if self.is_lost else self.lost


State = tuple[RackState, ...]


@dataclass(frozen=True)
class LossRates:
    """The transition rates of the chain.

    Attributes:
        bookie: independent losses of one bookie per year.
        rack: losses of one rack per year.
        single_s: mean seconds until a copy of a lost bookie is replicated again.
        rack_s: the same for the bookies of a rack.
        urgent_single_s: mean seconds for a ledger that lacks several copies, if the last loss was that of a bookie.
        urgent_rack_s: the same, if the last loss was that of a rack.
        unreadable: probability that an entry cannot be read from any of n good copies, by n.
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
    """A way in which a write quorum loses its last copy.

    Attributes:
        state: state of the chain at the loss.
        per_year: rate for one write quorum, per year.
        is_latent: whether the last copies existed, but were unreadable.
    """

    state: State
    per_year: float
    is_latent: bool

    def events(self, windows: float, racks: int, in_rack: float) -> float:
        """Return how often per year at least one of `windows` write quorums is lost in this way.

        A set of bookies and racks that fail together destroys all write quorums that are within it. Their number has a
        Poisson distribution.
        """
        if self.is_latent:
            return windows * self.per_year
        sets = 1.0
        for at, rack in enumerate(self.state):
            sets *= max(racks - at, 1) * (1.0 if rack.is_lost else _choices(in_rack, rack.lost))
        for alike in Counter(self.state).values():
            sets /= math.factorial(alike)
        sets = max(sets, 1.0)
        # A write quorum counts each labelling of a state, because racks of equal size can be exchanged.
        ways = 1.0
        for size, count in Counter(rack.copies for rack in self.state).items():
            ways *= math.factorial(count)
            for alike in Counter(rack for rack in self.state if rack.copies == size).values():
                ways /= math.factorial(alike)
        return sets / ways * self.per_year * -math.expm1(-windows * ways / sets)


def _choices(count: float, size: int) -> float:
    """Return the number of sets of `size` bookies among `count`, which may be fractional."""
    return math.prod(max(count - at, 1.0) / (at + 1) for at in range(size))


def rack_layout(write_quorum: int, racks: int) -> tuple[int, ...]:
    """Return the number of copies of an entry in each rack that has some: as many racks as possible, evenly."""
    used = min(write_quorum, racks)
    return tuple(sorted(write_quorum // used + (at < write_quorum % used) for at in range(used)))


class LossChain:
    """The chain of one write quorum.

    Args:
        layout: number of copies in each rack, see `rack_layout`.
        rates: transition rates.
        year_s: seconds per year.
    """

    def __init__(self, layout: tuple[int, ...], rates: LossRates, year_s: float) -> None:
        self._layout, self._rates, self._year_s = layout, rates, year_s
        self._total = sum(layout)

    def losses(self) -> list[Loss]:
        """Return every way in which the last copy is lost, with its rate."""
        states = self._states()
        numbers = {state: number for number, state in enumerate(states)}
        flows = [[0.0] * len(states) for _ in states]
        ends: list[tuple[int, Loss]] = []
        for number, state in enumerate(states):
            for target, rate in self._losses(state):
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
        """Return the states that are reachable before a loss, beginning with the one without missing copies."""
        states = [_sorted(RackState(copies) for copies in self._layout)]
        known = set(states)
        for state in states:
            for target, rate in (*self._losses(state), *self._repairs(state)):
                if rate > 0 and target not in known and _missing(target) < self._total:
                    known.add(target)
                    states.append(target)
        return states

    def _losses(self, state: State) -> Iterator[tuple[State, float]]:
        """Yield the transitions by losses of bookies and racks, with their rates."""
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
        """Yield the transitions by repaired copies.

        Ledgers that lack several copies come first, see docs/durability.md.
        """
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

    The algorithm of Grassmann, Taksar and Heyman has no subtractions, so the smallest probability is as exact as the
    largest one. Every state must be reachable from the first one, and the first one from every state.
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
