"""RecoveryOverview: what operators see of auto-recovery at one moment; RecoveryWatch makes it again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.health import ClusterHealth, check_health
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.lost_entries import count_lost
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.protocol.member_change import written_end
from pyreplog.autorecovery.status import find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker import bytes_on
from pyreplog.autorecovery.worker_status import list_workers
from pyreplog.bookie.bookie_state import list_bookie_states
from pyreplog.clock import Clock
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledgermetadata import LedgerMetadata
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
        one_copy_entries: entries that should have more copies, and of which at most one lies on a bookie that runs; of
            ledgers that are not closed those before the last fragment.
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


class _Count:
    """Counts what the metadata of all ledgers tell, one ledger after the other."""

    def __init__(self, bookies: list[BookieStatus], orders: Set[str]) -> None:
        self._running = {status.bookie for status in bookies}
        self._racks = {status.bookie: status.rack for status in bookies if status.rack}
        self._rack_count = len(set(self._racks.values()))
        self.one_copy_entries = self.rack_violations = 0
        self.ledgers_left = dict.fromkeys(orders, 0)
        self.bytes_left = dict.fromkeys(orders, 0)

    def add(self, metadata: LedgerMetadata) -> None:
        """Count one ledger."""
        members = metadata.bookies()
        for bookie in self.ledgers_left.keys() & members:
            self.ledgers_left[bookie] += 1
            self.bytes_left[bookie] += bytes_on(metadata, (bookie,))
        if metadata.write_quorum > 1 and not members <= self._running:
            self.one_copy_entries += one_copy_entries(metadata, self._running)
        if self._rack_count > 1 and in_one_rack(metadata, self._racks):
            self.rack_violations += 1


def one_copy_entries(metadata: LedgerMetadata, running: Set[str]) -> int:
    """Count the entries, as far as their number is known, of which at most one copy lies on bookies that run.

    Args:
        metadata: of a ledger.
        running: ids of the bookies that run.
    """
    size, quorum, count = metadata.ensemble_size, metadata.write_quorum, 0
    for fragment in metadata.fragments:
        end = written_end(metadata, fragment)
        if end is None:
            continue
        present = [bookie in running for bookie in fragment.ensemble]
        for first in range(fragment.first, min(fragment.first + size, end)):
            if sum(present[place] for place in write_set(first, size, quorum)) <= 1:
                count += len(range(first, end, size))
    return count


def in_one_rack(metadata: LedgerMetadata, racks: Mapping[str, str]) -> bool:
    """Return whether entries have several copies, and all of them in one rack. The rack of every copy has to be known.

    Args:
        metadata: of a ledger.
        racks: bookie -> rack, of those that run and have one.
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for fragment in metadata.fragments:
        layout = [racks.get(bookie) for bookie in fragment.ensemble]
        for first in range(size):
            window = {layout[place] for place in write_set(first, size, quorum)}
            if quorum > 1 and len(window) == 1 and None not in window:
                return True
    return False


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
        bookies, placed = self._runtime.bookie_statuses(), list_orders(self._store)
        count = _Count(bookies, placed.keys())
        health = check_health(self._runtime, limbo=limbo, visit=count.add, now_us=self._clock.now_us())
        try:
            status = find_status(self._store)
        except InvalidMetadataError:  # a finding of the health
            status = None
        return RecoveryOverview(
            self._clock.now_us(), health, self._orders(placed, count), count.one_copy_entries, count_lost(self._store),
            count.rack_violations, find_hold(self._store), tuple(sorted(bookies, key=lambda each: each.bookie)),
            () if status is None else status.progress,
        )  # fmt: skip

    def _orders(self, placed: Mapping[str, TimedReason], count: _Count) -> tuple[OrderOverview, ...]:
        """Return the orders with their rates: as measured here, else their share of what workers say of themselves."""
        try:
            phases = {bookie: str(state.phase) for bookie, state in list_bookie_states(self._store).items()}
            told = sum(worker.bytes_per_s for worker in list_workers(self._store).values())
        except InvalidMetadataError:  # states that cannot be read are a finding of the health
            phases, told = {}, 0
        self._seen = {bookie: seen for bookie, seen in self._seen.items() if bookie in placed}
        total, orders = sum(count.bytes_left.values()), []
        for bookie, order in placed.items():
            left = count.bytes_left[bookie]
            rate = self._measured(bookie, left)
            if rate is None:
                rate = told * left / total if total else 0.0
            orders.append(
                OrderOverview(
                    bookie, phases.get(bookie, ""), order.reason, order.since_us, count.ledgers_left[bookie], left,
                    rate, left / rate if rate and left else None,
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
