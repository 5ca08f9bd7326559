"""An embedded cluster makes lost copies again without a word of configuration."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.hold import begin_hold, end_hold
from pyreplog.autorecovery.lost_entries import list_lost
from pyreplog.autorecovery.orders import list_orders, place_order
from pyreplog.autorecovery.status import find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker import Pass, ReplicationWorker, Workload
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key, list_bookie_states
from pyreplog.clock import ManualClock, SystemClock
from pyreplog.cluster import Cluster
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.writer_keys import writer_key
from tests.waiting import until

ENTRIES = 300
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20, "durability": "appended"}


def values(ledger: int) -> list[bytes]:
    return [b"entry %d of ledger %d" % (entry, ledger) * 3 for entry in range(ENTRIES)]


def filled(
    folder: Path, *, bookies: int, ledgers: int = 6, ensemble: int = 3, write_quorum: int = 3, on: int | None = None
) -> list[int]:
    """A closed cluster with closed ledgers, and more of them until the bookie of the number `on` is a member of one."""
    ids: list[int] = []
    with LedgerCluster.embedded(folder, bookies=bookies, **SETTINGS) as cluster:
        holder = None if on is None else list(cluster.runtime.bookies)[on]  # type: ignore[attr-defined]
        while len(ids) < ledgers or not (
            holder is None or any(holder in cluster.ledger_metadata(ledger).bookies() for ledger in ids)
        ):
            with cluster.create_ledger(ensemble, write_quorum, password=b"secret") as ledger:
                ledger.append_batch(values(ledger.id))
            ids.append(ledger.id)
    return ids


def lose(folder: Path, name: str) -> None:
    shutil.rmtree(folder / name)


def whole(cluster: LedgerCluster, ledgers: list[int], copies: int) -> bool:
    return all((cluster.count_copies(ledger, password=b"secret") == copies).all() for ledger in ledgers)


@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 3), (5, 3)])
def test_a_bookie_whose_disk_was_lost_is_replaced_by_others(tmp_path: Path, ensemble: int, write_quorum: int) -> None:
    """Its new, empty incarnation is an ordinary target."""
    ledgers = filled(tmp_path, bookies=ensemble + 1, ensemble=ensemble, write_quorum=write_quorum, on=1)
    lose(tmp_path, "bookie-1")
    with LedgerCluster.embedded(tmp_path, bookies=ensemble + 1, replace=True, **SETTINGS) as without_recovery:
        assert not whole(without_recovery, ledgers, write_quorum)
    with Cluster.embedded(tmp_path, bookies=ensemble + 1, **SETTINGS) as cluster:
        assert cluster.auto_recovery is not None
        until(lambda: whole(cluster, ledgers, write_quorum), pause_s=0.1)
        for ledger in ledgers:
            with cluster.open_ledger(ledger, password=b"secret") as reader:
                assert [record.value for batch in reader.read() for record in batch] == values(ledger)
        until(lambda: not list_orders(cluster.metadata), pause_s=0.1)
        assert not list_lost(cluster.metadata)


class Rounds:
    """An embedded cluster whose auto-recovery takes a step when the test says so."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.cluster = LedgerCluster.embedded(folder, **SETTINGS, **options)
        self.recovery = AutoRecovery(self.cluster, self.clock)
        self.store = self.cluster.metadata
        self.abandoned: list[Ledger] = []

    def step(self, seconds: float = 0.0) -> None:
        """Time passes, a round is made, and a pass of copies ends."""
        self.clock.advance(int(seconds * 1e6))
        self.recovery.round()
        until(lambda: not self.recovery.is_copying and not self.recovery.is_repairing)

    def close(self) -> None:
        self.recovery.close()
        self.cluster.close()


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Any]:
    opened: list[Rounds] = []

    def open_rounds(**options: Any) -> Rounds:
        opened.append(Rounds(tmp_path, **options))
        return opened[-1]

    yield open_rounds
    for each in opened:
        each.close()


