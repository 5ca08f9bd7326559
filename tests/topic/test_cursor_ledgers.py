"""The ledgers of a CursorLog: they are rolled and read, may be broken, and are deleted when no cursor refers to them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cursors import cursor_log
from pyreplog.cursors.cursor_ledgers import CURSOR_LEDGERS, Sweep
from pyreplog.cursors.cursor_pages import Chains
from pyreplog.cursors.subscription_metadata import delete_subscription, load_subscription
from pyreplog.errors import (
    NoSuchLedgerError,
    NoSuchSubscriptionError,
    NotEnoughBookiesError,
)
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import metadata_key
from tests.topic.counting import PATIENCE_S, attach, create, mark, open_log, restore, state_of
from tests.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LedgerCluster]:
    with LedgerCluster.embedded(tmp_path / "c", bookies=2) as cluster:
        yield cluster


def sweep(cluster: LedgerCluster, mine: str = "nobody", given_up: frozenset[int] = frozenset()) -> set[int]:
    look = Sweep(cluster, mine, given_up)
    while look.step():
        continue
    return look.deleted


def ledger_of(cluster: LedgerCluster, topic: str, name: str = "s") -> int:
    return load_subscription(cluster.metadata, topic, name).cursor_ledger


def test_a_clean_cursor_goes_into_the_metadata_and_its_ledger_goes(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        mark(source, persister)
        source.acknowledge()
        persister.dirty()
        persister.store_clean().result(PATIENCE_S)
        log.flusher.quiet().result(PATIENCE_S)  # nor is the cursor moved back to a ledger
        subscription_metadata = load_subscription(cluster.metadata, "t", "s")
        assert (subscription_metadata.cursor_ledger, restore([subscription_metadata.snapshot])[0]) == (-1, 2)
        persister.close()
    assert cluster.ledgers() == []
    assert cluster.metadata.list(CURSOR_LEDGERS) == []
    assert state_of(cluster, "t") == 2


def test_ledger_roll_rewrites_only_cursors_with_state_in_the_old_ledger(cluster: LedgerCluster) -> None:
    for name in ("busy", "idle", "clean"):
        create(cluster, "t", name)
    with open_log(cluster, roll_entries=3) as log:
        busy, idle, clean = (attach(log, "t", name) for name in ("busy", "idle", "clean"))
        mark(*idle)
        first = ledger_of(cluster, "t", "idle")
        while ledger_of(cluster, "t", "busy") in (first, -1) or ledger_of(cluster, "t", "idle") == first:
            mark(*busy)
        assert idle[0].taken[:2] == ["whole", "whole"]
        assert clean[0].taken == []
    with pytest.raises(NoSuchLedgerError):
        cluster.ledger_metadata(first)
    assert state_of(cluster, "t", "idle") == 1


def test_a_ledger_that_is_opened_while_the_log_is_closed_goes(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "t")
    resume = threading.Event()
    log = open_log(cluster)
    try:
        source, persister = attach(log, "t")
        cursor_ledgers = log.flusher.cursor_ledgers
        post = cursor_ledgers._post
        monkeypatch.setattr(cursor_ledgers, "_post", lambda job: (resume.wait(PATIENCE_S), post(job)))
        source.acknowledge()
        persister.dirty()
        until(lambda: cursor_ledgers._opened)
    finally:
        log.close(timeout=0.1)
        resume.set()
    assert cluster.ledgers() == []
    assert cluster.metadata.list(CURSOR_LEDGERS) == []


def test_a_deleted_subscription_is_lost_and_its_ledger_goes(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster, roll_entries=1) as log:
        source, persister = attach(log, "t")
        mark(source, persister)
        delete_subscription(cluster.metadata, "t", "s")
        source.acknowledge()
        persister.dirty()
        assert source.came.wait(PATIENCE_S), "the next ledger has to be named"
        assert isinstance(source.lost_with, NoSuchSubscriptionError)
    assert cluster.ledgers() == []


@pytest.mark.parametrize("how", ["deleted", "garbled"])
def test_a_broken_ledger_rolls_back_to_the_snapshot(cluster: LedgerCluster, how: str) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        source, persister = attach(log, "t")
        mark(source, persister)
        mark(source, persister)
    ledger = ledger_of(cluster, "t")
    if how == "deleted":
        cluster.delete_ledger(ledger)
    else:
        key = metadata_key(ledger)
        cluster.metadata.put(key, b"?", cluster.metadata.get(key).version)  # type: ignore[union-attr]
    with open_log(cluster) as other:
        source, persister = attach(other, "t")
        assert source.state == 1, "the snapshot that was stored when the ledger was named"
        assert other.rollbacks == 1
        assert mark(source, persister) == 2
        persister.close()
    assert state_of(cluster, "t") == 2


def test_a_ledger_is_read_once_for_all_its_cursors(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{i}" for i in range(5)]
    for name in names:
        create(cluster, "t", name)
    with open_log(cluster) as log:
        for name in names:
            mark(*attach(log, "t", name))
    opened = []
    opens = cluster.open_ledger
    monkeypatch.setattr(cluster, "open_ledger", lambda ledger, **how: (opened.append(ledger), opens(ledger, **how))[1])
    with open_log(cluster) as other:
        assert [restore(other.recover("t", name).records)[0] for name in names] == [1] * 5
        assert len(opened) == 1
        other._history._cache_s = 0.0
        assert other._history.forget_old() is False


def test_ledgers_that_were_read_are_forgotten_each_time(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are dropped also when no other ledger is read: an idle process keeps none in memory."""
    create(cluster, "t")
    with open_log(cluster) as log:
        mark(*attach(log, "t"))
    kept: weakref.WeakSet[Chains] = weakref.WeakSet()

    def note() -> Chains:
        chains = Chains()
        kept.add(chains)
        return chains

    monkeypatch.setattr(cursor_log, "Chains", note)
    with open_log(cluster, cache_ms=100) as other:
        for _ in range(2):
            assert restore(other.recover("t", "s").records)[0] == 1
            until(lambda: not kept)


