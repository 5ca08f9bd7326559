"""Rebalancer: plans moves from full bookies to empty ones, and hands them to the workers of auto-recovery."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.leased_keys import AUDITOR
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.protocol.rebalance import (
    BookieLoad,
    LedgerCopies,
    RebalancePlan,
    overfull,
    plan_moves,
)
from pyreplog.autorecovery.rebalance_moves import REBALANCE, RebalanceMoves, find_moves
from pyreplog.bookie.bookie_state import list_bookie_states
from pyreplog.bookie.config import BookieConfig
from pyreplog.clock import Clock
from pyreplog.errors import InvalidMetadataError, RebalanceError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.ledger_store import stored_ledgers
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.changes import change_key, delete_key

CANDIDATES_MAX = 20_000
"""Maximum number of ledgers considered in one plan: those with copies in one rack, or with the largest copies."""
KEEP_FREE_BYTES = 2 * BookieConfig().writable_from_bytes
"""Free space that a target keeps, bytes, so that moves do not make it read-only."""


@dataclass(frozen=True)
class RebalanceProposal:
    """A plan, and what it does not cover.

    Attributes:
        plan: the moves.
        left_out: why no copies are moved to or from a bookie.
        open_ledgers: number of ledgers that are not closed: their writers choose the bookies.
        recovering: number of ledgers with members that do not run or leave: auto-recovery moves their copies.
        garbled: number of ledgers with unreadable metadata.
    """

    plan: RebalancePlan
    left_out: Mapping[str, str] = field(default_factory=dict)
    open_ledgers: int = 0
    recovering: int = 0
    garbled: int = 0


class Rebalancer:
    """Plans and starts moves. One thread at a time calls it.

    Args:
        runtime: runtime of the cluster.
        clock: source of time.
        keep_free_bytes: free space that a target keeps, bytes.
    """

    def __init__(self, runtime: RuntimeBase, clock: Clock, *, keep_free_bytes: int = KEEP_FREE_BYTES) -> None:
        self._runtime, self._store, self._clock = runtime, runtime.metadata, clock
        self._keep_free_bytes = keep_free_bytes

    # ---- planning -------------------------------------------------------------------------------------------

    def propose(self, *, bytes_max: int | None = None, without: Set[int] = frozenset()) -> RebalanceProposal:
        """Plan moves from the metadata of all ledgers, without changing anything.

        Args:
            bytes_max: maximum number of bytes to move; None: no limit.
            without: ids of ledgers whose copies are not moved.

        Raises:
            ReplogError: errors of the store.
        """
        statuses = {status.bookie: status for status in self._runtime.bookie_statuses()}
        left_out = {bookie: f"it is {state.phase}" for bookie, state in list_bookie_states(self._store).items()}
        left_out.update((bookie, "its copies are made again") for bookie in list_orders(self._store))
        staying = {bookie: status for bookie, status in statuses.items() if bookie not in left_out}
        takes = {
            candidate.bookie for suspects in (False, True) for candidate in self._runtime.candidates(suspects=suspects)
        }
        used: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for metadata in self._closed(kinds):
            used.update(LedgerCopies.of(metadata).sizes)
        loads = [
            BookieLoad(bookie, used[bookie], status.free_bytes, status.rack, bookie in takes)
            for bookie, status in sorted(staying.items())
        ]
        ledgers = self._candidates(loads, without, kinds)
        plan = plan_moves(loads, ledgers, bytes_max=bytes_max, keep_free_bytes=self._keep_free_bytes)
        return RebalanceProposal(plan, left_out, kinds["open"], kinds["recovering"], kinds["garbled"])

    def _closed(self, kinds: Counter[str] | None = None) -> Iterator[LedgerMetadata]:
        """Yield the metadata of closed ledgers, and count the other ledgers."""
        counts = Counter[str]() if kinds is None else kinds
        for _, stored in stored_ledgers(self._store):
            if isinstance(stored, InvalidMetadataError):
                counts["garbled"] += 1
            elif stored.metadata.state is not State.CLOSED:
                counts["open"] += 1
            else:
                yield stored.metadata

    def _candidates(self, loads: list[BookieLoad], without: Set[int], kinds: Counter[str]) -> list[LedgerCopies]:
        """Return the ledgers whose copies may be moved: those in one rack first, then those with the largest copies."""
        givers, bookies = set(overfull(loads)), {load.bookie for load in loads}
        racks = {load.bookie: load.rack for load in loads}

        def worth(copies: LedgerCopies) -> tuple[int, int]:
            largest = max((size for bookie, size in copies.sizes.items() if bookie in givers), default=0)
            return copies.violations(racks), largest

        def some() -> Iterator[LedgerCopies]:
            for metadata in self._closed():
                if not metadata.bookies() <= bookies:
                    kinds["recovering"] += 1
                elif metadata.ledger not in without and worth(copies := LedgerCopies.of(metadata)) > (0, 0):
                    yield copies

        return heapq.nlargest(CANDIDATES_MAX, some(), key=worth)

    # ---- moves ----------------------------------------------------------------------------------------------

    def begin(self, plan: RebalancePlan) -> RebalanceMoves:
        """Hand the moves of a plan to the workers.

        Args:
            plan: the plan.

        Returns:
            The value that the workers read.

        Raises:
            RebalanceError: auto-recovery does not run, is on hold, or has orders; or moves of another rebalance are
                left.
            ReplogError: errors of the store.
        """
        if self._runtime.embedded_bookies is None and self._store.get(AUDITOR) is None:
            raise RebalanceError("no process of auto-recovery runs that could move copies: `pyreplog autorecovery run`")
        if (hold := find_hold(self._store)) is not None:
            raise RebalanceError(
                f"auto-recovery is on hold ({hold.reason}), and moves nothing: end that with `cluster hold --end`"
            )
        if orders := list_orders(self._store):
            raise RebalanceError(
                f"the copies of {', '.join(orders)} are made again, and lost copies come first: wait until `cluster "
                "health` has no orders"
            )
        begun = RebalanceMoves(self._clock.now_us(), plan.moves)

        def change(value: bytes | None) -> bytes:
            left = None if value is None else RebalanceMoves.decode(value)
            if left is not None and left.moves and left != begun:
                raise RebalanceError(
                    f"{len(left.moves)} moves of another rebalance are left: wait for them, or give them up with "
                    "`cluster rebalance --end`"
                )
            return begun.encode()

        change_key(self._store, REBALANCE, change)
        return begun

    def progress(self) -> RebalanceMoves | None:
        """Return the remaining moves; None: the rebalance was ended. Raises errors of the store."""
        return find_moves(self._store)

    def end(self) -> bool:
        """Drop the moves that did not begin. Those that did are completed.

        Returns:
            Whether there was a rebalance.

        Raises:
            ReplogError: errors of the store.
        """
        stored = self._store.get(REBALANCE)
        delete_key(self._store, REBALANCE)
        return stored is not None


def run_rebalance(
    rebalancer: Rebalancer,
    wait: Callable[[RebalanceMoves], object],
    *,
    bytes_max: int | None = None,
    on_plan: Callable[[RebalanceProposal], object] = lambda proposal: None,
) -> dict[int, str]:
    """Plan and carry out moves repeatedly, until no move is worthwhile.

    Args:
        rebalancer: plans and starts the moves.
        wait: called with the remaining moves; returns when they may have changed.
        bytes_max: maximum number of bytes to move; None: no limit.
        on_plan: called with each proposal, including the last one, which has no moves.

    Returns:
        The reason for each ledger whose move failed.

    Raises:
        RebalanceError: as for `Rebalancer.begin`, or an operator ended the rebalance.
        ReplogError: errors of the store.
    """
    failed: dict[int, str] = {}
    left = bytes_max
    while True:
        proposal = rebalancer.propose(bytes_max=left, without=failed.keys())
        on_plan(proposal)
        if not proposal.plan.moves:
            rebalancer.end()
            return failed
        rebalancer.begin(proposal.plan)
        while True:
            moves = rebalancer.progress()
            if moves is None:
                raise RebalanceError(
                    "an operator ended the rebalance with `cluster rebalance --end`; what was moved stays"
                )
            if not moves.moves:
                break
            wait(moves)
        failed.update(moves.failed)
        moved = sum(move.size for move in proposal.plan.moves if move.ledger not in moves.failed)
        left = None if left is None else left - moved