def test_states_and_orders_follow_the_work(tmp_path: Path, rounds: Any) -> None:
    ledgers = filled(tmp_path, bookies=4, on=1)
    lose(tmp_path, "bookie-1")
    bench = rounds(bookies=4, replace=True)
    bench.step()
    (lost,) = list_bookie_states(bench.store)
    assert list_bookie_states(bench.store)[lost].phase is BookiePhase.LOST
    assert whole(bench.cluster, ledgers, 3)
    assert lost not in {bookie for ledger in ledgers for bookie in bench.cluster.ledger_metadata(ledger).bookies()}
    done = bench.recovery.worker_status()
    needed = sum(bench.cluster.ledger_metadata(ledger).last_entry + 1 for ledger in ledgers)
    assert 0 < done.copied_entries <= needed
    bench.step()
    assert not list_orders(bench.store)
    bench.step(2 * 86_400)  # two scans without it
    bench.step(2 * 86_400)
    assert list_bookie_states(bench.store)[lost].phase is BookiePhase.RETIRED


def test_a_bookie_that_is_no_member_any_more_is_asked_for_what_its_successor_lost(tmp_path: Path, rounds: Any) -> None:
    """It still has the copies that were moved away: the member that took its place has lost its disk since."""
    (ledger,) = filled(tmp_path, bookies=2, ledgers=1, ensemble=1, write_quorum=1)
    bench = rounds(bookies=2)
    (source,) = bench.cluster.ledger_metadata(ledger).bookies()
    bench.store.create(
        bookie_state_key(source), BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test").encode()
    )
    bench.step()
    (member,) = bench.cluster.ledger_metadata(ledger).bookies()
    assert member != source
    number = list(bench.cluster.runtime.bookies).index(member)
    bench.close()
    lose(tmp_path, f"bookie-{number}")
    bench = rounds(bookies=2, replace=True)
    bench.step()
    assert list_bookie_states(bench.store)[member].phase is BookiePhase.LOST
    assert not list_lost(bench.store)
    assert bench.cluster.ledger_metadata(ledger).bookies().isdisjoint({member, source})
    with bench.cluster.open_ledger(ledger, password=b"secret") as reader:
        assert [record.value for batch in reader.read() for record in batch] == values(ledger)


def test_nothing_is_copied_while_auto_recovery_is_on_hold(tmp_path: Path, rounds: Any) -> None:
    ledgers = filled(tmp_path, bookies=4, on=1)
    lose(tmp_path, "bookie-1")
    bench = rounds(bookies=4, replace=True)
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    bench.step()
    bench.step(3600)
    assert not whole(bench.cluster, ledgers, 3)
    assert "hold-forgotten" not in {alarm.code for alarm in bench.recovery.audit.alarms}
    bench.step(48 * 3600)
    assert "hold-forgotten" in {alarm.code for alarm in bench.recovery.audit.alarms}
    assert end_hold(bench.store)
    bench.step()
    assert whole(bench.cluster, ledgers, 3)


