"""Open ledgers that name a bookie that leaves: whose writers are gone is recovered, and nobody else is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyreplog.autorecovery.open_ledger_recovery import RECOVERIES_AT_ONCE, OpenLedgerRecovery, OpenLedgersReport
from pyreplog.bookie.bookie_state import BookiePhase, bookie_state_key
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import RequestKind
from pyreplog.clock import ManualClock
from pyreplog.errors import MetadataUnavailableError, OutcomeUnknownError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import State, metadata_key
from pyreplog.ledger.ledger_store import StoredLedgers, load_ledger
from pyreplog.ledger.writer_keys import WriterKeys, writer_key
from pyreplog.metadata.sqlite import SQLiteStore
from tests.ledger.fault_injection import FailingStore, RequestInterceptor
from tests.ledger.phases import set_phases
from tests.trees import ROOT
from tests.waiting import until

AWAY = MetadataUnavailableError("away")
QUIET_S = 30


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LedgerCluster]:
    """Five bookies."""
    with LedgerCluster.embedded(tmp_path / "cluster", bookies=5, segment_bytes=64 << 10) as cluster:
        yield cluster


class RecoveryBench:
    """Checks ledgers of which a bookie leaves, at the times that a test says. The states of the bookies are not
    stored, so that writers keep these members."""

    def __init__(self, cluster: LedgerCluster) -> None:
        self.cluster, self.clock = cluster, ManualClock(1_000_000)
        self.recovery = OpenLedgerRecovery(cluster, self.clock)
        self.leaving: dict[int, list[str]] = {}
        self.recovered: list[int] = []  # at all checks
        self.lacking: dict[int, tuple[str, ...]] = {}

    def follow(self, ledger: Ledger) -> str:
        """Look at a ledger from now on; returns the bookie that leaves."""
        bookie = ledger.metadata.last_fragment.ensemble[0]
        self.leaving[ledger.id] = [bookie]
        return bookie

    def check(self, *after_s: float) -> OpenLedgersReport:
        """Several checks; returns what the last one found."""
        for seconds in after_s:
            self.clock.advance(round(seconds * 1_000_000))
            report = self.recovery.check(self.leaving)
            self.recovered += report.recovered
            self.lacking.update(report.lacking)
        return report

    def settle(self) -> RecoveryBench:
        """Look until no recovery is under way."""
        until(lambda: not self.check(0).recovering, pause_s=0.01)
        return self

    def state(self, ledger: Ledger) -> State:
        return self.cluster.ledger_metadata(ledger.id).state


@pytest.fixture
def bench(cluster: LedgerCluster) -> RecoveryBench:
    return RecoveryBench(cluster)


def dead(bench: RecoveryBench, entries: int = 7, **options: Any) -> Ledger:
    """A ledger whose writer is gone; it is followed."""
    ledger = bench.cluster.create_ledger(4, 3, 2, **options)
    ledger.append_batch([b"%d" % entry for entry in range(entries)])
    bench.follow(ledger)
    ledger.abandon()
    until(lambda: bench.cluster.metadata.get(writer_key(ledger.id)) is None)
    return ledger


def alive(bench: RecoveryBench) -> Ledger:
    """One that has a writer, with its key; it is followed."""
    ledger = bench.cluster.create_ledger(4, 3, 2)
    bench.follow(ledger)
    until(lambda: bench.cluster.metadata.get(writer_key(ledger.id)))
    return ledger


def read(cluster: LedgerCluster, ledger: Ledger) -> list[bytes]:
    with cluster.open_ledger(ledger.id) as reader:
        return [bytes(record.value) for batch in reader.read() for record in batch]


# ---- writers that are gone, and others -------------------------------------------------------------------------


def test_a_dead_writer_is_recovered_after_the_time_and_not_before(bench: RecoveryBench) -> None:
    ledger = dead(bench)
    report = bench.check(0, 10, 10, 9.9)
    assert report.waiting == (ledger.id,) and bench.state(ledger) is State.OPEN
    assert not bench.check(0.1).waiting
    assert bench.settle().recovered == [ledger.id]
    assert bench.state(ledger) is State.CLOSED
    assert read(bench.cluster, ledger) == [b"%d" % entry for entry in range(7)]
    assert bench.check(10) == OpenLedgersReport()


def test_an_idle_writer_is_never_fenced(bench: RecoveryBench) -> None:
    ledger = alive(bench)
    ledger.append(b"0")
    notified = [bench.check(10).notified for _ in range(20)]
    assert notified.count((ledger.id,)) == 6
    ledger.append(b"1")
    assert bench.state(ledger) is State.OPEN
    ledger.close()
    assert bench.check(10) == OpenLedgersReport()


def test_a_busy_writer_without_a_key_is_not_fenced(bench: RecoveryBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of an older build."""
    monkeypatch.setattr(WriterKeys, "hold", lambda self, ledger: None)
    ledger = bench.cluster.create_ledger(4, 3, 2)
    bench.follow(ledger)
    for entry in range(20):
        ledger.append(b"%d" % entry)
        assert bench.check(10, 10).waiting == (ledger.id,)
    assert bench.cluster.metadata.get(writer_key(ledger.id)) is None
    ledger.close()
    assert bench.cluster.count_copies(ledger.id).tolist() == [3] * 20


