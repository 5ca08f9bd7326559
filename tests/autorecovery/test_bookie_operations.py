"""What operators decide about bookies, and the health of a cluster in one word."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.health import ClusterHealth, Colour, check_health
from pyreplog.autorecovery.hold import HOLD, begin_hold
from pyreplog.autorecovery.leased_keys import AUDITOR
from pyreplog.autorecovery.lost_entries import LostRange, note_lost, remove_lost
from pyreplog.autorecovery.metrics import auto_recovery_metrics
from pyreplog.autorecovery.orders import list_orders, place_order
from pyreplog.autorecovery.overview import RecoveryWatch
from pyreplog.autorecovery.status import FRESH_US, HEARTBEAT_US, STATUS, AutoRecoveryStatus, find_status
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key, list_bookie_states
from pyreplog.clock import ManualClock
from pyreplog.errors import BookieStateError, LastCopyError, NoSuchBookieError, NotEnoughBookiesError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, metadata_key
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.status import BookieStatus
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import Versioned
from tests.waiting import until

ENTRIES = 25
DAY_US = 86_400_000_000


class RecoveryBench:
    """An embedded cluster, an operator, and auto-recovery that takes a step when the test says so."""

    def __init__(self, folder: Path, bookies: int, *, replace: bool = False) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.cluster = LedgerCluster.embedded(folder, bookies=bookies, replace=replace, segment_bytes=1 << 20)
        self.store = self.cluster.metadata
        self.operations = BookieOperations(self.cluster.runtime, self.clock)
        self.recovery = AutoRecovery(self.cluster, self.clock)

    def ledger(self, ensemble: int, write_quorum: int) -> int:
        with self.cluster.create_ledger(ensemble, write_quorum) as ledger:
            ledger.append_batch([b"entry %d" % entry for entry in range(ENTRIES)])
        return ledger.id

    def member(self, ledger: int) -> str:
        return self.cluster.ledger_metadata(ledger).last_fragment.ensemble[0]

    def stop(self, bookie: str) -> None:
        """It does not run any more."""
        self.cluster.runtime.bookies.pop(bookie).close()  # type: ignore[attr-defined]

    def phase(self, bookie: str) -> BookiePhase | None:
        state = list_bookie_states(self.store).get(bookie)
        return None if state is None else state.phase

    def step(self, days: int = 0) -> None:
        self.clock.advance(days * DAY_US)
        self.recovery.round()
        until(lambda: not self.recovery.is_copying)

    def health(self) -> ClusterHealth:
        return check_health(self.cluster.runtime, limbo=self.cluster.limbo, now_us=self.clock.now_us())

    def codes(self) -> set[str]:
        return {finding.code for finding in self.health().findings}

    def close(self) -> None:
        self.recovery.close()
        self.cluster.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RecoveryBench]:
    opened = RecoveryBench(tmp_path, 5)
    yield opened
    opened.close()


# ---- bookies -----------------------------------------------------------------------------------------------------


def test_a_bookie_is_found_by_id_and_by_name(bench: RecoveryBench) -> None:
    bookie = bench.member(bench.ledger(3, 2))
    assert bench.operations.find(bookie) == bench.operations.find(bookie.partition("@")[0]) == bookie
    with pytest.raises(NoSuchBookieError, match=r"bookie bookie-9: expected .*, found none; do you mean bookie-"):
        bench.operations.find("bookie-9")
    with pytest.raises(NoSuchBookieError, match="cluster status"):
        bench.operations.find("xyz")


def test_a_drained_bookie_is_retired(bench: RecoveryBench) -> None:
    ledgers = [bench.ledger(4, 2) for _ in range(3)]
    bookie = bench.member(ledgers[0])
    dry = bench.operations.begin_drain(bookie, dry_run=True)
    assert dry.ledgers_left > 0 and dry.bytes_left > 0
    assert bench.phase(bookie) is None
    assert bench.operations.begin_drain(bookie) == dry
    assert bench.operations.begin_drain(bookie) == dry, "it may be repeated"
    with pytest.raises(BookieStateError, match=rf"{dry.ledgers_left} ledgers? names? it"):
        bench.operations.retire(bookie)
    bench.step()
    assert bench.operations.drain_progress(bookie).ledgers_left == 0
    assert bench.operations.retire(bookie) == bench.operations.retire(bookie) == bookie
    assert bench.phase(bookie) is BookiePhase.RETIRED
    with pytest.raises(BookieStateError, match="is retired"):
        bench.operations.begin_drain(bookie)
    with pytest.raises(BookieStateError, match="found retired"):
        bench.operations.end_drain(bookie)


def test_end_drain_makes_a_draining_bookie_an_ordinary_member(bench: RecoveryBench) -> None:
    bookie = bench.member(bench.ledger(3, 2))
    with pytest.raises(BookieStateError, match="found an ordinary member"):
        bench.operations.end_drain(bookie)
    with pytest.raises(BookieStateError, match="found an ordinary member"):
        bench.operations.retire(bookie)
    bench.operations.begin_drain(bookie)
    assert bench.operations.end_drain(bookie) == bookie
    assert bench.phase(bookie) is None


def test_a_drain_that_leaves_too_few_bookies_is_refused(bench: RecoveryBench) -> None:
    """E = 5 on five bookies: nobody can take the place."""
    bookie = bench.member(bench.ledger(5, 3))
    with pytest.raises(NotEnoughBookiesError, match="has 5 members, and 4 other bookies take entries; add a bookie"):
        bench.operations.begin_drain(bookie)
    assert bench.phase(bookie) is None


def test_the_last_copy_is_neither_drained_away_nor_given_up_unasked(bench: RecoveryBench) -> None:
    ledger = bench.ledger(3, 1)
    bookie = bench.member(ledger)
    with pytest.raises(BookieStateError, match="runs: expected one whose data are gone"):
        bench.operations.declare_lost(bookie)
    bench.stop(bookie)
    with pytest.raises(LastCopyError, match=f"the only copies of entries of ledger {ledger}; start it"):
        bench.operations.begin_drain(bookie)
    forecast = bench.operations.forecast_loss(bookie)
    assert forecast.entries == {ledger: len(range(0, ENTRIES, 3))}
    with pytest.raises(LastCopyError, match="only copies of entries of 1 ledger, ledger"):
        bench.operations.declare_lost(bookie)
    with pytest.raises(LastCopyError, match="only copies of entries of 1 ledger, ledger"):
        bench.operations.forecast_replacement(bookie)
    assert bench.operations.forecast_replacement(bookie, accept_loss=True) == forecast
    assert bench.phase(bookie) is None
    assert bench.operations.declare_lost(bookie, accept_loss=True) == forecast
    assert bench.phase(bookie) is BookiePhase.LOST
    assert bench.health().colour is Colour.RED
    assert "copies-gone" in bench.codes()


def test_copies_elsewhere_are_no_loss(bench: RecoveryBench) -> None:
    ledger = bench.ledger(4, 2)
    first, second, *_ = bench.cluster.ledger_metadata(ledger).last_fragment.ensemble
    bench.stop(first)
    assert not bench.operations.declare_lost(first).loses
    assert bench.operations.forecast_loss(second).entries == {ledger: len(range(0, ENTRIES, 4))}


def test_lost_bookie_is_not_retired_while_entries_are_listed_as_lost(bench: RecoveryBench) -> None:
    gone = "bookie-9@" + "0" * 32
    state = BookieState(BookiePhase.LOST, bench.clock.now_us(), "test")
    bench.store.create(bookie_state_key(gone), state.encode())
    ledger = bench.ledger(3, 2)
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "the list stays as it is"))
    note_lost(bench.store, ledger, [LostRange(3, 4, 1, gone, 0)])
    for _ in range(3):
        bench.step(days=2)
    assert bench.phase(gone) is BookiePhase.LOST
    with pytest.raises(LastCopyError, match=f"entries of ledger {ledger}, which are listed as lost"):
        bench.operations.retire(gone)
    with pytest.raises(LastCopyError, match=f"entries of 1 ledger, ledger {ledger} first, which are listed as lost"):
        bench.operations.forecast_replacement(gone)
    assert not bench.operations.forecast_replacement(gone, accept_loss=True).loses
    remove_lost(bench.store, ledger, range(3, 4))
    bench.step(days=2)
    bench.step(days=2)
    assert bench.phase(gone) is BookiePhase.RETIRED


def test_garbled_metadata_may_name_any_bookie(bench: RecoveryBench) -> None:
    bookie = bench.member(bench.ledger(3, 2))
    idle = next(status.bookie for status in bench.cluster.status().bookies if status.bookie != bookie)
    bench.operations.begin_drain(idle)
    bench.step()
    other = bench.ledger(3, 2)
    stored = bench.store.get(metadata_key(other))
    assert stored is not None
    bench.store.put(metadata_key(other), b"{", stored.version)
    with pytest.raises(BookieStateError, match=f"the metadata of ledger {other} cannot be read"):
        bench.operations.retire(idle)


# ---- health ------------------------------------------------------------------------------------------------------


def test_a_cluster_with_all_copies_is_green(bench: RecoveryBench) -> None:
    bench.ledger(4, 2)
    assert bench.health() == ClusterHealth(Colour.GREEN, (), None, 5, 1, 0)


def test_holds_repairs_and_missing_copies_make_the_health_amber(bench: RecoveryBench) -> None:
    ledger = bench.ledger(4, 2)
    bookie = bench.member(ledger)
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    assert bench.codes() == {"hold"}
    note_repair(bench.store, ledger, bookie, 3)
    bench.operations.begin_drain(bookie)
    assert bench.codes() == {"hold", "repairs", "draining"}
    bench.operations.end_drain(bookie)
    bench.stop(bookie)
    health = bench.health()
    assert health.colour is Colour.AMBER
    assert {finding.code for finding in health.findings} == {"hold", "repairs", "not-running", "copies-missing"}
    assert health.missing_copies == sum(map(len, bench.cluster.ledger_metadata(ledger).holdings(bookie)))
    assert all(finding.next_step for finding in health.findings)
    bench.step()
    assert {"away"} <= bench.codes()


def test_a_hold_that_was_forgotten_is_named_with_its_age(bench: RecoveryBench) -> None:
    """Also without an auditor, whose alarm is not said twice."""

    def holds() -> list[tuple[str, str]]:
        return [(finding.code, finding.text) for finding in bench.health().findings if "hold" in finding.code]

    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    for minutes, age in ((0, "for 0 s"), (5, "for 5 minutes"), (175, "for 3 hours"), (1260, "for 24 hours")):
        bench.clock.advance(minutes * 60_000_000)
        assert holds() == [("hold", f"auto-recovery is on hold {age}: upgrade")]
    bench.clock.advance(3 * DAY_US)
    forgotten = [("hold-forgotten", "auto-recovery is on hold for 4 days: upgrade")]
    assert holds() == forgotten
    bench.step()
    assert [alarm.code for alarm in bench.recovery.audit.alarms] == ["hold-forgotten"]
    assert holds() == forgotten and bench.health().colour is Colour.AMBER
    assert bench.recovery.hold_s == 4 * 86_400
    change_config(bench.store, {"hold_alarm_ms": 5 * 86_400_000})
    assert holds()[0][0] == "hold"


def test_a_hold_whose_time_is_unknown_counts_as_forgotten(bench: RecoveryBench) -> None:
    bench.store.create(HOLD, b"no time")
    (finding,) = bench.health().findings
    assert finding.code == "hold-forgotten" and "since an unknown time" in finding.text


# ---- overview ----------------------------------------------------------------------------------------------------


def test_an_overview_counts_what_is_missing_and_how_fast_it_comes_back(bench: RecoveryBench) -> None:
    ledgers = [bench.ledger(3, 2) for _ in range(6)]
    watch, bookie = RecoveryWatch(bench.cluster.runtime, bench.clock), bench.member(ledgers[0])
    fine = watch.take_overview()
    assert (fine.health.colour, fine.orders, fine.one_copy_entries, fine.progress) == (Colour.GREEN, (), 0, ())
    bench.stop(bookie)
    metadata = [bench.cluster.ledger_metadata(ledger) for ledger in ledgers]
    held = [sum(map(len, each.holdings(bookie))) for each in metadata]
    bench.step()
    change_config(bench.store, {"bytes_per_s": 1})
    bench.clock.advance(3_600_000_000)
    assert watch.take_overview().one_copy_entries == sum(held)
    place_order(bench.store, bookie, TimedReason(bench.clock.now_us(), "away"))
    begun = watch.take_overview()
    (order,) = begun.orders
    assert (order.phase, order.reason, order.ledgers_left) == ("away", "away", sum(map(bool, held)))
    assert order.bytes_left > 0 and order.eta_s is None, "nothing was copied yet"
    bench.clock.advance(10_000_000)
    change_config(bench.store, {"bytes_per_s": None, "copies_at_once": 1})
    bench.step()
    bench.step()
    (done,) = watch.take_overview().orders or (None,)
    assert done is None or done.bytes_per_s > 0
    bench.step()
    end = watch.take_overview()
    assert (end.orders, end.one_copy_entries) == ((), 0)
    assert [left for _, left in end.progress][-1] == 0 and end.progress[0][1] == order.ledgers_left


def test_the_rate_of_an_order_is_measured(bench: RecoveryBench) -> None:
    ledger = bench.ledger(3, 2)
    bookie = bench.member(ledger)
    place_order(bench.store, bookie, TimedReason(0, "drained"))
    watch = RecoveryWatch(bench.cluster.runtime, bench.clock)
    (first,) = watch.take_overview().orders
    more = bench.ledger(3, 3)
    assert bench.cluster.ledger_metadata(more) is not None
    bench.clock.advance(2_000_000)
    bench.cluster.delete_ledger(ledger)
    (second,) = watch.take_overview().orders
    left = first.bytes_left - second.bytes_left
    assert second.bytes_per_s == max(left, 0) / 2
    assert second.eta_s == (second.bytes_left / second.bytes_per_s if left > 0 and second.bytes_left else None)


def test_a_lost_bookie_is_named_until_its_copies_are_made_again(bench: RecoveryBench) -> None:
    """It is retired at the next complete scan, which may be a day later: until then nothing is left to do."""
    bookie = bench.member(bench.ledger(4, 2))
    bench.stop(bookie)
    bench.operations.declare_lost(bookie)
    assert {"lost", "copies-missing"} <= bench.codes()
    bench.step()
    bench.step()
    assert (bench.phase(bookie), bench.health().colour) == (BookiePhase.LOST, Colour.GREEN)
    bench.store.create(metadata_key(99), b"garbled")
    assert {"lost", "garbled"} <= bench.codes(), "it may be named there"


def test_lost_entries_make_the_cluster_red(bench: RecoveryBench) -> None:
    note_lost(bench.store, bench.ledger(3, 2), [LostRange(3, 9, 2, "b@1", 0)])
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "the list stays as it is"))
    bench.step()
    health = bench.health()
    assert health.colour is Colour.RED
    assert health.findings[0].code == "entries-lost"
    assert "3 entries of 1 ledger are lost" in health.findings[0].text


def test_a_name_that_was_registered_again_counts_its_former_copies_as_gone(tmp_path: Path) -> None:
    """Also before an auditor has noted it."""
    first = RecoveryBench(tmp_path, 3)
    ledger = first.ledger(3, 1)
    bookie = first.member(ledger)
    first.close()
    shutil.rmtree(tmp_path / bookie.partition("@")[0])
    again = RecoveryBench(tmp_path, 3, replace=True)
    try:
        assert again.health().colour is Colour.RED
        assert "copies-gone" in again.codes()
    finally:
        again.close()


def test_a_state_of_a_newer_version_is_named(bench: RecoveryBench) -> None:
    bench.store.create(bookie_state_key("b@1"), b'{"version":9,"min_reader":9}')
    (finding,) = bench.health().findings
    assert finding.code == "state-unreadable"
    assert "upgrade" in finding.text


def test_every_metric_is_documented(bench: RecoveryBench) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    metrics = {
        f"{metric.name}{'_total' if metric.kind == 'counter' else ''}"
        for metric in auto_recovery_metrics(bench.recovery)
    }
    assert metrics == set(re.findall(r"`(pyreplog_autorecovery_\w+)`", text))


# ---- a drain that cannot end, and a loss that was none -----------------------------------------------------------


def test_blocked_drain_names_unreadable_entries(bench: RecoveryBench) -> None:
    """Qw = 1: the bookie is drained, and does not run any more."""
    ledger, fine = bench.ledger(3, 1), bench.ledger(3, 2)
    bookie = bench.member(ledger)
    bench.operations.begin_drain(bookie)
    assert bench.operations.blocked(bookie) == [], "nothing was tried yet"
    bench.stop(bookie)
    bench.step()
    bench.step()
    (blocked,) = bench.operations.blocked(bookie)
    assert blocked.ledger == ledger
    assert [entry for some in blocked.unreadable for entry in some] == list(range(0, ENTRIES, 3))
    assert "have copies only on bookies that are away, or no copy" in blocked.why
    assert bookie not in bench.cluster.ledger_metadata(fine).bookies(), "the others are moved"


def test_a_wrong_loss_is_taken_back(bench: RecoveryBench) -> None:
    ledger = bench.ledger(4, 2)
    bookie = bench.member(ledger)
    with pytest.raises(BookieStateError, match="expected one that counts as lost, found an ordinary member"):
        bench.operations.end_lost(bookie)
    bench.operations.declare_lost(bookie, force=True)
    place_order(bench.store, bookie, TimedReason(0, "lost"))
    assert bench.operations.end_lost(bookie) == bookie
    assert bench.phase(bookie) is None and not list_orders(bench.store)
    bench.step()
    assert bookie in bench.cluster.ledger_metadata(ledger).bookies(), "nothing is copied"


def test_a_loss_stays_when_another_bookie_has_the_name(tmp_path: Path) -> None:
    first = RecoveryBench(tmp_path, 4)
    bookie = first.member(first.ledger(3, 2))
    first.close()
    shutil.rmtree(tmp_path / bookie.partition("@")[0])
    again = RecoveryBench(tmp_path, 4, replace=True)
    try:
        state = BookieState(BookiePhase.LOST, 0, "test")
        again.store.create(bookie_state_key(bookie), state.encode())
        with pytest.raises(BookieStateError, match="was registered under its name"):
            again.operations.end_lost(bookie)
        assert again.phase(bookie) is BookiePhase.LOST
    finally:
        again.close()


# ---- health without reading all ledgers --------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts the metadata of ledgers that are read."""

    read = 0

    def _get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        self.read += sum(key.startswith("/ledgers/") for key in keys)
        return super()._get_many(keys)


