"""The managed ledger's window, and its end."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import ClosedError, OutcomeUnknownError, WindowFullError
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.owner.managed.managedledger import ManagedLedger
from tests.ledger.standins import Meddler
from tests.topic.owners import PATIENCE_S, config, publish, read_all, result, until


def test_the_window(tmp_path: Path) -> None:
    with (
        LedgerCluster.embedded(tmp_path, bookies=1) as cluster,
        ManagedLedger.open(cluster, "t", config=config()) as topic,
    ):
        result(publish(topic, [b"a"]))
        topic._writer.window = Window(1000, 100, topic._writer._held)
        meddler = Meddler(cluster)
        meddler.rule(meddler.hold, kind=RequestKind.ADD)
        futures = [publish(topic, [bytes(600)]) for _ in range(2)]
        assert not topic.has_room and not topic.room().done() and topic.pending_bytes > 1200
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(publish, topic, [b"waits"])
            futures.append(asyncio.run(in_a_coroutine(topic)))
            assert not waits.done()
            meddler.clear()
            meddler.release()
            assert [result(future) for future in futures] == [range(n, n + 1) for n in range(1, 4)]
            assert result(waits.result(PATIENCE_S)) == range(4, 5)
            assert result(topic.room()) is None and topic.has_room


async def in_a_coroutine(topic: ManagedLedger) -> AppendFuture[range]:
    """There it never waits: it goes on up to twice the window."""
    future = publish(topic, [bytes(900)])
    with pytest.raises(WindowFullError):
        publish(topic, [b"too much"])
    return future


def test_closing_does_not_hang(tmp_path: Path) -> None:
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic = ManagedLedger.open(cluster, "t", config=config(roll_entries=99))
        result(publish(topic, [b"a"]))
        meddler = Meddler(cluster)
        meddler.rule(meddler.lose, kind=RequestKind.ADD)
        pending = [publish(topic, [b"b"]), publish(topic, [b"c"])]
        with pytest.raises(OutcomeUnknownError):
            topic.close(timeout=0.05)
        for future in pending:
            with pytest.raises(OutcomeUnknownError):
                result(future)
        meddler.clear()
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


def test_a_forgotten_one_warns(tmp_path: Path) -> None:
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic: Any = ManagedLedger.open(cluster, "t", config=config())
        with pytest.warns(ResourceWarning, match="unclosed topic t") as told:
            del topic
            until(lambda: gc.collect() >= 0 and len(told))  # no collection begins while another thread is at one


def test_closing_in_a_callback(tmp_path: Path) -> None:
    """It does not wait there, and ends all the same."""
    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        topic = ManagedLedger.open(cluster, "t", config=config())
        closed: AppendFuture[None] = AppendFuture()

        def close(_: AppendFuture[range]) -> None:
            topic.close()
            topic._writer.done.add_done_callback(lambda _: closed.complete(None))

        future = publish(topic, [b"a"])
        future.add_done_callback(close)
        assert result(future) == range(1) and result(closed) is None
        with ManagedLedger.open(cluster, "t") as again:
            assert read_all(again) == {0: b"a"}
