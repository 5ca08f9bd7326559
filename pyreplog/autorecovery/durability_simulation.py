"""Durability simulation: draws random failures on a cluster of many ledgers, and counts lost ledgers and copied bytes.

The simulation is driven by events: the loss of a bookie or a rack, an absence longer than the delay, an order, the
return or replacement of a bookie. Between events copies are made in order of urgency at the rate of the workers; they
are applied at the next event, to all ledgers at once. docs/durability.md describes the model.

To observe rare losses, failure rates can be raised by a factor f. Each failure then belongs to the stated rates with
probability 1 / f, so a loss caused by m failures counts f ** -m.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog.autorecovery.durability_model import (
    MANY_AWAY_SHARE,
    METADATA_OPERATIONS,
    YEAR_S,
    PlanInputs,
    storage_factor,
)
from pyreplog.autorecovery.loss_chain import rack_layout
from pyreplog.autorecovery.placement_model import Flags, Ints, PlacementModel
from pyreplog.autorecovery.poisson_interval import Interval, weighted_interval
from pyreplog.errors import ConfigError

LEDGERS_MAX = 20_000_000
_NEVER = math.inf
_NEGLIGIBLE = 1e-14


@dataclass(frozen=True)
class SimulatedDurability:
    """The result of a simulation. Rates are those at the stated failure rates, whatever the factor `raised`.

    Attributes:
        years: simulated years.
        seed: seed of the random numbers.
        raised: factor on the rates at which bookies and racks are lost.
        bookie_losses: simulated losses of single bookies.
        rack_losses: simulated losses of racks.
        long_outages: simulated outages longer than the delay.
        coincidences: number of different sets of failures that destroyed all copies of entries.
        ledgers_lost: number of simulated ledgers that lost all copies of an entry.
        latent_per_year: expected losses of ledgers per year by unreadable last copies; included in `losses_per_year`.
        losses_per_year: ledgers lost per year, with the 95 % interval.
        events_per_year: events per year in which at least one ledger is lost, with the 95 % interval.
        single_s: mean time from the loss of a bookie to the next copy of each of its entries; nan: no bookie was lost.
        rack_s: the same for racks.
        copied_for_bookies: bytes copied per year for lost bookies.
        copied_for_racks: bytes copied per year for lost racks.
        copied_for_outages: bytes copied per year for long outages.
    """

    years: float
    seed: int
    raised: float
    bookie_losses: int
    rack_losses: int
    long_outages: int
    coincidences: int
    ledgers_lost: int
    latent_per_year: float
    losses_per_year: Interval
    events_per_year: Interval
    single_s: float
    rack_s: float
    copied_for_bookies: float
    copied_for_racks: float
    copied_for_outages: float

    @property
    def copied_per_year(self) -> float:
        """All bytes copied per year."""
        return self.copied_for_bookies + self.copied_for_racks + self.copied_for_outages


class RebuildCause(IntEnum):
    """Why copies are replicated again."""

    BOOKIE = 0
    RACK = 1
    OUTAGE = 2


class _Kind(IntEnum):
    FAILURE = 0
    ORDER = 1
    RETURN = 2


class _Event(NamedTuple):
    at_s: float
    number: int
    kind: _Kind
    bookie: int
    stamp: int


class _Tasks:
    """Copies to make, as columns of equal length."""

    def __init__(self) -> None:
        self.ledger: Ints = np.empty(0, np.int32)
        self.place: Ints = np.empty(0, np.int32)
        self.source: Ints = np.empty(0, np.int32)
        self.cause: Ints = np.empty(0, np.int32)
        self.ordered_s: NDArray[np.float64] = np.empty(0)
        self.finish_s: NDArray[np.float64] = np.empty(0)

    def __len__(self) -> int:
        return len(self.ledger)

    def add(self, ledger: Ints, place: Ints, source: int, cause: int, now_s: float) -> None:
        count = len(ledger)
        self.ledger = np.concatenate([self.ledger, ledger])
        self.place = np.concatenate([self.place, place])
        self.source = np.concatenate([self.source, np.full(count, source, np.int32)])
        self.cause = np.concatenate([self.cause, np.full(count, cause, np.int32)])
        self.ordered_s = np.concatenate([self.ordered_s, np.full(count, now_s)])
        self.finish_s = np.concatenate([self.finish_s, np.full(count, _NEVER)])

    def keep(self, chosen: Flags) -> None:
        self.ledger, self.place, self.source = self.ledger[chosen], self.place[chosen], self.source[chosen]
        self.cause, self.ordered_s, self.finish_s = self.cause[chosen], self.ordered_s[chosen], self.finish_s[chosen]


class DurabilitySimulation:
    """One simulation run.

    Args:
        inputs: the modelled cluster; at most 20 million ledgers.
        seed: seed of all random numbers.
        raised: factor on the rates at which bookies and racks are lost.

    Raises:
        ConfigError: there are too many ledgers, or `raised` is below 1.

    Example:
        >>> DurabilitySimulation(PlanInputs(bookies=20, racks=5, ledgers=1000), seed=1).run(5.0).rack_losses
        2
    """

    def __init__(self, inputs: PlanInputs, *, seed: int = 0, raised: float = 1.0) -> None:
        if inputs.ledgers > LEDGERS_MAX:
            raise ConfigError(f"ledgers: a simulation takes up to {LEDGERS_MAX}, found {inputs.ledgers}")
        if not 1 <= raised <= 1e6:
            raise ConfigError(f"raised: expected 1 to 1e6, found {raised:g}")
        self._inputs, self._seed, self._raised = inputs, seed, raised
        self._random = np.random.default_rng(seed)
        size, count = inputs.ensemble, inputs.bookies
        self._placement = PlacementModel(count, inputs.racks, size, inputs.write_quorum, self._random)
        self._ensembles = self._placement.new_ledgers(inputs.ledgers)
        self._missing: Flags = np.zeros((inputs.ledgers, size), np.bool_)
        self._lost_by: Ints = np.zeros((inputs.ledgers, size), np.int32)  # failure that removed each missing copy
        self._loads = np.bincount(self._ensembles.ravel(), minlength=count).astype(np.float64)
        room = inputs.disks * inputs.disk_bytes * inputs.write_quorum / storage_factor(inputs)
        self._room = room / inputs.member_bytes  # number of members that fit on a bookie
        self._up: Flags = np.ones(count, np.bool_)
        self._stamps = np.zeros(count, np.int64)  # number of the current absence of each bookie
        self._is_lost: Flags = np.zeros(count, np.bool_)
        self._ordered: Flags = np.zeros(count, np.bool_)
        self._failures: list[tuple[float, RebuildCause]] = []
        self._failed: dict[tuple[int, int], int] = {}  # (bookie, stamp) -> index of the failure
        self._tasks = _Tasks()
        self._events: list[_Event] = []
        self._number = 0
        self._since_s = 0.0  # since when the next copies are in progress
        self._changed_s = _NEVER  # when bookies or tasks last changed: copies have to be scheduled again
        self._counts = [0, 0, 0]
        self._unreadable = np.array([inputs.unreadable(copies) for copies in range(inputs.write_quorum + 1)])
        # lost ledgers, and expected latent losses
        self._losses: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._copied = np.zeros(3)
        self._waited = np.zeros((3, 2))  # total seconds, and number of copies

    # ---- events ---------------------------------------------------------------------------------------------

    def run(self, years: float) -> SimulatedDurability:
        """Run the simulation for a number of years.

        Args:
            years: number of years, above 0.

        Returns:
            The losses and the copied bytes.
        """
        if not 0 < years <= 1e9:
            raise ConfigError(f"years: expected more than 0, found {years:g}")
        end_s = years * YEAR_S
        inputs, raised = self._inputs, self._raised
        rates = np.array(
            [
                inputs.bookies * inputs.bookie_losses_per_year * raised,
                inputs.racks * inputs.rack_failures_per_year * raised,
                inputs.bookies * inputs.long_outages_per_year,
            ]
        )
        total = float(rates.sum()) / YEAR_S
        shares = np.cumsum(rates) / rates.sum() if total else rates
        self._push(self._wait(total), _Kind.FAILURE)
        while self._events and self._events[0].at_s <= end_s:
            event = heapq.heappop(self._events)
            self._advance(event.at_s)
            if event.kind is _Kind.FAILURE:
                self._fail(event.at_s, RebuildCause(int(np.searchsorted(shares, self._random.random(), side="right"))))
                self._push(event.at_s + self._wait(total), _Kind.FAILURE)
            elif event.stamp == self._stamps[event.bookie]:
                (self._order if event.kind is _Kind.ORDER else self._handle_return)(event)
        self._advance(end_s)
        return self._result(years)

    def _wait(self, per_s: float) -> float:
        return float(self._random.exponential(1 / per_s)) if per_s else _NEVER

    def _push(self, at_s: float, kind: _Kind, bookie: int = -1) -> None:
        self._number += 1
        stamp = int(self._stamps[bookie]) if bookie >= 0 else 0
        heapq.heappush(self._events, _Event(at_s, self._number, kind, bookie, stamp))

    def _fail(self, now_s: float, cause: RebuildCause) -> None:
        inputs = self._inputs
        if cause is RebuildCause.RACK:
            rack = int(self._random.integers(inputs.racks))
            bookies = np.flatnonzero((self._placement.rack_of == rack) & ~self._is_lost)
        else:
            bookie = int(self._random.integers(inputs.bookies))
            busy = self._is_lost[bookie] if cause is RebuildCause.BOOKIE else not self._up[bookie]
            bookies = np.array([] if busy else [bookie], np.int64)
        if not len(bookies):
            return
        self._counts[cause] += 1
        if cause is RebuildCause.OUTAGE:
            self._begin_outage(now_s, int(bookies[0]))
            return
        self._failures.append((now_s, cause))
        self._lose(now_s, bookies)

    def _begin_outage(self, now_s: float, bookie: int) -> None:
        """Begin an outage longer than the delay. The rest of an exponential length has the same distribution."""
        self._stamps[bookie] += 1
        self._up[bookie] = False
        ordered_s = now_s + self._inputs.delay_s
        self._push(ordered_s, _Kind.ORDER, bookie)
        self._push(ordered_s + float(self._random.exponential(self._inputs.outage_s)), _Kind.RETURN, bookie)

    def _lose(self, now_s: float, bookies: NDArray[np.int64]) -> None:
        failure = len(self._failures) - 1
        self._up[bookies], self._is_lost[bookies] = False, True
        touched = []
        for bookie in bookies.tolist():
            self._withdraw(bookie)
            self._stamps[bookie] += 1
            ledger, place = self._members(bookie)
            here = ~self._missing[ledger, place]
            ledger, place = ledger[here], place[here]
            self._missing[ledger, place] = True
            self._lost_by[ledger, place] = failure
            self._loads[bookie] = 0
            self._failed[bookie, int(self._stamps[bookie])] = failure
            self._push(now_s + min(self._inputs.delay_s, self._inputs.operator_s), _Kind.ORDER, bookie)
            self._push(now_s + self._inputs.operator_s, _Kind.RETURN, bookie)
            touched.append(ledger)
        self._count_losses(np.unique(np.concatenate(touched)))
        self._changed_s = now_s

    def _order(self, event: _Event) -> None:
        """Place an order for a bookie, unless too many are absent."""
        bookie, absent = event.bookie, ~self._up
        is_declared = event.at_s >= self._away_since(event) + self._inputs.operator_s
        if absent.sum() > 1 and absent.mean() > MANY_AWAY_SHARE and not is_declared:
            if not self._is_lost[bookie]:
                self._push(event.at_s + self._inputs.delay_s + 1.0, _Kind.ORDER, bookie)
            return  # a lost bookie waits for its successor or an operator
        self._place_order(event.at_s, bookie)

    def _away_since(self, event: _Event) -> float:
        failure = self._failed.get((event.bookie, event.stamp))
        return _NEVER if failure is None else self._failures[failure][0]

    def _place_order(self, now_s: float, bookie: int) -> None:
        if self._ordered[bookie]:
            return
        self._ordered[bookie] = True
        ledger, place = self._members(bookie)
        failure = self._failed.get((bookie, int(self._stamps[bookie])), -1)
        if failure >= 0:
            mine = self._missing[ledger, place] & (self._lost_by[ledger, place] == failure)
        else:
            mine = ~self._missing[ledger, place]
        self._tasks.add(ledger[mine], place[mine], bookie, failure, now_s)
        self._changed_s = now_s

    def _handle_return(self, event: _Event) -> None:
        """End the absence of a bookie: it returns with its data, or an empty one replaces it under the same name."""
        bookie = event.bookie
        if self._is_lost[bookie]:
            self._place_order(event.at_s, bookie)  # the registration of the successor proves the loss
            self._is_lost[bookie] = False
        else:
            self._withdraw(bookie)
            self._stamps[bookie] += 1
        self._up[bookie] = True
        self._ordered[bookie] = False
        self._changed_s = event.at_s

    def _withdraw(self, bookie: int) -> None:
        """Withdraw the order for a bookie that is away."""
        if self._ordered[bookie]:
            self._ordered[bookie] = False
            self._tasks.keep((self._tasks.source != bookie) | (self._tasks.cause >= 0))

    def _members(self, bookie: int) -> tuple[Ints, Ints]:
        """Return the ledgers that name a bookie, and its places in them."""
        packed = np.flatnonzero(self._ensembles.ravel() == bookie).astype(np.int32)
        ledger, place = np.divmod(packed, np.int32(self._inputs.ensemble))
        return ledger, place

    # ---- copies ---------------------------------------------------------------------------------------------

    def _schedule(self, now_s: float) -> None:
        """Compute when each copy is made: ledgers with the fewest copies first, then in the order of the tasks."""
        tasks, inputs = self._tasks, self._inputs
        self._changed_s = _NEVER
        if not len(tasks):
            return
        gone = self._missing[tasks.ledger]
        gone[np.arange(len(tasks)), tasks.place] = True
        left = self._present(~gone).min(axis=1).astype(np.int8)
        order = np.argsort(left, kind="stable")  # tasks are in the order of their orders
        workers = max(min(int(self._up.sum()), len(tasks)), 1)
        one_s = inputs.member_bytes / inputs.worker_bytes_per_s
        step_s = max(one_s / workers, METADATA_OPERATIONS / inputs.metadata_operations_per_s)
        self._since_s = max(self._since_s, now_s - step_s * workers)
        done_s = self._since_s + step_s * np.arange(1, len(tasks) + 1)
        tasks.finish_s[order] = np.maximum(done_s, tasks.ordered_s[order] + one_s)

    def _present(self, here: Flags) -> NDArray[np.int8]:
        """Return the number of present copies in each window of each row."""
        size, quorum = self._inputs.ensemble, self._inputs.write_quorum
        windows = range(self._inputs.windows)
        columns = [sum(here[:, (window + step) % size].astype(np.int8) for step in range(quorum)) for window in windows]
        return np.stack(columns, axis=1)

    def _advance(self, now_s: float) -> None:
        """Make the copies that are due by now."""
        tasks = self._tasks
        if self._changed_s < now_s:
            self._schedule(self._changed_s)
        done = tasks.finish_s <= now_s
        if done.any():
            self._since_s = float(tasks.finish_s[done].max())
            stuck = self._copy(np.flatnonzero(done))
            tasks.finish_s[stuck] = _NEVER
            done[stuck] = False
            tasks.keep(~done)
        if not len(tasks):
            self._since_s = now_s

    def _copy(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make copies, those of one ledger sequentially. Returns the tasks that are impossible now."""
        stuck = []
        rows = rows[np.argsort(self._tasks.finish_s[rows], kind="stable")]
        while len(rows):
            _, first = np.unique(self._tasks.ledger[rows], return_index=True)
            stuck.append(self._copy_once(rows[first]))
            rows = np.delete(rows, first)
        return np.concatenate(stuck)

    def _copy_once(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make at most one copy of each ledger."""
        tasks = self._tasks
        ledger, place, source = tasks.ledger[rows], tasks.place[rows], tasks.source[rows]
        still = (self._ensembles[ledger, place] == source) & (self._missing[ledger, place] == (tasks.cause[rows] >= 0))
        rows, ledger, place = rows[still], ledger[still], place[still]
        ensembles, missing = self._ensembles[ledger], self._missing[ledger]
        readable = self._present(~missing & self._up[ensembles])
        affected = self._windows_of(place)
        fine = ((readable > 0) | ~affected).all(axis=1)
        target = np.full(len(rows), -1, np.int32)
        weights = np.where(self._up, np.maximum(1 - self._loads / self._room, 1e-3), 0.0)
        target[fine] = self._placement.targets(ensembles[fine], missing[fine], place[fine], weights)
        moved = target >= 0
        self._note_unreadable(ledger[moved], tasks.cause[rows[moved]], missing[moved], affected[moved])
        self._move(rows[moved], ledger[moved], place[moved], target[moved])
        return rows[~moved]

    def _windows_of(self, place: Ints) -> Flags:
        """Return the windows that contain a place, for each row."""
        windows = np.arange(self._inputs.windows)
        return (place[:, None] - windows) % self._inputs.ensemble < self._inputs.write_quorum

    def _move(self, rows: NDArray[np.int64], ledger: Ints, place: Ints, target: Ints) -> None:
        self._ensembles[ledger, place] = target
        self._missing[ledger, place] = False
        failure, finish_s = self._tasks.cause[rows], self._tasks.finish_s[rows]
        for number in np.unique(failure).tolist():
            mine = failure == number
            since_s, cause = self._failures[number] if number >= 0 else (0.0, RebuildCause.OUTAGE)
            self._copied[cause] += mine.sum() * self._inputs.member_bytes
            self._waited[cause] += (finish_s[mine] - since_s).sum(), mine.sum()
        returning = failure < 0
        np.add.at(self._loads, target, 1)
        np.subtract.at(self._loads, self._tasks.source[rows[returning]], 1)

    # ---- losses ---------------------------------------------------------------------------------------------

    def _count_losses(self, ledgers: Ints) -> None:
        """Count the ledgers with a window without copies. They continue as newly written ledgers."""
        empty = self._present(~self._missing[ledgers]) == 0
        for row in np.flatnonzero(empty.any(axis=1)).tolist():
            ledger = int(ledgers[row])
            window = int(np.flatnonzero(empty[row])[0])
            self._losses[self._causes(ledger, window)][0] += 1
            self._renew(ledger)

    def _causes(self, ledger: int, window: int) -> tuple[int, ...]:
        """Return the failures that removed copies of a window."""
        places = (window + np.arange(self._inputs.write_quorum)) % self._inputs.ensemble
        gone = places[self._missing[ledger, places]]
        return tuple(sorted(set(self._lost_by[ledger, gone].tolist())))

    def _renew(self, ledger: int) -> None:
        """Give a lost ledger new members for all missing copies: the successors, if no other bookies are available."""
        for place in np.flatnonzero(self._missing[ledger]).tolist():
            row = np.array([ledger], np.int32)
            weights = self._up.astype(np.float64)
            spot = np.array([place], np.int32)
            target = self._placement.targets(self._ensembles[row], self._missing[row], spot, weights)
            self._missing[ledger, place] = False
            if target[0] >= 0:
                self._ensembles[ledger, place] = target[0]
                self._loads[target] += 1

    def _note_unreadable(self, ledger: Ints, failure: Ints, missing: Flags, affected: Flags) -> None:
        """Add the expected losses by unreadable entries during these copies."""
        good = self._present(~missing)
        chances = np.where(affected, self._unreadable[good], 0.0)
        # no other copy of the window is missing
        alone = (good == self._inputs.write_quorum - 1) & (failure >= 0)[:, None]
        for number in np.unique(failure[failure >= 0]).tolist():
            chance = float(chances[alone & (failure == number)[:, None]].sum())
            if chance > _NEGLIGIBLE:
                self._losses[(number,)][1] += chance
        for row, window in np.argwhere(~alone & (chances > _NEGLIGIBLE)).tolist():
            self._losses[self._causes(int(ledger[row]), window)][1] += float(chances[row, window])

    def _result(self, years: float) -> SimulatedDurability:
        raised, groups = self._raised, self._losses
        # A loss takes at least as many failures as the quorum has racks, or, without rack failures, Qw bookies.
        racks = self._inputs.rack_failures_per_year > 0
        least = len(rack_layout(self._inputs.write_quorum, self._inputs.racks)) if racks else self._inputs.write_quorum
        heaviest = raised**-least / years
        ledgers = [(whole + latent) * raised ** -len(causes) / years for causes, (whole, latent) in groups.items()]
        events = [min(whole + latent, 1) * raised ** -len(causes) / years for causes, (whole, latent) in groups.items()]
        latent = sum(latent * raised ** -len(causes) / years for causes, (_, latent) in groups.items())
        waited = [float(total / count) if count else math.nan for total, count in self._waited]
        copied = self._copied / years / np.array([raised, raised, 1.0])
        return SimulatedDurability(
            years=years,
            seed=self._seed,
            raised=raised,
            bookie_losses=self._counts[RebuildCause.BOOKIE],
            rack_losses=self._counts[RebuildCause.RACK],
            long_outages=self._counts[RebuildCause.OUTAGE],
            coincidences=sum(whole > 0 for whole, _ in groups.values()),
            ledgers_lost=int(sum(whole for whole, _ in groups.values())),
            latent_per_year=latent,
            losses_per_year=weighted_interval(ledgers, heaviest),
            events_per_year=weighted_interval(events, heaviest),
            single_s=waited[RebuildCause.BOOKIE],
            rack_s=waited[RebuildCause.RACK],
            copied_for_bookies=float(copied[RebuildCause.BOOKIE]),
            copied_for_racks=float(copied[RebuildCause.RACK]),
            copied_for_outages=float(copied[RebuildCause.OUTAGE]),
        )  # fmt: skip