class Remote(RuntimeBase):
    """Bookies that run elsewhere: only their registrations matter here."""

    running = ("a@1", "b@1", "c@1")

    def bookie_statuses(self) -> list[BookieStatus]:
        return [BookieStatus(bookie, "", "", False, 0) for bookie in self.running]


@pytest.fixture
def remote() -> Iterator[tuple[Remote, Counting]]:
    """E = 3, Qw = 2."""
    store = Counting()
    runtime = Remote(store, entry_bytes_max=1 << 20)
    for bookie in Remote.running:
        store.create(f"/bookies/{bookie[0]}", json.dumps({"id": bookie}).encode())
    metadata = LedgerMetadata(
        ledger=7, ensemble_size=3, write_quorum=2, ack_quorum=1, fragments=(Fragment(0, Remote.running),), proof="",
        state=State.CLOSED, last_entry=9, length=90,
    )  # fmt: skip
    store.create(metadata_key(7), metadata.encode())
    store.create(AUDITOR, b"host:1")
    yield runtime, store
    runtime.close()


def store_status(store: Counting, at_us: int, *, auditor: str = "host:1", left: dict[str, int] | None = None) -> None:
    stored = store.get(STATUS)
    if stored is not None:
        store.delete(STATUS, stored.version)
    store.create(STATUS, AutoRecoveryStatus(auditor, at_us, left or {}, (), {}, ()).encode())


