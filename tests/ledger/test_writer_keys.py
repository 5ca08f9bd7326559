"""The keys that name the client which has a ledger open for appending: they exist as long as the ledger is open,
whatever the store does."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog import Cluster
from pyreplog.errors import (
    ClosedError,
    InvalidMetadataError,
    LedgerFencedError,
    MetadataUnavailableError,
    MetadataVersionError,
    OutcomeUnknownError,
)
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.embedded import METADATA
from pyreplog.ledger.writer_keys import WRITERS, LedgerWriterIdentity, WriterKeys, writer_key
from pyreplog.metadata.memory import MemoryLease, MemoryStore
from pyreplog.metadata.sqlite import SQLiteStore
from tests.ledger.conftest import SEGMENT_BYTES
from tests.ledger.fault_injection import FailingStore
from tests.waiting import until

AWAY = MetadataUnavailableError("away")


class LeasingStore(FailingStore):
    """Records the leases that were made."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.leases: list[MemoryLease] = []

    def lease(self, ttl: float, on_loss: Callable[[], object]) -> MemoryLease:
        self.leases.append(self.__getattr__("lease")(ttl, on_loss))
        return self.leases[-1]


class Bench:
    """Takes the place of a runtime: jobs and timers run when the test says so."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.metadata: Any = LeasingStore(self.memory)
        self.timers: list[Callable[[], None]] = []
        self.jobs: list[Callable[[], object]] = []
        self.keys = WriterKeys(self)  # type: ignore[arg-type]

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def work(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)

    def run(self, *, timers: bool = True) -> Bench:
        """Run all jobs, and the timers that are set now."""
        due, self.timers = (self.timers, []) if timers else ([], self.timers)
        for call in due:
            call()
        while self.jobs:
            self.jobs.pop(0)()
        return self

    def lose_lease(self) -> None:
        """Let the lease expire, as when the store has not heard from the client for too long."""
        jobs = len(self.jobs)
        self.metadata.leases[-1].expire()
        until(lambda: len(self.jobs) > jobs)

    def keyed(self) -> list[int]:
        """Return the ledgers that have keys."""
        return [int(name) for name in self.memory.list(WRITERS)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.memory.close()


# ---- values ----------------------------------------------------------------------------------------------------


def test_writer_keys_have_their_golden_values() -> None:
    writer = LedgerWriterIdentity("host", 7, "ab")
    assert LedgerWriterIdentity.decode(writer.encode()) == writer
    body = json.loads(writer.encode())
    assert body == {"version": 1, "min_reader": 1, "host": "host", "pid": 7, "incarnation": "ab"}
    assert LedgerWriterIdentity.decode(json.dumps({**body, "version": 3, "more": 1}).encode()) == writer
    with pytest.raises(MetadataVersionError):
        LedgerWriterIdentity.decode(json.dumps({**body, "min_reader": 3}).encode())
    for wrong in (b"", b"[]", json.dumps({**body, "pid": "7"}).encode(), b'{"version":1}'):
        with pytest.raises(InvalidMetadataError):
            LedgerWriterIdentity.decode(wrong)
    assert writer_key(7) == "/writers/0000000000000000007"


# ---- one step after the other ----------------------------------------------------------------------------------


def test_a_ledger_that_is_closed_at_once_costs_nothing(bench: Bench) -> None:
    bench.keys.hold(1)
    assert bench.metadata.calls == [] and len(bench.timers) == 1
    bench.keys.release(1)
    bench.run(timers=False).run()
    assert bench.metadata.calls == [] and bench.keyed() == []


def test_ledgers_share_a_timer_and_a_lease(bench: Bench) -> None:
    for ledger in range(5):
        bench.keys.hold(ledger)
    assert len(bench.timers) == 1
    bench.run()
    assert bench.keyed() == [0, 1, 2, 3, 4] and bench.metadata.calls == ["lease"]
    bench.keys.release(2)
    bench.keys.release(2)
    bench.keys.hold(9)
    bench.run()
    assert bench.keyed() == [0, 1, 3, 4, 9] and bench.metadata.calls == ["lease", "delete"]


def test_a_ledger_that_comes_as_the_timer_is_due_is_not_forgotten(bench: Bench) -> None:
    bench.keys.hold(1)
    (due,), bench.timers = bench.timers, []
    due()
    bench.keys.hold(2)
    bench.run()
    assert bench.keyed() == [1, 2]


def test_keys_lost_with_a_lease_are_created_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for ledger in (1, 2, 3):
        bench.keys.hold(ledger)
    bench.run()
    bench.lose_lease()
    assert bench.keyed() == []
    bench.keys.release(2)
    bench.run(timers=False)
    assert bench.keyed() == [1, 3]
    assert "the lease of 3 ledgers that are open for appending was lost" in caplog.text
    bench.keys.release(1)
    bench.keys.release(3)
    assert bench.run().keyed() == []


def test_a_key_of_a_lost_lease_that_is_still_there_is_replaced(bench: Bench) -> None:
    """Otherwise the key would vanish later, with the former lease."""
    earlier = bench.memory.lease(10)
    earlier.create(writer_key(1), b"{}")
    bench.keys.hold(1)
    bench.run()
    earlier.close()
    assert bench.keyed() == [1]


@pytest.mark.parametrize("method", ["lease", "delete"])
def test_while_the_store_is_away_there_is_one_more_attempt_at_a_time(bench: Bench, method: str) -> None:
    """This holds for any number of ledgers that are opened and closed meanwhile. In the end the keys are right."""
    bench.keys.hold(1)
    if method == "delete":
        bench.run()
        bench.keys.release(1)
    bench.metadata.fail(method, *[AWAY] * 3)
    bench.run()
    for ledger in range(2, 6):
        bench.keys.hold(ledger)
        bench.keys.release(ledger - 1)
        bench.run(timers=False)
    calls = len(bench.metadata.calls)
    assert len(bench.timers) == 2  # the next attempt, and that of the new ledgers
    while bench.timers:
        bench.run()
    assert len(bench.metadata.calls) > calls and bench.keyed() == [5]


@pytest.mark.parametrize("done", [True, False])
def test_a_writer_key_is_deleted_again_after_an_unknown_outcome(bench: Bench, done: bool) -> None:
    bench.keys.hold(1)
    bench.run()
    bench.metadata.fail("delete", OutcomeUnknownError("the reply was lost"), done=done)
    bench.keys.release(1)
    bench.run(timers=False)
    assert len(bench.timers) == 1 and bench.keyed() == ([] if done else [1])
    assert bench.run().keyed() == [] and bench.timers == []


def test_a_key_that_may_exist_is_deleted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of its creation is unknown, and the ledger was closed then."""
    create = MemoryLease.create

    def lose(lease: MemoryLease, key: str, value: bytes) -> int:
        create(lease, key, value)
        raise OutcomeUnknownError("the reply was lost")

    bench.keys.hold(1)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLease, "create", lose)
        bench.run()
    assert bench.keyed() == [1]
    bench.keys.release(1)
    assert bench.run().keyed() == []


