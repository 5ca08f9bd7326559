"""CursorLog on real ledgers: persisted state is recovered, ledgers are rolled and deleted, and former owners get an
error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_metadata import load_subscription
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TopicFencedError,
)
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from tests.ledger.fault_injection import FailingStore
from tests.topic.counting import PATIENCE_S, attach, create, mark, open_log, restore, state_of
from tests.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LedgerCluster]:
    with LedgerCluster.embedded(tmp_path / "c", bookies=2) as cluster:
        yield cluster


def ledger_of(cluster: LedgerCluster, topic: str, name: str = "s") -> int:
    return load_subscription(cluster.metadata, topic, name).cursor_ledger


def test_a_new_subscription_begins_with_the_snapshot_of_its_metadata(cluster: LedgerCluster) -> None:
    create(cluster, "t", snapshot=b"whole 0 7 ")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        assert source.state == 7
        assert persister.flush().done()
    assert cluster.ledgers() == []


def test_marks_are_found_by_the_next_owner(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        for expected in range(1, 6):
            assert mark(source, persister) == expected
        assert source.taken == ["whole", "delta", "delta", "delta", "delta"]
        persister.close()
    assert state_of(cluster, "t") == 5


def test_dirty_state_is_flushed_by_the_timer(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        done = threading.Event()
        persisted = source.persisted
        source.persisted = lambda sequence: (persisted(sequence), done.set())  # type: ignore[assignment, method-assign, func-returns-value]
        source.acknowledge()
        persister.dirty()
        assert done.wait(PATIENCE_S)
        assert source.persisted_state == 1


def test_many_cursors_share_a_ledger_and_a_flush(cluster: LedgerCluster) -> None:
    names = [f"s{i}" for i in range(40)]
    for name in names:
        create(cluster, "t", name)
    with open_log(cluster, flush_ms=60_000) as log:
        cursors = [attach(log, "t", name) for name in names]
        for number in (1, 2):
            for source, persister in cursors:
                source.acknowledge()
                persister.dirty()
            assert log.flushes < number
            cursors[0][1].flush().result(PATIENCE_S)
            assert log.flushes == number, "one flush takes all that is dirty"
            for _, persister in cursors:
                persister.flush().result(PATIENCE_S)
        assert [source.persisted_state for source, _ in cursors] == [2] * 40
        assert len(cluster.ledgers()) == 1
    with open_log(cluster) as other:
        assert [restore(other.recover("t", name).records)[0] for name in names] == [2] * 40


def test_a_record_larger_than_an_entry_comes_back_whole(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t", padding=900_000)
        mark(source, persister)
        mark(source, persister)
        ledger, key = ledger_of(cluster, "t"), ("t", "s")
        assert len(log.flusher.cursor_ledgers.current.persisters) == 1  # type: ignore[union-attr]
    with open_log(cluster) as other:
        records = other.recover(*key).records
        assert [len(record) > 900_000 for record in records] == [True, True]
        assert restore(records)[0] == 2
    assert ledger == ledger_of(cluster, "t")


def test_a_snapshot_that_goes_on_in_further_records_moves_with_them(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster, roll_entries=1) as log:
        source, persister = attach(log, "t", padding=1 << 20)
        source.parts = 3
        for _ in range(4):
            source.state += 2
            mark(source, persister)
    assert source.state == 12
    assert state_of(cluster, "t") == 12


def test_a_cursor_too_large_for_the_metadata_stays_in_the_ledger(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t", padding=70_000)
        mark(source, persister)
        persister.store_clean().result(PATIENCE_S)
        persister.close()
    assert ledger_of(cluster, "t") >= 0
    assert state_of(cluster, "t") == 1


def test_a_cursor_too_large_for_the_metadata_never_seems_stored(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is never reported as stored while it is moved back from the metadata to a ledger."""
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t", padding=70_000)
        store, seen = log.flusher._store, list[tuple[bool, bool]]()

        def look(cursor_persister: CursorPersister) -> bool:
            stored = store(cursor_persister)
            seen.append((stored, persister.flush().done()))
            return stored

        monkeypatch.setattr(log.flusher, "_store", look)
        source.acknowledge()
        persister.dirty()
        persister.store_clean().result(PATIENCE_S)
        assert seen == [(False, False)]
        assert source.persisted_state == 1


def test_each_of_several_cursors_recovers_its_own_from_ledgers_of_one_entry(cluster: LedgerCluster) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        create(cluster, "t", name)
    with open_log(cluster, roll_entries=1) as log:
        cursors = [attach(log, "t", name) for name in names]
        for count, (source, persister) in enumerate(cursors):
            for _ in range(count + 1):
                mark(source, persister)
    with open_log(cluster) as other:
        assert [restore(other.recover("t", name).records)[0] for name in names] == [1, 2, 3, 4]