def test_health_trusts_a_fresh_auditor_status_without_reading_ledgers(remote: tuple[Remote, Counting]) -> None:
    runtime, store = remote
    now_us = runtime.reactor.clock.now_us()
    store_status(store, now_us)
    health = check_health(runtime, trust_auditor=True)
    assert (health.colour, health.ledgers, health.is_scanned, store.read) == (Colour.GREEN, 1, False, 0)
    assert check_health(runtime).is_scanned and store.read == 1


@pytest.mark.parametrize("why", ["none", "old", "other", "order", "absent", "state", "no auditor"])
def test_ledgers_are_read_when_the_status_is_not_enough(remote: tuple[Remote, Counting], why: str) -> None:
    runtime, store = remote
    now_us = runtime.reactor.clock.now_us()
    if why != "none":
        store_status(
            store, now_us - (FRESH_US if why == "old" else 0), auditor="host:2" if why == "other" else "host:1",
            left={"a@1": 1} if why == "order" else {},
        )  # fmt: skip
    if why == "absent":
        runtime.running = ("a@1", "b@1")
    if why == "state":
        store.create(bookie_state_key("z@1"), BookieState(BookiePhase.LOST, 0, "test").encode())
    if why == "no auditor":
        store.delete(AUDITOR, 0)
    health = check_health(runtime, trust_auditor=True)
    assert health.is_scanned and store.read == 1
    assert bool(health.missing_copies) == (why == "absent")


def test_auditor_updates_its_status_each_minute(bench: RecoveryBench) -> None:
    bench.step()
    first = find_status(bench.store)
    bench.step()
    assert find_status(bench.store) == first
    bench.clock.advance(HEARTBEAT_US)
    bench.step()
    again = find_status(bench.store)
    assert first is not None and again is not None and again.at_us == first.at_us + HEARTBEAT_US
