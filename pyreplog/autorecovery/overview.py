"""RecoveryOverview: auto-recovery of a cluster at one moment, for operators. RecoveryWatch takes it periodically."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyreplog.autorecovery.health import ClusterHealth, check_health, find_membership
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.ledger_survey import LedgerSurvey, survey_ledgers
from pyreplog.autorecovery.lost_entries import count_lost
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.status import find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker_status import list_workers
from pyreplog.bookie.bookie_state import BookieState, list_bookie_states
from pyreplog.clock import Clock
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.status import BookieStatus

_WINDOW_US = 60_000_000
"""Maximum interval over which the rate of an order is measured, microseconds."""


@dataclass(frozen=True)
class OrderOverview:
    """A bookie whose copies are replicated again.

    Attributes:
        bookie: id of the bookie.
        phase: away, lost, draining or retired; "": none of these.
        reason: reason of the order.
        since_us: time of the order, microseconds since 1970-01-01 UTC; 0: unknown.
        ledgers_left: number of ledgers that name it.
        bytes_left: size of its copies, bytes, estimated from the metadata of closed ledgers.
        bytes_per_s: rate at which `bytes_left` decreases; 0: nothing was copied.
        eta_s: estimated seconds until the end at this rate; None: unknown.
    """

    bookie: str
    phase: str
    reason: str
    since_us: int
    ledgers_left: int
    bytes_left: int
    bytes_per_s: float
    eta_s: float | None


@dataclass(frozen=True)
class RecoveryOverview:
    """Auto-recovery of a cluster at one moment.

    Attributes:
        at_us: the time, microseconds since 1970-01-01 UTC.
        health: the health of the cluster.
        orders: bookies whose copies are replicated again.
        one_copy_entries: number of entries with at most one copy on running bookies; for Qw = 1, of entries without a
            copy. In ledgers that are not closed, only entries before the last fragment count.
        lost_entries: number of entries that are listed as lost.
        rack_violations: number of ledgers with entries whose copies are all in one of several racks.
        hold: the hold, with its time and reason; None: auto-recovery is not suspended.
        bookies: the running bookies.
        progress: number of ledgers left over time, as pairs (time, number from then on).
    """

    at_us: int
    health: ClusterHealth
    orders: tuple[OrderOverview, ...]
    one_copy_entries: int
    lost_entries: int
    rack_violations: int
    hold: TimedReason | None
    bookies: tuple[BookieStatus, ...]
    progress: tuple[tuple[int, int], ...]


class RecoveryWatch:
    """Takes overviews of auto-recovery, and measures the rate of each order between them.

    One thread at a time calls it.

    Args:
        runtime: runtime of the cluster.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, clock: Clock) -> None:
        self._runtime, self._store, self._clock = runtime, runtime.metadata, clock
        self._samples: dict[str, deque[tuple[int, int]]] = {}  # (monotonic time, bytes left) of each bookie, ascending

    def take_overview(self, *, limbo: Callable[[], list[tuple[int, str]]] | None = None) -> RecoveryOverview:
        """Return an overview of auto-recovery, from the metadata of all ledgers and without requests to bookies.

        Args:
            limbo: asks bookies for ledgers in limbo, as `check_health` takes it.

        Raises:
            MetadataLayoutError: the store has to be migrated.
            ReplogError: errors of the store.
        """
        placed, states = list_orders(self._store), self._states()
        survey = survey_ledgers(self._store, find_membership(self._runtime, states))
        health = check_health(self._runtime, limbo=limbo, survey=survey, now_us=self._clock.now_us())
        one_copy = sum(survey.one_copy.values()) + sum(survey.no_copy.values())
        bookies = sorted(self._runtime.bookie_statuses(), key=lambda each: each.bookie)
        try:
            status = find_status(self._store)
        except InvalidMetadataError:  # reported as a finding of the health
            status = None
        return RecoveryOverview(
            self._clock.now_us(), health, self._orders(placed, states, survey), one_copy, count_lost(self._store),
            len(survey.rack_violations), find_hold(self._store), tuple(bookies),
            () if status is None else status.progress,
        )  # fmt: skip

    def _states(self) -> Mapping[str, BookieState]:
        try:
            return list_bookie_states(self._store)
        except InvalidMetadataError:  # reported as a finding of the health
            return {}

    def _orders(
        self, placed: Mapping[str, TimedReason], states: Mapping[str, BookieState], survey: LedgerSurvey
    ) -> tuple[OrderOverview, ...]:
        """Return the orders with their rates, as measured here or, at first, as a share of what workers report."""
        try:
            reported = sum(worker.bytes_per_s for worker in list_workers(self._store).values())
        except InvalidMetadataError:  # written by a newer version: its rate is unknown
            reported = 0
        self._samples = {bookie: samples for bookie, samples in self._samples.items() if bookie in placed}
        total = sum(survey.leaving_bytes.get(bookie, 0) for bookie in placed)
        orders = []
        for bookie, order in placed.items():
            left = survey.leaving_bytes.get(bookie, 0)
            rate = self._measured_rate(bookie, left)
            if rate is None:
                rate = reported * left / total if total else 0.0
            phase = str(states[bookie].phase) if bookie in states else ""
            orders.append(
                OrderOverview(
                    bookie, phase, order.reason, order.since_us, survey.leaving.get(bookie, 0), left, rate,
                    left / rate if rate and left else None,
                )
            )  # fmt: skip
        return tuple(orders)

    def _measured_rate(self, bookie: str, left: int) -> float | None:
        """Return the rate at which the bytes left decreased over the last overviews; None: this is the first one."""
        now_us = self._clock.monotonic_us()
        samples = self._samples.setdefault(bookie, deque())
        samples.append((now_us, left))
        while len(samples) > 2 and samples[1][0] <= now_us - _WINDOW_US:
            samples.popleft()
        began_us, before = samples[0]
        return max(before - left, 0) * 1e6 / (now_us - began_us) if now_us > began_us else None