def test_each_client_has_its_own(bench: Bench) -> None:
    """Clients share a store, and each has a lease of its own."""
    other = WriterKeys(bench)  # type: ignore[arg-type]
    other.hold(2)
    bench.run()
    bench.keys.hold(1)
    bench.run()
    values = [bench.memory.get(writer_key(ledger)) for ledger in (1, 2)]
    incarnations = {LedgerWriterIdentity.decode(value.value).incarnation for value in values if value is not None}
    assert len(incarnations) == 2
    bench.lose_lease()
    assert bench.keyed() == [2]
    assert bench.run().keyed() == [1, 2]


def test_its_close_ends_the_keys_though_the_store_lives_on(bench: Bench) -> None:
    """Other clients of this process may use the same store."""
    bench.keys.hold(1)
    bench.run()
    bench.keys.stop()
    bench.keys.hold(2)
    assert bench.run().keyed() == [1]
    bench.keys.close()
    assert bench.run().keyed() == []


def test_closed_writer_keys_change_no_metadata(bench: Bench) -> None:
    bench.keys.hold(1)
    bench.keys.close()
    bench.keys.release(2)
    bench.run()
    assert bench.metadata.calls == []


# ---- ledgers ---------------------------------------------------------------------------------------------------


def keyed_ledgers(cluster: LedgerCluster) -> list[int]:
    return [int(name) for name in cluster.metadata.list(WRITERS)]


