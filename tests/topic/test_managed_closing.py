"""The window of a managed ledger, and its end."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.clock import SystemClock
from pyreplog.errors import (
    ClosedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    WindowFullError,
)
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.owner.managed.ledgers import LedgerMaker
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.owners import PATIENCE_S, config, publish, read_all, result, until


def publisher_of(topic: ManagedLedger, cluster: LedgerCluster) -> Publisher:
    """Return a publisher with a small window."""
    return Publisher(
        "t", topic.writer, cluster.runtime, SystemClock(), topic.config,
        entry_bytes_max=cluster.runtime.entry_bytes_max, end=topic.end.offset, window_bytes=1000,
    )  # fmt: skip


def test_the_window_of_a_managed_ledger_bounds_pending_bytes(tmp_path: Path) -> None:
    with (
        LedgerCluster.embedded(tmp_path, bookies=1) as cluster,
        ManagedLedger.open(cluster, "t", config=config()) as topic,
    ):
        publisher = publisher_of(topic, cluster)
        assert publisher.publish(b"a") == 0
        interceptor = RequestInterceptor(cluster)
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        futures = [publisher.submit_batch([bytes(600)]) for _ in range(2)]
        assert not publisher.has_room and not publisher.room().done() and topic.pending_bytes > 1200
        assert topic.stats().pending_entries == 2
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(publisher.submit_batch, [b"waits"])
            futures.append(asyncio.run(in_a_coroutine(publisher)))
            assert not waits.done()
            interceptor.clear()
            interceptor.release()
            assert [result(future) for future in futures] == [range(n, n + 1) for n in range(1, 4)]
            assert result(waits.result(PATIENCE_S)) == range(4, 5)
            assert result(publisher.room()) is None and publisher.has_room
            assert topic.pending_bytes == topic.stats().pending_entries == 0


async def in_a_coroutine(publisher: Publisher) -> AppendFuture[range]:
    """A coroutine never waits: it submits up to twice the window."""
    future = publisher.submit_batch([bytes(900)])
    with pytest.raises(WindowFullError):
        publisher.submit_batch([b"too much"])
    return future


def test_copies_that_are_missing_fill_the_window(tmp_path: Path) -> None:
    """Confirmed messages count in the window until their ledger has all copies."""
    settings = config(ensemble=3, write_quorum=3, ack_quorum=2, roll_entries=99)
    with (
        LedgerCluster.embedded(tmp_path, bookies=3) as cluster,
        ManagedLedger.open(cluster, "t", config=settings) as topic,
    ):
        publisher = publisher_of(topic, cluster)
        assert publisher.publish(b"a") == 0
        interceptor = RequestInterceptor(cluster)
        bookie = cluster.ledger_metadata(topic.chain.ledgers[0].ledger).fragments[0].ensemble[0]
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=bookie)
        for number in (1, 2):
            assert publisher.publish(bytes(600)) == number
        assert publisher.pending_bytes == 0 and topic.pending_bytes > 1000
        assert not publisher.has_room
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(publisher.publish, b"waits")
            until(lambda: publisher.waiting == 1)
            interceptor.clear()
            interceptor.release()
            assert waits.result(PATIENCE_S) == 3


def test_closing_a_managed_ledger_does_not_hang(tmp_path: Path) -> None:
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic = ManagedLedger.open(cluster, "t", config=config(roll_entries=99))
        result(publish(topic, [b"a"]))
        interceptor = RequestInterceptor(cluster)
        interceptor.add_rule(interceptor.lose, kind=RequestKind.ADD)
        pending = [publish(topic, [b"b"]), publish(topic, [b"c"])]
        with pytest.raises(OutcomeUnknownError):
            topic.close(timeout=0.05)
        for future in pending:
            with pytest.raises(OutcomeUnknownError):
                result(future)
        interceptor.clear()
        with ManagedLedger.open(cluster, "t") as again:
            assert read_all(again)[0] == b"a" and result(publish(again, [b"d"])).start == again.end.offset - 1


def test_a_cluster_that_is_closed_first(tmp_path: Path) -> None:
    cluster = LedgerCluster.embedded(tmp_path, bookies=1)
    topic = ManagedLedger.open(cluster, "t", config=config())
    result(publish(topic, [b"a"]))
    cluster.close()
    with pytest.raises(ClosedError):
        publish(topic, [b"b"])
    topic.close()


def test_messages_that_wait_for_a_ledger_fail_with_their_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, asked = LedgerCluster.embedded(tmp_path, bookies=1), threading.Event()

    def refuse(*args: Any, **how: Any) -> Any:
        asked.set()
        raise NotEnoughBookiesError("away")

    topic = ManagedLedger.open(cluster, "t", config=config())
    monkeypatch.setattr(LedgerMaker, "make", refuse)
    pending = publish(topic, [b"a"])
    assert asked.wait(PATIENCE_S)
    cluster.close()
    with pytest.raises(ClosedError):
        result(pending)
    topic.close()


def test_a_read_whose_ledger_is_not_open_yet_fails_with_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens the reader waits for the metadata store."""
    cluster = LedgerCluster.embedded(tmp_path, bookies=1)
    with ManagedLedger.open(cluster, "t", config=config()) as topic:
        result(publish(topic, [b"a"]))
    topic = ManagedLedger.open(cluster, "t")
    begun, answered = threading.Event(), threading.Event()

    def open_reader(maker: LedgerMaker, ledger: int) -> LedgerReader:
        begun.set()
        assert answered.wait(2 * PATIENCE_S)
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(LedgerMaker, "open_reader", open_reader)
    read = topic.read(0)
    assert begun.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(cluster.close)
        try:
            with pytest.raises(ClosedError):
                result(read)
        finally:
            answered.set()
            closing.result(PATIENCE_S)
    topic.close()


def test_a_forgotten_managed_ledger_warns(tmp_path: Path) -> None:
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic: Any = ManagedLedger.open(cluster, "t", config=config())
        with pytest.warns(ResourceWarning, match="unclosed topic t") as warnings:
            del topic
            until(lambda: gc.collect() >= 0 and len(warnings))  # no garbage collection runs in another thread meanwhile


def test_a_managed_ledger_is_closed_in_a_callback(tmp_path: Path) -> None:
    """Closing does not wait in a callback, and the ledger is closed all the same."""
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic = ManagedLedger.open(cluster, "t", config=config())
        closed: AppendFuture[None] = AppendFuture()

        def close(_: AppendFuture[range]) -> None:
            topic.close()
            topic._writer.done.add_done_callback(lambda _: set_result(closed, None))

        future = publish(topic, [b"a"])
        future.add_done_callback(close)
        assert result(future) == range(1) and result(closed) is None
        with ManagedLedger.open(cluster, "t") as again:
            assert read_all(again) == {0: b"a"}