def test_a_pass_that_begins_late_copies_nothing_on_hold(
    tmp_path: Path, rounds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round that learned of the hold was before it: the next one is seconds away."""
    ledgers = filled(tmp_path, bookies=4, on=1)
    lose(tmp_path, "bookie-1")
    bench = rounds(bookies=4, replace=True)
    run, may_begin = ReplicationWorker.run, threading.Event()

    def run_late(worker: ReplicationWorker, workload: Workload, copies_at_once: int) -> Pass:
        assert may_begin.wait(30)
        return run(worker, workload, copies_at_once)

    monkeypatch.setattr(ReplicationWorker, "run", run_late)
    bench.recovery.round()
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    bench.recovery.round()
    may_begin.set()
    until(lambda: not bench.recovery.is_copying)
    assert not whole(bench.cluster, ledgers, 3)
    assert end_hold(bench.store)
    bench.step()
    assert whole(bench.cluster, ledgers, 3)


def test_drain_without_a_spare_bookie_is_retried_later_and_reports_its_failures(tmp_path: Path, rounds: Any) -> None:
    """No busy loop: each ledger is tried again after a while, and at once when a bookie comes (BookKeeper #3905)."""
    ledgers = filled(tmp_path, bookies=3, ledgers=2)
    bench = rounds(bookies=3)
    source = sorted(bench.cluster.ledger_metadata(ledgers[0]).bookies())[0]
    state = BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(source), state.encode())
    bench.step()
    assert bench.recovery.worker_status().failures == 2
    for _ in range(20):
        bench.step()
    assert bench.recovery.worker_status().failures == 2
    status = find_status(bench.store)
    assert status is not None
    assert set(status.failed) == set(ledgers)
    assert "add a bookie" in status.failed[ledgers[0]]
    bench.step(10)
    assert bench.recovery.worker_status().failures == 4
    assert list(list_orders(bench.store)) == [source]


def test_the_only_copies_of_a_bookie_that_is_away_are_not_looked_for_all_the_time(tmp_path: Path, rounds: Any) -> None:
    """They are not listed as lost, and each ledger is tried again later and later (BookKeeper #3887, #4872)."""
    ledgers = filled(tmp_path, bookies=3, ledgers=2, ensemble=2, write_quorum=1)
    bench = rounds(bookies=3)
    before = [bench.cluster.ledger_metadata(ledger) for ledger in ledgers]
    (source, *_) = sorted(before[0].bookies() & before[1].bookies())
    bench.cluster.runtime.bookies.pop(source).close()
    away = BookieState(BookiePhase.AWAY, bench.clock.now_us() - 3_600_000_000, "test")
    bench.store.create(bookie_state_key(source), away.encode())
    for _ in range(20):
        bench.step()
    assert bench.recovery.worker_status().failures == 2
    assert [bench.cluster.ledger_metadata(ledger) for ledger in ledgers] == before
    assert not list_lost(bench.store)
    status = find_status(bench.store)
    assert status is not None
    assert "have copies only on bookies that are away, or no copy" in status.failed[ledgers[0]]
    bench.step(10)
    assert bench.recovery.worker_status().failures == 4


def test_a_drained_bookie_ends_without_ledgers(tmp_path: Path, rounds: Any) -> None:
    ledgers = filled(tmp_path, bookies=5, ensemble=4, write_quorum=2)
    bench = rounds(bookies=5)
    source = sorted(bench.cluster.ledger_metadata(ledgers[0]).bookies())[0]
    state = BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(source), state.encode())
    bench.step()
    bench.step()
    assert all(source not in bench.cluster.ledger_metadata(ledger).bookies() for ledger in ledgers)
    assert whole(bench.cluster, ledgers, 2)
    assert not list_orders(bench.store)
    assert list_bookie_states(bench.store)[source].phase is BookiePhase.DRAINING, "until an operator retires it"


def test_an_order_that_is_withdrawn_ends_the_work(tmp_path: Path, rounds: Any) -> None:
    """A bookie that is back is an ordinary member (BookKeeper #2766)."""
    ledgers = filled(tmp_path, bookies=4)
    bench = rounds(bookies=4)
    before = [bench.cluster.ledger_metadata(ledger) for ledger in ledgers]
    source = sorted(before[0].bookies())[0]
    place_order(bench.store, source, TimedReason(0, "it was away"))
    bench.step()
    assert not list_orders(bench.store)
    assert [bench.cluster.ledger_metadata(ledger) for ledger in ledgers] == before


def test_the_copy_throttle_bounds_the_rate_of_copies(tmp_path: Path) -> None:
    ledgers = filled(tmp_path, bookies=4, ensemble=4, on=1)  # each bookie has copies of each ledger
    lose(tmp_path, "bookie-1")
    with (
        LedgerCluster.embedded(tmp_path, bookies=4, replace=True, **SETTINGS) as cluster,
        AutoRecovery(cluster, SystemClock()) as recovery,
    ):
        change_config(cluster.metadata, {"bytes_per_s": 50_000, "round_ms": 50, "copies_at_once": 1})
        clock = SystemClock()
        began_us = clock.monotonic_us()
        recovery.start()
        until(lambda: whole(cluster, ledgers, 3), pause_s=0.02)
        seconds = (clock.monotonic_us() - began_us) / 1e6
        copied = recovery.worker_status().copied_bytes
        assert copied > 30_000
        assert seconds > (copied - 50_000) / 50_000 - 0.5, "the first tenth of a second and the last batch are free"