def test_a_ledger_has_a_key_while_it_is_open(cluster: LedgerCluster) -> None:
    with cluster.create_ledger(3, 2, 2) as ledger:
        stored = until(lambda: cluster.metadata.get(writer_key(ledger.id)))
        writer = LedgerWriterIdentity.decode(stored.value)
        assert (writer.host, writer.pid) == (socket.gethostname(), os.getpid())
    until(lambda: keyed_ledgers(cluster) == [])


def test_abandoned_ledger_has_no_writer_key(cluster: LedgerCluster) -> None:
    """An owner gives up its ledger when another one has taken over; a handle that is garbage-collected is given up as
    well."""
    abandoned, ledgers = cluster.create_ledger(3, 2, 2), [cluster.create_ledger(3, 2, 2)]
    until(lambda: keyed_ledgers(cluster) == [abandoned.id, ledgers[0].id])
    abandoned.abandon()
    until(lambda: keyed_ledgers(cluster) == [ledgers[0].id])
    with pytest.warns(ResourceWarning, match="unclosed ledger"):
        ledgers.clear()
        gc.collect()
    until(lambda: keyed_ledgers(cluster) == [])
    with pytest.raises(ClosedError):
        abandoned.close()


def test_a_writer_that_was_fenced_has_none(folder: Path) -> None:
    """One client recovers the ledger of the other one, which deletes its key as soon as it knows."""
    with LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES) as cluster:
        ledger = cluster.create_ledger(3, 2, 2)
        other = cluster.create_ledger(3, 2, 2)
        until(lambda: keyed_ledgers(cluster) == [ledger.id, other.id])
        cluster.open_ledger(ledger.id).close()
        assert keyed_ledgers(cluster) == [ledger.id, other.id], "an idle one does not know yet"
        with pytest.raises(LedgerFencedError):
            ledger.append(b"value")
        until(lambda: keyed_ledgers(cluster) == [other.id])
        with pytest.raises(LedgerFencedError):
            ledger.close()
        other.close()


def test_a_closed_cluster_leaves_none(folder: Path) -> None:
    cluster = LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES)
    ledgers = [cluster.create_ledger(3, 2, 2) for _ in range(3)]
    until(lambda: len(keyed_ledgers(cluster)) == 3)
    cluster.close()
    assert len(ledgers) == 3
    with LedgerCluster.embedded(folder, segment_bytes=SEGMENT_BYTES) as again:
        assert keyed_ledgers(again) == []


def test_a_forgotten_cluster_leaves_none(folder: Path) -> None:
    """A garbage collection clears weak references first, so that the store cannot reach its leases any more."""
    with pytest.warns(ResourceWarning, match="unclosed cluster") as caught:
        handles: list[Any] = [LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES)]
        handles.append(handles[0].create_ledger(3, 2, 2))
        until(lambda: keyed_ledgers(handles[0]))
        handles.clear()
        # A thread of the cluster that is at work holds it for a moment.
        until(lambda: gc.collect() >= 0 and any("unclosed cluster" in str(warning.message) for warning in caught))
    for thread in threading.enumerate():
        if thread.name == "pyreplog-close":
            thread.join()
    with SQLiteStore(folder / METADATA) as store:
        assert store.list(WRITERS) == []


def test_ledgers_of_topics_have_keys(folder: Path) -> None:
    with Cluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES) as cluster:
        with cluster.topic("orders") as topic:
            topic.publish(b"first")
            until(lambda: keyed_ledgers(cluster))
            assert set(keyed_ledgers(cluster)) <= {ledger.id for ledger in cluster.open_ledgers}
        until(lambda: keyed_ledgers(cluster) == [])


def test_while_the_store_is_away_ledgers_go_on(cluster: LedgerCluster) -> None:
    store: Any = FailingStore.before(cluster)
    store.fail("lease", *[AWAY] * 2)
    with cluster.create_ledger(3, 2, 2) as ledger:
        until(lambda: "lease" in store.calls)
        ledger.append(b"value")
        until(lambda: keyed_ledgers(cluster) == [ledger.id])
    until(lambda: keyed_ledgers(cluster) == [])