def test_attempts_to_open_a_cursor_ledger_become_less_frequent(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "t")

    def fail(*args: object, **how: object) -> None:
        raise NotEnoughBookiesError("away")

    log = open_log(cluster, retry_ms=10, retry_max_ms=3_600_000)
    try:
        source, persister = attach(log, "t", padding=70_000)  # the cursor is too large for the metadata
        with monkeypatch.context() as patched:
            patched.setattr(cluster, "create_ledger", fail)
            source.acknowledge()
            persister.dirty()
            until(lambda: log.flusher.cursor_ledgers.wait_s > 0.1)
        persister.flush().result(PATIENCE_S)
        assert source.persisted_state == 1
    finally:
        log.close(timeout=1.0)


def test_ledgers_that_take_no_entry_are_made_less_and_less_often(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "t")
    make = cluster.create_ledger

    def make_fenced(*args: Any, **how: Any) -> Ledger:
        ledger = make(*args, **how)
        cluster.open_ledger(ledger.id).close()
        return ledger

    log = open_log(cluster, retry_ms=10, retry_max_ms=3_600_000)
    try:
        source, persister = attach(log, "t", padding=70_000)  # the cursor is too large for the metadata
        with monkeypatch.context() as patched:
            patched.setattr(cluster, "create_ledger", make_fenced)
            source.acknowledge()
            persister.dirty()
            until(lambda: log.flusher.cursor_ledgers.wait_s > 0.1)
        persister.flush().result(PATIENCE_S)
        assert source.persisted_state == 1
    finally:
        log.close(timeout=1.0)


def test_sweep_deletes_an_abandoned_ledger_once_no_cursor_refers_to_it(cluster: LedgerCluster) -> None:
    for name in ("a", "b"):
        create(cluster, "t", name)
    with open_log(cluster) as log:
        for name in ("a", "b"):
            mark(*attach(log, "t", name))
    old = ledger_of(cluster, "t", "a")
    with open_log(cluster) as other:
        mark(*attach(other, "t", "a"))
        assert sweep(cluster) == set(), "b is there"
        mark(*attach(other, "t", "b"))
        assert sweep(cluster) == {old}
    with open_log(cluster) as last:
        assert [restore(last.recover("t", name).records)[0] for name in ("a", "b")] == [2, 2]


def test_a_process_that_stores_cursors_deletes_what_another_one_left(cluster: LedgerCluster) -> None:
    """It does so without being asked."""
    for name in ("a", "b"):
        create(cluster, "t", name)
    with open_log(cluster) as log:
        mark(*attach(log, "t", "a"))
    left = ledger_of(cluster, "t", "a")
    delete_subscription(cluster.metadata, "t", "a")
    with open_log(cluster, sweep_ms=1) as other:
        mark(*attach(other, "t", "b"))
        until(lambda: left not in cluster.ledgers())
        assert ledger_of(cluster, "t", "b") in cluster.ledgers()


def test_a_ledger_is_not_swept_while_its_writer_has_a_subscription(cluster: LedgerCluster) -> None:
    create(cluster, "t")
    with open_log(cluster, flush_ms=60_000) as log:  # only the records that the test waits for are stored
        source, persister = attach(log, "t")
        mark(source, persister)
        current = log.flusher.cursor_ledgers.current
        assert current is not None
        create(cluster, "t", "not named yet")
        log.recover("t", "not named yet")
        delete_subscription(cluster.metadata, "t", "s")
        assert sweep(cluster) == set(), "it may be about to name it"
        delete_subscription(cluster.metadata, "t", "not named yet")
        assert sweep(cluster) == {current.ledger}
        persister.close(deleted=True)


def test_unreadable_now_is_an_error_unless_forced(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create(cluster, "t")
    with open_log(cluster) as log:
        mark(*attach(log, "t"))

    def refuse(ledger: int) -> None:
        raise NotEnoughBookiesError("away")

    with open_log(cluster) as other, monkeypatch.context() as patched:
        patched.setattr(cluster, "open_ledger", refuse)
        with pytest.raises(NotEnoughBookiesError):
            other.recover("t", "s")
        assert other.rollbacks == 0
        assert restore(other.recover("t", "s", force=True).records)[0] == 1
        assert other.rollbacks == 1
