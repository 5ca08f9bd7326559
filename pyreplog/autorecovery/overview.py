"""RecoveryOverview: what operators see of auto-recovery at one moment; RecoveryWatch makes it again and again."""

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
"""The rate of an order is measured over so long at most."""


@dataclass(frozen=True)
class OrderOverview:
    """One bookie whose copies are made again.

    Attributes:
        bookie: id of the bookie.
        phase: away, lost, draining or retired; "": none.
        reason: why there is an order.
        since_us: since when there is one, microseconds since 1970-01-01 UTC; 0: unknown.
        ledgers_left: ledgers that name it.
        bytes_left: bytes of its copies, as far as the metadata of closed ledgers tell.
        bytes_per_s: bytes by which that number falls in a second; 0: nothing was copied.
        eta_s: seconds that are left at this rate; None: unknown.
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
        at_us: the moment, microseconds since 1970-01-01 UTC.
        health: the health of the cluster.
        orders: bookies whose copies are made again.
        one_copy_entries: entries of which at most one copy lies on a bookie that runs; of those that ask for one copy,
            entries without it. Of ledgers that are not closed, those before the last fragment.
        lost_entries: entries that are listed as lost.
        rack_violations: ledgers with entries whose copies all lie in one of several racks.
        hold: since when and why auto-recovery is suspended; None: it is not.
        bookies: the bookies that run.
        progress: how many ledgers were left, as pairs of a time and the number from then on.
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
    """Looks at auto-recovery again and again, and measures how fast orders are worked off. One thread at a time.

    Args:
        runtime: of a cluster.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, clock: Clock) -> None:
        self._runtime, self._store, self._clock = runtime, runtime.metadata, clock
        self._seen: dict[str, deque[tuple[int, int]]] = {}  # bookie -> (monotonic time, bytes left), ascending

    def look(self, *, limbo: Callable[[], list[tuple[int, str]]] | None = None) -> RecoveryOverview:
        """Return how auto-recovery is. Reads the metadata of all ledgers, and asks no bookie.

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
        except InvalidMetadataError:  # a finding of the health
            status = None
        return RecoveryOverview(
            self._clock.now_us(), health, self._orders(placed, states, survey), one_copy, count_lost(self._store),
            len(survey.rack_violations), find_hold(self._store), tuple(bookies),
            () if status is None else status.progress,
        )  # fmt: skip

    def _states(self) -> Mapping[str, BookieState]:
        try:
            return list_bookie_states(self._store)
        except InvalidMetadataError:  # a finding of the health
            return {}

    def _orders(
        self, placed: Mapping[str, TimedReason], states: Mapping[str, BookieState], survey: LedgerSurvey
    ) -> tuple[OrderOverview, ...]:
        """Return the orders with their rates: as measured here, else their share of what workers say of themselves."""
        try:
            told = sum(worker.bytes_per_s for worker in list_workers(self._store).values())
        except InvalidMetadataError:  # of a newer version: its rate is not known
            told = 0
        self._seen = {bookie: seen for bookie, seen in self._seen.items() if bookie in placed}
        total = sum(survey.leaving_bytes.get(bookie, 0) for bookie in placed)
        orders = []
        for bookie, order in placed.items():
            left = survey.leaving_bytes.get(bookie, 0)
            rate = self._measured(bookie, left)
            if rate is None:
                rate = told * left / total if total else 0.0
            phase = str(states[bookie].phase) if bookie in states else ""
            orders.append(
                OrderOverview(
                    bookie, phase, order.reason, order.since_us, survey.leaving.get(bookie, 0), left, rate,
                    left / rate if rate and left else None,
                )
            )  # fmt: skip
        return tuple(orders)

    def _measured(self, bookie: str, left: int) -> float | None:
        """Return by how many bytes a second the work fell, over the last looks; None: this is the first one."""
        now_us = self._clock.monotonic_us()
        seen = self._seen.setdefault(bookie, deque())
        seen.append((now_us, left))
        while len(seen) > 2 and seen[1][0] <= now_us - _WINDOW_US:
            seen.popleft()
        began_us, before = seen[0]
        return max(before - left, 0) * 1e6 / (now_us - began_us) if now_us > began_us else None