def test_the_last_of_many_marks_wins_with_tiny_ledgers(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster, roll_entries=5, flush_ms=0) as log:
        source, persister = attach(log, "t")
        futures = []
        for _ in range(101):
            source.acknowledge()
            persister.dirty()
            futures.append(persister.flush())
        for future in futures:
            future.result(PATIENCE_S)
        assert source.persisted_state == 101
        for _ in range(12):
            mark(source, persister)
    assert state_of(cluster, "t") == 113
    assert len(cluster.ledgers()) == 1, "the former ones were deleted"


def test_a_former_owner_learns_that_it_is_one(cluster: LedgerCluster) -> None:
    for topic in ("moved", "kept"):
        create(cluster, topic)
    with open_log(cluster) as former, open_log(cluster) as owner:
        moved, kept = attach(former, "moved"), attach(former, "kept")
        mark(*moved)
        mark(*kept)
        source, persister = attach(owner, "moved")
        assert source.state == 1
        moved[0].acknowledge()
        moved[1].dirty()
        with pytest.raises(TopicFencedError, match="moved"):
            moved[1].flush().result(PATIENCE_S)
        assert moved[0].came.wait(PATIENCE_S) and isinstance(moved[0].lost_with, TopicFencedError)
        assert moved[0].persisted_state == 1
        assert mark(*kept) == 2, "what was not taken over goes on"
        assert mark(source, persister) == 2
    assert (state_of(cluster, "moved"), state_of(cluster, "kept")) == (2, 2)