def test_a_key_that_was_lost_and_is_made_again(bench: RecoveryBench) -> None:
    """The lease was lost, and its client makes another one within the time."""
    ledger = alive(bench)
    store, key = bench.cluster.metadata, writer_key(ledger.id)
    stored = store.get(key)
    assert stored is not None
    store.delete(key, stored.version)
    assert bench.check(0, 10, 10, 9).waiting == (ledger.id,)
    store.create(key, stored.value)
    assert bench.check(1, 10, 10, 10).notified == (ledger.id,)
    ledger.append(b"goes on")
    ledger.close()


def test_a_key_that_comes_at_the_last_moment(bench: RecoveryBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the look at all keys, and before the recovery."""
    ledger = dead(bench)
    bench.check(0, 10, 10)
    store = bench.cluster.metadata
    get_many = store.get_many

    def get_and_create(keys: list[str]) -> list[Any]:
        values = get_many(keys)
        if keys == [writer_key(ledger.id)]:
            store.create(keys[0], b"{}")
        return values

    monkeypatch.setattr(store, "get_many", get_and_create)
    assert bench.check(10).waiting == (ledger.id,) and bench.state(ledger) is State.OPEN


@pytest.mark.parametrize("at", [0, 1])
def test_a_writer_that_changes_its_ensemble_is_not_fenced(bench: RecoveryBench, at: int) -> None:
    """Between two checks, or at the last moment: then the compare-and-set fails that begins a recovery."""
    ledger = dead(bench)
    store: Any = bench.cluster.metadata
    bench.check(0, 10, 10)
    metadata, version = load_ledger(store, ledger.id)
    (spare,) = {bookie.bookie for bookie in bench.cluster.status().bookies} - metadata.bookies()
    changed = metadata.replace_bookies({3: (spare, 7)}).encode()
    if at == 0:
        store.put(metadata_key(ledger.id), changed, version)
        assert bench.check(10, 10, 10).waiting == (ledger.id,), "the time begins anew"
    else:
        get = store.get
        store.get = lambda key: get(key) or (store.put(metadata_key(ledger.id), changed, version) and None)
        assert bench.check(10).waiting == (ledger.id,)
        del store.get
    assert bench.state(ledger) is State.OPEN


def test_a_member_that_was_replaced_ends_the_matter(bench: RecoveryBench) -> None:
    ledger = dead(bench)
    bench.check(0, 10, 10)
    metadata, version = load_ledger(bench.cluster.metadata, ledger.id)
    (spare,) = {bookie.bookie for bookie in bench.cluster.status().bookies} - metadata.bookies()
    bench.cluster.metadata.put(metadata_key(ledger.id), metadata.replace_bookies({0: (spare, 7)}).encode(), version)
    assert bench.check(10, 10, 10) == OpenLedgersReport() and bench.state(ledger) is State.OPEN


def test_an_older_fragment_that_was_moved_does_not_begin_the_time_anew(bench: RecoveryBench) -> None:
    """Workers move copies of open ledgers, too, but for those of the last fragment."""
    ledger = bench.cluster.create_ledger(3, 2, 2)
    ledger.append_batch([b"value"] * 4)
    before = ledger.metadata.last_fragment.ensemble
    ledger.replace_members([before[1]])
    until(lambda: before[1] not in ledger.metadata.last_fragment.ensemble)
    bench.follow(ledger)
    ledger.abandon()
    until(lambda: bench.cluster.metadata.get(writer_key(ledger.id)) is None)
    bench.check(0, 10, 10)
    metadata, version = load_ledger(bench.cluster.metadata, ledger.id)
    first = metadata.fragments[0]
    spare = next(bookie.bookie for bookie in bench.cluster.status().bookies if bookie.bookie not in metadata.bookies())
    moved = first._replace(ensemble=(first.ensemble[0], spare, first.ensemble[2]))
    changed = replace(metadata, fragments=(moved, *metadata.fragments[1:]))
    bench.cluster.metadata.put(metadata_key(ledger.id), changed.encode(), version)
    assert not bench.check(10).waiting
    assert bench.settle().recovered == [ledger.id]


def test_a_ledger_whose_recoverer_died(bench: RecoveryBench) -> None:
    ledger = dead(bench)
    metadata, version = load_ledger(bench.cluster.metadata, ledger.id)
    bench.cluster.metadata.put(metadata_key(ledger.id), metadata.in_recovery().encode(), version)
    assert bench.check(0, 10, 10).waiting == (ledger.id,)
    assert not bench.check(10).waiting
    assert bench.settle().recovered == [ledger.id] and bench.state(ledger) is State.CLOSED


# ---- what cannot be known, or done -----------------------------------------------------------------------------


def test_keys_that_cannot_be_read_begin_the_time_anew(bench: RecoveryBench, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = dead(bench)
    bench.check(0, 10, 10)
    store: Any = bench.cluster.metadata
    get_many = store.get_many

    def get_metadata(keys: list[str]) -> list[Any]:
        if keys == [writer_key(ledger.id)]:
            raise AWAY
        return list(get_many(keys))

    with monkeypatch.context() as patched:
        patched.setattr(store, "get_many", get_metadata)
        assert bench.check(10).waiting == (ledger.id,)
    assert bench.check(10, 10, 10).waiting == (ledger.id,)
    assert not bench.check(10).waiting


def test_a_store_that_is_away_begins_the_time_anew(cluster: LedgerCluster) -> None:
    store: Any = FailingStore.before(cluster)
    bench = RecoveryBench(cluster)
    ledger = dead(bench)
    bench.check(0, 10, 10)
    store.fail("get_many", AWAY)
    with pytest.raises(MetadataUnavailableError):
        bench.check(10)
    assert bench.check(10, 10, 10).waiting == (ledger.id,)
    assert not bench.check(10).waiting
    assert bench.settle().recovered == [ledger.id]


@pytest.mark.parametrize("done", [True, False])
def test_an_unknown_outcome_of_the_mark(cluster: LedgerCluster, done: bool) -> None:
    """Whether the ledger is in recovery is seen at the next look; it is recovered either way."""
    store: Any = FailingStore.before(cluster)
    bench = RecoveryBench(cluster)
    ledger = dead(bench)
    bench.check(0, 10, 10)
    store.fail("put", OutcomeUnknownError("the reply was lost"), done=done)
    assert ledger.id in bench.check(10).failed
    assert bench.state(ledger) is (State.IN_RECOVERY if done else State.OPEN)
    bench.check(1)
    assert bench.settle().recovered == [ledger.id]


def test_members_that_do_not_answer_stop_the_time(bench: RecoveryBench) -> None:
    ledger = dead(bench)
    bench.check(0, 10, 10)
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(interceptor.fail, kind=RequestKind.LAST)
        assert bench.check(10, 10, 10).waiting == (ledger.id,)
    assert bench.check(10).waiting == (ledger.id,)
    assert not bench.check(10).waiting


def test_a_recovery_that_fails_is_tried_again_after_the_time(bench: RecoveryBench) -> None:
    ledger = dead(bench)
    with RequestInterceptor(bench.cluster) as interceptor:
        bench.check(0, 10, 10)
        interceptor.add_rule(interceptor.fail, kind=RequestKind.READ)
        bench.check(10)
        report = until(lambda: (outcome := bench.check(0)).failed and outcome, pause_s=0.01)
        assert "whether entry" in report.failed[ledger.id] and bench.state(ledger) is State.IN_RECOVERY
    assert bench.check(0, 10, 10).waiting == (ledger.id,)
    assert not bench.check(10).waiting
    assert bench.settle().recovered == [ledger.id]


def test_a_password_needs_an_operator(bench: RecoveryBench) -> None:
    ledger = dead(bench, password=b"secret")
    assert bench.check(0, 10, 10).needs_operator == {}
    report = bench.check(10)
    assert "pyreplog ledger recover" in report.needs_operator[ledger.id] and bench.state(ledger) is State.OPEN
    bench.cluster.open_ledger(ledger.id, password=b"secret").close()
    assert bench.check(10).needs_operator == {}


def test_garbled_and_deleted_open_ledgers_are_passed_over(bench: RecoveryBench) -> None:
    garbled, deleted = dead(bench), dead(bench)
    bench.cluster.delete_ledger(deleted.id)
    store = bench.cluster.metadata
    stored = store.get(metadata_key(garbled.id))
    assert stored is not None
    store.put(metadata_key(garbled.id), b"?", stored.version)
    report = bench.check(0, 10, 10, 10)
    assert list(report.failed) == [garbled.id] and report.waiting == report.recovering == ()


def test_recoveries_of_open_ledgers_at_a_time_are_bounded(bench: RecoveryBench) -> None:
    ledgers = [dead(bench, 1) for _ in range(2 * RECOVERIES_AT_ONCE + 1)]
    bench.check(0, 10, 10)
    report = bench.check(10)
    assert len(report.recovering) == RECOVERIES_AT_ONCE and len(report.waiting) == RECOVERIES_AT_ONCE + 1
    until(lambda: bench.check(1) and len(bench.recovered) == len(ledgers), pause_s=0.01)
    assert sorted(bench.recovered) == [ledger.id for ledger in ledgers]


# ---- copies that a dead writer left out ------------------------------------------------------------------------


def gap(bench: RecoveryBench) -> tuple[Ledger, str, int]:
    """A ledger whose writer died before it heard that a bookie had refused an entry, while the bookie took later ones:
    (the ledger, the bookie, the entry)."""
    ledger = bench.cluster.create_ledger(4, 3, 2)
    bench.follow(ledger)
    bookie, entry = ledger.metadata.last_fragment.ensemble[2], 5  # entry 5: on members 1, 2 and 3
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(lose_entry(interceptor, entry), kind=RequestKind.ADD, bookie=bookie)
        for number in range(12):
            ledger.append(b"%d" % number)
        until(lambda: ledger.last_add_confirmed == 11)
    ledger.abandon()
    until(lambda: bench.cluster.metadata.get(writer_key(ledger.id)) is None)
    return ledger, bookie, entry


def lose_entry(interceptor: RequestInterceptor, entry: int) -> Any:
    send = interceptor.pass_on

    def action(bookie: str, request: Any, on_reply: Any) -> None:
        if not request.first <= entry <= request.last:
            send(bookie, request, on_reply)

    return action


def test_copies_that_the_writer_left_out_are_noted_and_can_be_repaired(bench: RecoveryBench) -> None:
    ledger, bookie, entry = gap(bench)
    bench.check(0, 10, 10, 10)
    bench.settle()
    assert (bench.recovered, bench.lacking) == ([ledger.id], {ledger.id: (bookie,)})
    expected = [3] * 12
    expected[entry] = 2
    assert bench.cluster.count_copies(ledger.id).tolist() == expected
    assert [(note.ledger, note.entry, note.bookie) for note in bench.cluster.status().repairs] == [
        (ledger.id, entry, bookie)
    ]
    bench.cluster.repair()
    assert bench.cluster.count_copies(ledger.id).tolist() == [3] * 12 and bench.cluster.status().repairs == []


def test_a_ledger_that_others_recovered_meanwhile_is_checked(bench: RecoveryBench) -> None:
    """A reader, or an owner of its topic: they do not look at each copy."""
    ledger, bookie, _ = gap(bench)
    bench.check(0, 10)
    bench.cluster.open_ledger(ledger.id).close()
    assert bench.cluster.status().repairs == []
    bench.leaving.clear()  # the auditor does not see it among the open ones any more
    assert bench.settle().lacking == {ledger.id: (bookie,)}


def test_notes_that_could_not_be_made_are_made_later(cluster: LedgerCluster) -> None:
    store: Any = FailingStore.before(cluster)
    bench = RecoveryBench(cluster)
    ledger, bookie, _ = gap(bench)
    bench.check(0, 10, 10, 10)
    store.fail("create", AWAY)
    assert bench.settle().lacking == {ledger.id: (bookie,)}
    assert [note.bookie for note in cluster.status().repairs] == [bookie]


def test_bookie_that_does_not_answer_a_recovery_is_noted_for_repair(bench: RecoveryBench) -> None:
    """Repair finds out what it lacks."""
    ledger = dead(bench)
    silent = ledger.metadata.last_fragment.ensemble[3]
    bench.check(0, 10, 10, 10)
    until(lambda: bench.state(ledger) is State.CLOSED)
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(interceptor.fail, kind=RequestKind.READ, bookie=silent)
        assert bench.settle().lacking == {ledger.id: (silent,)}
    bench.cluster.repair()
    assert bench.cluster.status().repairs == []


# ---- notifications ---------------------------------------------------------------------------------------------


def test_a_notification_has_the_writer_look_again(bench: RecoveryBench) -> None:
    """All other bookies had failed a moment ago, and nothing else would make an idle writer look again."""
    ledger = alive(bench)
    (leaving,) = bench.leaving[ledger.id]
    spare = next(
        bookie.bookie for bookie in bench.cluster.status().bookies if bookie.bookie not in ledger.metadata.bookies()
    )
    bench.cluster.runtime.suspect(spare)
    set_phases(bench.cluster, {leaving: BookiePhase.DRAINING})
    ledger.append(b"value")
    assert leaving in ledger.metadata.last_fragment.ensemble
    version = bench.cluster.metadata.get(bookie_state_key(leaving)).version  # type: ignore[union-attr]

    def is_replaced() -> bool:
        bench.check(10, 10, 10)
        return leaving not in ledger.metadata.last_fragment.ensemble

    until(is_replaced, pause_s=0.2)
    assert bench.cluster.metadata.get(bookie_state_key(leaving)).version > version  # type: ignore[union-attr]
    ledger.close()


# ---- clients in processes of their own -------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as store:
        yield store


@pytest.fixture
def nodes(store: SQLiteStore) -> Iterator[list[BookieNode]]:
    nodes = [
        BookieNode(
            store.path.parent / f"b{number}", f"b{number}", store, BookieConfig(segment_bytes=8 << 20),
            ledgers=StoredLedgers(store),
        )
        for number in range(5)
    ]  # fmt: skip
    yield nodes
    for node in nodes:
        node.close()


def test_a_process_that_was_killed_and_one_that_lives(store: SQLiteStore, nodes: list[BookieNode]) -> None:
    """Two clients: the ledger of the one is recovered, that of the other is not."""
    url = f"sqlite:{store.path}"
    command = [sys.executable, "-m", "tests.ledger.writing", url, "4", "3", "2"]
    with (
        LedgerCluster.connect(url, request_timeout_ms=30_000) as cluster,
        LedgerCluster.connect(url, request_timeout_ms=30_000) as other,
        other.create_ledger(4, 3, 2) as living,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        bench = RecoveryBench(cluster)
        bench.follow(living)
        until(lambda: len(store.list("/writers")) == 2)
        killed = next(number for number in cluster.ledgers() if number != living.id)
        bench.leaving[killed] = [cluster.ledger_metadata(killed).last_fragment.ensemble[0]]
        assert bench.check(0, 10, 10).waiting == (living.id, killed)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: store.get(writer_key(killed)) is None)
        report = bench.check(10, 10, 10)
        assert killed in report.waiting
        bench.check(10)
        until(lambda: bench.check(1) and bench.recovered, pause_s=0.01)
        assert bench.recovered == [killed] and cluster.ledger_metadata(killed).state is State.CLOSED
        assert living.append(b"value") == 0
