"""A thread that publishes to an embedded cluster and waits, without a time-out, syncs by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from pyreplog import Cluster, OutcomeUnknownError, Topic
from pyreplog.ledger.runtime import EmbeddedRuntime

WAIT_S = 60.0
STANDS_STILL_S = 10.0


class Syncs:
    """The syncs of an embedded bookie, with the threads that make them. The test may hold them back."""

    def __init__(self, genuine: Callable[[], object]) -> None:
        self._genuine = genuine
        self.threads: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self) -> None:
        self.threads.append(threading.get_ident())
        self.go.wait(STANDS_STILL_S)
        self._genuine()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        yield cluster


def watched(cluster: Cluster) -> Syncs:
    runtime = cluster.runtime
    assert isinstance(runtime, EmbeddedRuntime)
    (bookie,) = runtime.bookies.values()
    syncs = Syncs(bookie.log.sync)
    bookie.log.sync = syncs  # type: ignore[method-assign]
    return syncs


def test_a_thread_that_waits_for_its_message_syncs(cluster: Cluster) -> None:
    topic = cluster.topic("a")
    topic.publish(b"0")  # the first message opens the ledger
    syncs = watched(cluster)
    assert [topic.publish(b"%d" % number) for number in range(1, 4)] == [1, 2, 3]
    assert syncs.threads == [threading.get_ident()] * 3


def test_a_thread_that_does_not_wait_leaves_the_commit_to_the_bookie(cluster: Cluster) -> None:
    topic = cluster.topic("a")
    topic.publish(b"0")
    syncs = watched(cluster)
    assert topic.submit(b"1").result(WAIT_S) == 1
    assert syncs.threads and threading.get_ident() not in syncs.threads


def test_a_timeout_holds_while_the_disk_stands_still(cluster: Cluster) -> None:
    topic = cluster.topic("a")
    topic.publish(b"0")
    syncs = watched(cluster)
    syncs.go.clear()
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        topic.publish(b"1", timeout=0.2)
    assert time.monotonic() - began_s < STANDS_STILL_S / 2
    syncs.go.set()
    topic.flush(timeout=WAIT_S)
    assert topic.end == 2


def test_many_threads_publish_and_wait(cluster: Cluster) -> None:
    topic = cluster.topic("a")
    offsets: list[list[int]] = [[] for _ in range(8)]

    def publish(number: int, topic: Topic) -> None:
        offsets[number] += [topic.publish(b"%d" % number) for _ in range(50)]

    threads = [threading.Thread(target=publish, args=(number, topic)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(chain.from_iterable(offsets)) == list(range(400))
    assert all(own == sorted(own) for own in offsets)