def test_a_former_owner_that_never_wrote_cannot_begin(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as former, open_log(cluster) as owner:
        source, persister = attach(former, "t")
        attach(owner, "t")
        source.acknowledge()
        persister.dirty()
        with pytest.raises(TopicFencedError):
            persister.flush().result(PATIENCE_S)
        assert source.persisted_state == 0
        assert ledger_of(cluster, "t") == -1


def test_a_cursor_log_reopened_by_its_process_goes_on_in_the_open_ledger(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        mark(source, persister)
        mark(source, persister)
        persister.close()
        again, persister = attach(log, "t")
        assert again.state == 2
        assert mark(again, persister) == 3
        assert again.taken == ["delta"]
        assert len(cluster.ledgers()) == 1


def test_without_bookies_snapshots_go_into_the_metadata(cluster: LedgerCluster) -> None:
    for name in ("small", "large"):
        create(cluster, "t", name)
    with open_log(cluster, ensemble=3, retry_ms=1) as log:
        source, persister = attach(log, "t", "small")
        large = attach(log, "t", "large", padding=70_000)
        assert mark(source, persister) == 1
        assert ledger_of(cluster, "t", "small") == -1
        large[0].acknowledge()
        large[1].dirty()
        waiting = large[1].flush()
        assert mark(source, persister) == 2
        assert not waiting.done(), "it does not fit there"
        log.flusher.cursor_ledgers._config = CursorLogConfig(ensemble=2)  # a ledger without the third bookie is enough
        waiting.result(PATIENCE_S)
        assert mark(source, persister) == 3
        assert ledger_of(cluster, "t", "small") >= 0
    assert (state_of(cluster, "t", "small"), state_of(cluster, "t", "large")) == (3, 1)


def test_the_end_waits_for_snapshots_that_go_into_the_metadata(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    store = FailingStore.before(cluster)
    with open_log(cluster, ensemble=3) as log:
        source, persister = attach(log, "t")
        source.acknowledge()
        persister.dirty()
        store.fail("put", *[MetadataUnavailableError("away")] * 10_000)
        waiting = persister.flush()
        until(lambda: source.taken)
        quiet = log.flusher.quiet()
        assert not quiet.done()
        store._faults.clear()
        waiting.result(PATIENCE_S)
        quiet.result(PATIENCE_S)
        assert source.persisted_state == 1


def test_without_a_metadata_store_those_in_the_ledger_go_on_and_others_wait(cluster: LedgerCluster) -> None:
    for name in ("in", "out"):
        create(cluster, "t", name)
    store = FailingStore.before(cluster)
    with open_log(cluster) as log:
        inside, outside = attach(log, "t", "in"), attach(log, "t", "out")
        mark(*inside)
        away = MetadataUnavailableError("away")
        store.fail("get", *[away] * 10_000)
        outside[0].acknowledge()
        outside[1].dirty()
        waiting = outside[1].flush()
        assert mark(*inside) == 2
        assert not waiting.done()
        assert outside[0].persisted_state == 0
        store._faults.clear()
        waiting.result(PATIENCE_S)
        assert outside[0].persisted_state == 1
    assert (state_of(cluster, "t", "in"), state_of(cluster, "t", "out")) == (2, 1)


def test_flushes_of_a_closed_log_and_slot_fail(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    create(cluster, "u")
    log = open_log(cluster)
    closed, persister = attach(log, "t")
    other = attach(log, "u")
    persister.close()
    closed.acknowledge()
    persister.dirty()
    with pytest.raises(ClosedError, match="subscription s of topic t"):
        persister.flush().result(PATIENCE_S)
    other[0].acknowledge()
    other[1].dirty()
    log.close()
    assert other[0].persisted_state == 1, "closing persists what is dirty"
    other[0].acknowledge()
    other[1].dirty()
    with pytest.raises(ClosedError, match="cursor log"):
        other[1].flush().result(PATIENCE_S)
    with pytest.raises(ClosedError):
        log.recover("t", "s")


def test_flush_accepted_before_close_fails_with_closed_error_when_handled_after_it(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush was accepted, and the log is closed before its thread handles the flush."""
    create(cluster, "t")
    log = open_log(cluster)
    source, persister = attach(log, "t")
    source.acknowledge()
    persister.dirty()
    taken, closed = threading.Event(), threading.Event()
    post = log.flusher.post

    def late(job: Callable[[], object]) -> None:
        if threading.get_ident() == flushing:
            taken.set()
            assert closed.wait(PATIENCE_S)
        post(job)

    def flush() -> AppendFuture[None]:
        nonlocal flushing
        flushing = threading.get_ident()
        return persister.flush()

    flushing = -1
    monkeypatch.setattr(log.flusher, "post", late)
    with ThreadPoolExecutor(1) as pool:
        flush_later = pool.submit(flush)
        assert taken.wait(PATIENCE_S)
        log.close()
        closed.set()
        future = flush_later.result(PATIENCE_S)
    assert future.done() and isinstance(future.exception(), ClosedError)


def test_close_fails_pending_flushes_that_cannot_be_stored(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    store = FailingStore.before(cluster)
    log = open_log(cluster)
    source, persister = attach(log, "t")
    source.acknowledge()
    persister.dirty()
    store.fail("get", *[MetadataUnavailableError("away")] * 10_000)
    waiting = persister.flush()
    log.close(timeout=0.1)
    store._faults.clear()
    assert waiting.done() and isinstance(waiting.exception(), ClosedError)


def test_impossible_settings_of_a_cursor_log_are_refused() -> None:
    for wrong in ({"flush_ms": -1}, {"durability": "never"}, {"roll_entries": 0}, {"retry_ms": 5, "retry_max_ms": 4}):
        with pytest.raises(ConfigError):
            CursorLogConfig.of(wrong)


def test_a_damaged_cursor_is_lost_and_others_go_on(cluster: LedgerCluster, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("bad", "good"):
        create(cluster, "t", name)

    def fail() -> tuple[int, bytes]:
        raise ZeroDivisionError

    with open_log(cluster) as log:
        bad, good = attach(log, "t", "bad"), attach(log, "t", "good")
        bad[0].snapshot_record = fail  # type: ignore[method-assign]
        bad[0].acknowledge()
        bad[1].dirty()
        assert mark(*good) == 1
        assert bad[0].came.wait(PATIENCE_S)
    assert "raised" in caplog.text


def test_state_is_not_persisted_until_an_append_succeeds(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "t")
    tried = threading.Event()

    def refuse(*args: object, **kwargs: object) -> None:
        raise NotEnoughBookiesError("lost")

    def fail(*args: object, **kwargs: object) -> None:
        tried.set()
        raise MetadataUnavailableError("away")

    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        mark(source, persister)
        ledger = log.flusher.cursor_ledgers.current
        assert ledger is not None
        with monkeypatch.context() as patched:
            patched.setattr(ledger.handle, "submit_batch", refuse)
            patched.setattr(cluster, "create_ledger", fail)
            source.acknowledge()
            persister.dirty()
            waiting = persister.flush()
            assert tried.wait(PATIENCE_S), "another ledger is asked for"
            assert (source.persisted_state, waiting.done()) == (1, False)
        waiting.result(PATIENCE_S)
        assert source.persisted_state == 2
    assert state_of(cluster, "t") == 2
