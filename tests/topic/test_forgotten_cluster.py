"""A cluster or a client is dropped with open topics: one warning says so, all is closed, and no message is lost."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.client import Client, connect
from tests.topic.partitioning import PLAIN, until
from tests.topic.remoting import serve_cluster

VALUES = [b"%d" % at for at in range(8)]
KEPT = {**PLAIN, "retention_bytes": None}


def use(cluster: Cluster | Client) -> None:
    """Use two topics, one of them with partitions, with a consumer that has left and messages that were not sent."""
    topic = cluster.topic("orders", linger_ms=60_000, batch_messages=1 << 16, **KEPT)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        consumer.acknowledge(range(5))
    topic.submit(b"late")
    cluster.topic("news", partitions=2, **KEPT).publish(b"x", b"key")


def ended(others: set[threading.Thread], names: tuple[str, ...] = ("pyreplog",)) -> bool:
    """Return whether all threads have ended, except those that ran before (`others`). names: prefixes of thread names.

    No garbage is collected here: after thousands of tests that takes a second, in which the threads would not run.
    """
    return not [thread for thread in {*threading.enumerate()} - others if thread.name.startswith(names)]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_garbage_collected_cluster_warns_once_and_closes_everything(tmp_path: Path) -> None:
    others = {*threading.enumerate()}
    with pytest.warns(ResourceWarning) as warnings:
        use(Cluster.embedded(tmp_path, bookies=1))
        until(lambda: (gc.collect(), len(warnings))[1])
        until(lambda: ended(others))
    assert [str(line.message).partition(",")[0] for line in warnings] == [f"unclosed cluster in {tmp_path}"]
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        check_what_is_there(cluster)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_garbage_collected_cluster_with_idle_bookies_stores_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads of the bookies have not started, so that they are garbage, too: their logs may not close before the
    topics."""
    Cluster.embedded(tmp_path, bookies=1, segment_bytes=1 << 20).close()  # no spare segment is prepared
    others, collected = {*threading.enumerate()}, threading.Event()

    class Thread(threading.Thread):
        """A thread that closes the cluster only after the finalizers of all objects of the same collection."""

        def run(self) -> None:
            assert self.name != "pyreplog-close" or collected.wait(30)
            super().run()

    monkeypatch.setattr(threading, "Thread", Thread)
    with pytest.warns(ResourceWarning) as warnings:
        cluster = Cluster.embedded(tmp_path, bookies=1, segment_bytes=1 << 20)
        topic = cluster.topic("orders", linger_ms=60_000, batch_messages=1 << 16, **KEPT)
        topic.submit(b"late")
        handles: list[Any] = [cluster, topic]
        handles.append(handles)  # a cycle, so that all objects are collected together
        del cluster, topic, handles
        until(lambda: (gc.collect(), len(warnings))[1])
        collected.set()
        until(lambda: ended(others))
    assert [str(line.message).partition(",")[0] for line in warnings] == [f"unclosed cluster in {tmp_path}"]
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        assert [value for batch in cluster.topic("orders").read() for value in batch.values()] == [b"late"]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_garbage_collected_cluster_with_open_readers_closes_without_errors(tmp_path: Path) -> None:
    """The topic keeps readers of these ledgers, which their finalizers may not close first."""
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        cluster.topic("orders", **KEPT).publish_batch(VALUES)
    others = {*threading.enumerate()}
    with pytest.warns(ResourceWarning) as warnings:
        cluster = Cluster.embedded(tmp_path, bookies=1)
        topic = cluster.topic("orders")
        assert [value for batch in topic.read() for value in batch.values()] == VALUES
        del cluster, topic
        until(lambda: (gc.collect(), len(warnings))[1])
        until(lambda: ended(others))
    assert [str(line.message).partition(",")[0] for line in warnings] == [f"unclosed cluster in {tmp_path}"]


def check_what_is_there(cluster: Cluster) -> None:
    topic = cluster.topic("orders")
    assert [value for batch in topic.read() for value in batch.values()] == [*VALUES, b"late"]
    assert topic.stats().subscriptions[0].backlog_messages == len(VALUES) + 1 - 5
    news = cluster.topic("news")
    assert [batch.values() for part in range(2) for batch in news.read(part)] == [[b"x"]]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_forgotten_client_warns_once_and_is_closed(tmp_path: Path) -> None:
    with serve_cluster(tmp_path) as served:
        others = {*threading.enumerate()}
        url = f"pyreplog://{served.server.address}"
        with pytest.warns(ResourceWarning) as warnings:
            use(connect(url))
            until(lambda: (gc.collect(), len(warnings))[1])
            until(lambda: ended(others, ("pyreplog-close", "pyreplog-net")))  # the cluster itself is not closed
        assert [str(line.message).partition(",")[0] for line in warnings] == [f"unclosed client of {url}"]
        check_what_is_there(served.cluster)
