"""Copies are moved between the bookies of a cluster, by the workers of auto-recovery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.cluster_audit import audit_cluster
from pyreplog.autorecovery.hold import begin_hold, end_hold
from pyreplog.autorecovery.key_waiter import KeyWaiter
from pyreplog.autorecovery.leased_keys import LocalKeys, claim_key
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.orders import place_order
from pyreplog.autorecovery.protocol.rebalance import Move, RebalancePlan
from pyreplog.autorecovery.rebalance_moves import REBALANCE, RebalanceMoves, find_moves, settle_moves
from pyreplog.autorecovery.rebalancer import Rebalancer, run_rebalance
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker import ReplicationWorker, Workload
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.clock import ManualClock, SystemClock
from pyreplog.errors import InvalidMetadataError, MetadataVersionError, RebalanceError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE
from tests.waiting import PATIENCE_S, until

ENTRIES = 60
LEDGERS = 12
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20, "durability": "appended"}


def values(ledger: int) -> list[bytes]:
    return [b"entry %d of ledger %d" % (entry, ledger) for entry in range(ENTRIES)]


class RecoveryBench:
    """Ledgers with E = 3 and Qw = 2 on three bookies, then two empty bookies more."""

    def __init__(self, folder: Path) -> None:
        with LedgerCluster.embedded(folder, bookies=3, **SETTINGS) as cluster:
            for _ in range(LEDGERS):
                with cluster.create_ledger(3, 2, password=b"secret") as ledger:
                    ledger.append_batch(values(ledger.id))
        self.clock = ManualClock(1_700_000_000_000_000)
        self.cluster = LedgerCluster.embedded(folder, bookies=5, **SETTINGS)
        self.store = self.cluster.metadata
        self.recovery = AutoRecovery(self.cluster, self.clock)
        self.rebalancer = Rebalancer(self.cluster.runtime, self.clock, keep_free_bytes=0)

    def step(self, _: object = None) -> None:
        self.recovery.round()
        until(lambda: not self.recovery.is_copying)

    def members(self) -> dict[int, set[str]]:
        return {ledger: self.cluster.ledger_metadata(ledger).bookies() for ledger in self.cluster.ledgers()}

    def is_whole(self) -> bool:
        """Every entry has two copies on the bookies that are named, and can be read."""
        for ledger in self.members():
            with self.cluster.open_ledger(ledger, password=b"secret") as reader:
                assert reader[:] == values(ledger)
            if not (self.cluster.count_copies(ledger, password=b"secret") >= 2).all():
                return False
        return True

    def close(self) -> None:
        self.recovery.close()
        self.cluster.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RecoveryBench]:
    opened = RecoveryBench(tmp_path)
    yield opened
    opened.close()


def test_empty_bookies_get_their_share(bench: RecoveryBench) -> None:
    proposals: list[Any] = []
    assert run_rebalance(bench.rebalancer, bench.step, on_plan=proposals.append) == {}
    assert len(proposals) >= 2 and not proposals[-1].plan.moves
    ratios = proposals[-1].plan.before
    assert len(ratios) == 5 and max(ratios.values()) <= 1.3, "twelve ledgers of the same size cannot be spread better"
    assert min(ratios.values()) > 0.5
    assert bench.is_whole()
    assert find_moves(bench.store) is None
    moved = sum(len(proposal.plan.moves) for proposal in proposals)
    assert bench.recovery.worker_status().copied_ledgers == moved
    assert bench.recovery.worker_status().copied_entries == moved * ENTRIES * 2 // 3, (
        "each move copies its stripes only"
    )


def test_a_dry_run_changes_nothing(bench: RecoveryBench) -> None:
    before = bench.members()
    proposal = bench.rebalancer.propose()
    assert proposal.plan.moves
    bench.step()
    assert bench.members() == before


def test_bytes_are_bounded_over_all_plans(bench: RecoveryBench) -> None:
    size = bench.rebalancer.propose().plan.moves[0].size
    proposals: list[Any] = []
    run_rebalance(bench.rebalancer, bench.step, bytes_max=2 * size + 1, on_plan=proposals.append)
    assert sum(proposal.plan.size for proposal in proposals) <= 2 * size + 1
    assert bench.recovery.worker_status().copied_ledgers == 2


def test_bookies_that_leave_and_open_ledgers_are_left_out(bench: RecoveryBench) -> None:
    draining = sorted(bench.members()[0])[0]
    state = BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(draining), state.encode())
    with bench.cluster.create_ledger(3, 2):
        proposal = bench.rebalancer.propose()
    assert proposal.left_out == {draining: "it is draining"}
    assert (proposal.open_ledgers, proposal.recovering, proposal.plan.moves) == (1, LEDGERS, ())


def test_rebalance_is_refused_during_a_hold_an_order_or_another_rebalance(bench: RecoveryBench) -> None:
    plan = bench.rebalancer.propose().plan
    begin_hold(bench.store, TimedReason(0, "upgrade"))
    with pytest.raises(RebalanceError, match=r"on hold \(upgrade\)"):
        bench.rebalancer.begin(plan)
    end_hold(bench.store)
    place_order(bench.store, "b@1", TimedReason(0, "test"))
    with pytest.raises(RebalanceError, match="the copies of b@1 are made again, and lost copies come first"):
        bench.rebalancer.begin(plan)
    bench.step()  # no ledger names it
    bench.rebalancer.begin(plan)
    bench.clock.advance(1)
    with pytest.raises(RebalanceError, match="moves of another rebalance are left"):
        bench.rebalancer.begin(plan)
    assert bench.rebalancer.end() and not bench.rebalancer.end()


def test_orders_and_a_hold_come_before_moves_that_have_begun(bench: RecoveryBench) -> None:
    before = bench.members()
    bench.rebalancer.begin(bench.rebalancer.propose().plan)
    begin_hold(bench.store, TimedReason(0, "upgrade"))
    bench.step()
    assert bench.members() == before
    end_hold(bench.store)
    bench.step()
    assert bench.members() != before and bench.is_whole()


def test_a_rebalance_that_was_ended_ends_the_command(bench: RecoveryBench) -> None:
    with pytest.raises(RebalanceError, match="an operator ended the rebalance"):
        run_rebalance(bench.rebalancer, lambda _: bench.rebalancer.end())
    before = bench.members()
    bench.step()
    assert bench.members() == before


def test_a_move_whose_target_takes_no_copies_any_more_is_given_up(bench: RecoveryBench) -> None:
    """Its copies are well where they are; the rest is moved."""
    plan = bench.rebalancer.propose().plan
    lost = plan.moves[0].target
    bench.rebalancer.begin(plan)
    state = BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(lost), state.encode())
    until(lambda: bench.cluster.runtime.bookie_states.phase(lost) is not None)
    bench.step()
    moves = find_moves(bench.store)
    assert moves is not None and not moves.moves
    assert set(moves.failed) == {move.ledger for move in plan.moves if move.target == lost}
    assert f"{lost} does not take the copies any more" in moves.failed[plan.moves[0].ledger]
    assert not bench.recovery.status().failed, "nothing is tried again for ever"
    assert all(lost not in members for members in bench.members().values()) and bench.is_whole()


def test_a_ledger_that_was_deleted_or_cannot_be_read_ends_its_move(bench: RecoveryBench) -> None:
    plan = bench.rebalancer.propose().plan
    deleted, garbled = plan.moves[0].ledger, plan.moves[1].ledger
    bench.rebalancer.begin(plan)
    bench.cluster.delete_ledger(deleted)
    stored = bench.store.get(metadata_key(garbled))
    assert stored is not None
    bench.store.put(metadata_key(garbled), b"{", stored.version)
    bench.step()
    moves = find_moves(bench.store)
    assert moves is not None and not moves.moves
    assert set(moves.failed) == {garbled}


class OthersWork(LocalKeys):
    """Another worker has the claim on a ledger."""

    def __init__(self, ledger: int) -> None:
        super().__init__("test")
        self._key = claim_key(ledger)

    def take(self, key: str) -> bool:
        return key != self._key


def test_a_ledger_that_another_worker_has_is_left_to_it(bench: RecoveryBench) -> None:
    plan = bench.rebalancer.propose().plan
    begun = bench.rebalancer.begin(plan)
    taken = plan.moves[0].ledger
    worker = ReplicationWorker(
        bench.cluster.runtime, OthersWork(taken), LedgerScan(bench.store), SystemClock()
    )  # fmt: skip
    moves = {move.ledger: move for move in begun.moves}
    worker.run(Workload(frozenset(), frozenset(), frozenset(), moves), 3)
    settle_moves(bench.store, begun.moves, worker.failed_moves)
    left = find_moves(bench.store)
    assert left is not None and [move.ledger for move in left.moves] == [taken] and not left.failed


def test_moves_that_cannot_be_read_hinder_no_recovery(bench: RecoveryBench) -> None:
    bench.store.create(REBALANCE, b"{")
    with pytest.raises(InvalidMetadataError, match="cluster rebalance --end"):
        bench.rebalancer.progress()
    bench.step()
    assert bench.rebalancer.end()


# ---- racks -------------------------------------------------------------------------------------------------------


def test_copies_in_one_rack_are_spread_when_another_rack_comes(tmp_path: Path) -> None:
    """Over TCP. E = 3, Qw = 2: with two racks one of three write sets stays in one rack."""
    with SQLiteStore(tmp_path / "metadata") as store, ExitStack() as running:

        def start(name: str, rack: str) -> None:
            config = BookieConfig(segment_bytes=1 << 20, **ANY_SPACE)
            node = BookieNode(tmp_path / name, name, store, config, ledgers=StoredLedgers(store), rack=rack)
            running.enter_context(node)

        for name in ("a0", "a1", "a2"):
            start(name, "a")
        url = f"sqlite:{store.path}"
        with LedgerCluster.connect(url, request_timeout_ms=round(PATIENCE_S * 1000)) as cluster:
            with cluster.create_ledger(3, 2) as ledger:
                ledger.append_batch(values(0))
            for name in ("b0", "b1"):
                start(name, "b")
            until(lambda: len(cluster.runtime.bookie_statuses()) == 5)
            assert audit_cluster(cluster.runtime).survey.rack_violations == {ledger.id: 3}
            rebalancer = Rebalancer(cluster.runtime, SystemClock(), keep_free_bytes=0)
            with AutoRecovery(cluster, SystemClock()) as recovery:
                with pytest.raises(RebalanceError, match="no process of auto-recovery runs"):
                    rebalancer.begin(rebalancer.propose().plan)
                recovery.round()

                def step(_: object) -> None:
                    recovery.round()
                    until(lambda: not recovery.is_copying)

                assert run_rebalance(rebalancer, step) == {}
            audit = audit_cluster(cluster.runtime)
            assert audit.survey.rack_violations == {ledger.id: 1}
            assert (cluster.count_copies(ledger.id) >= 2).all()
            with cluster.open_ledger(ledger.id) as reader:
                assert reader[:] == values(0)


# ---- the key -----------------------------------------------------------------------------------------------------


def test_the_key_keeps_what_newer_versions_wrote() -> None:
    moves = RebalanceMoves(7, (Move(1, "a@1", "b@1", 10), Move(2, "a@1", "c@1", 20)), {3: "why"})
    assert RebalanceMoves.decode(moves.encode()) == moves
    assert moves.bytes_left == 30
    newer = moves.encode().replace(b'"moves"', b'"later": 1, "moves"').replace(b'"version": 1', b'"version": 2')
    newer = newer.replace(b'"version":1', b'"version":2')
    again = RebalanceMoves.decode(newer).without([moves.moves[0]], {2: "x" * 300})
    assert (again.moves, set(again.failed)) == ((), {2, 3})
    assert b'"later"' in again.encode()
    assert len(RebalanceMoves.decode(again.encode()).failed[2]) == 200
    with pytest.raises(MetadataVersionError):
        RebalanceMoves.decode(b'{"version":9,"min_reader":9}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"since_us":1,"moves":[[1,"a","b"]],"failed":{}}',
        b'{"since_us":1,"moves":[[-1,"a","b",0]],"failed":{}}',
    ],
)
def test_values_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        RebalanceMoves.decode(data)


def test_a_waiter_is_woken_by_a_change() -> None:
    with MemoryStore() as store, KeyWaiter(store, [REBALANCE]) as waiter:
        assert waiter.wait(10), "a watch calls at once"
        store.create(REBALANCE, RebalanceMoves(0).encode())
        assert waiter.wait(10)
        assert not waiter.wait(0.0) or not waiter.wait(0.0), "one change may be told twice"


def test_an_empty_plan_has_size_zero() -> None:
    assert RebalancePlan((), {}, {}, {}).size == 0