def test_counts_are_those_of_the_copies_needed(tmp_path: Path, rounds: Any) -> None:
    """Bytes copied are bytes needed: with E=5 and Qw=3, three fifths of the entries of each ledger."""
    ledgers = filled(tmp_path, bookies=6, ensemble=5, write_quorum=3, on=0)
    lose(tmp_path, "bookie-0")
    bench = rounds(bookies=6, replace=True)
    gone = {bookie for ledger in ledgers for bookie in bench.cluster.ledger_metadata(ledger).bookies()} - {
        status.bookie for status in bench.cluster.status().bookies
    }
    (lost,) = gone
    needed = sum(len(stripe) for ledger in ledgers for stripe in bench.cluster.ledger_metadata(ledger).holdings(lost))
    bench.step()
    assert bench.recovery.worker_status().copied_entries == needed
    assert all((np.asarray(bench.cluster.count_copies(ledger, password=b"secret")) == 3).all() for ledger in ledgers)


# ---- ledgers that are not closed ---------------------------------------------------------------------------------


def abandoned(bench: Any, **options: Any) -> int:
    """A ledger that is not closed, and has no writer any more."""
    ledger = bench.cluster.create_ledger(4, 3, 2, **options)
    ledger.append_batch(values(ledger.id))
    ledger.abandon()
    bench.abandoned.append(ledger)
    until(lambda: bench.store.get(writer_key(ledger.id)) is None)
    return int(ledger.id)


def drain_member(bench: Any, ledger: int) -> str:
    """Declare a bookie of the ledger's last fragment to be draining."""
    member = str(bench.cluster.ledger_metadata(ledger).last_fragment.ensemble[0])
    state = BookieState(BookiePhase.DRAINING, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(member), state.encode())
    return member


def step_until(bench: Any, done: Callable[[], bool]) -> None:
    def look() -> bool:
        bench.step(1.0)
        return done()

    until(look, pause_s=0.01)


def test_a_ledger_without_a_writer_is_recovered_and_copied(tmp_path: Path, rounds: Any) -> None:
    bench = rounds(bookies=6)
    ledger = abandoned(bench)
    member = drain_member(bench, ledger)
    for _ in range(3):
        bench.step(9.0)
    assert bench.cluster.ledger_metadata(ledger).state is State.OPEN
    status = find_status(bench.store)
    assert status is not None and status.open_ledgers == (ledger,)
    step_until(bench, lambda: member not in bench.cluster.ledger_metadata(ledger).bookies())
    assert bench.cluster.ledger_metadata(ledger).state is State.CLOSED
    with bench.cluster.open_ledger(ledger) as reader:
        assert [record.value for batch in reader.read() for record in batch] == values(ledger)
    assert (bench.cluster.count_copies(ledger) == 3).all()
    bench.step()
    assert not list_orders(bench.store)
    status = find_status(bench.store)
    assert status is not None and not status.open_ledgers


def test_no_ledger_is_recovered_on_hold(tmp_path: Path, rounds: Any) -> None:
    bench = rounds(bookies=6)
    ledger = abandoned(bench)
    drain_member(bench, ledger)
    bench.step()
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    for _ in range(12):
        bench.step(10.0)
    assert bench.cluster.ledger_metadata(ledger).state is State.OPEN


def test_a_ledger_with_a_password_and_without_a_writer_is_an_alarm(tmp_path: Path, rounds: Any) -> None:
    bench = rounds(bookies=6)
    ledger = abandoned(bench, password=b"secret")
    drain_member(bench, ledger)
    for _ in range(5):
        bench.step(10.0)
    (alarm,) = (alarm for alarm in bench.recovery.status().alarms if alarm.code == "open-ledgers")
    assert f"ledger {ledger}" in alarm.text and "pyreplog ledger recover" in alarm.text
    assert bench.cluster.ledger_metadata(ledger).state is State.OPEN


def test_the_silence_of_a_writer_is_a_setting(tmp_path: Path, rounds: Any) -> None:
    bench = rounds(bookies=6)
    change_config(bench.store, {"writer_silence_ms": 300_000})
    ledger = abandoned(bench)
    drain_member(bench, ledger)
    for _ in range(5):
        bench.step(60.0)
    assert bench.cluster.ledger_metadata(ledger).state is State.OPEN
    step_until(bench, lambda: bench.cluster.ledger_metadata(ledger).state is State.CLOSED)
