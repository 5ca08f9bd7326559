"""Many topics are closed together, with one time-out for all. Topics that cannot store their messages do not delay the
others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyreplog.bookie.protocol import Request, RequestKind
from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, OutcomeUnknownError
from pyreplog.future import AppendFuture
from tests.ledger.fault_injection import OnReply, RequestInterceptor
from tests.topic.handling import PATIENCE_S, PLAIN, check_backlog, open_cluster, received
from tests.waiting import until

COUNT = 12


class Stuck(RequestInterceptor):
    """Loses the adds to these ledgers."""

    def __init__(self, cluster: Cluster, ledgers: set[int]) -> None:
        super().__init__(cluster)
        self._ledgers = ledgers
        self.add_rule(self.lose_some, kind=RequestKind.ADD)

    def lose_some(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        if request.ledger not in self._ledgers:
            self._send(bookie, request, on_reply)


def fails(future: AppendFuture[int]) -> bool:
    return isinstance(future.exception(PATIENCE_S), OutcomeUnknownError)


def test_stuck_topics_share_one_close_timeout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If each topic had a time-out of its own, no time would be left for the last ones."""
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        topics = [cluster.topic(f"t{number}", **PLAIN) for number in range(COUNT)]
        for topic in topics:
            topic.publish(b"a")
        Stuck(cluster, {topic.managed.chain.ledgers[-1].ledger for topic in topics})
        futures = [topic.submit(b"b") for topic in topics]
        began = time.monotonic()
        with pytest.raises(OutcomeUnknownError, match=r"12 of 12 topics were closed .* no outcome: t\d, t\d+, t\d+, …"):
            cluster.close(timeout=3.5)
        assert time.monotonic() - began < 3.5 * COUNT
        assert all(fails(future) for future in futures)
        with pytest.raises(ClosedError):
            topics[0].publish(b"c")
    assert "12 of 12 topics are not closed yet: t0, t1, t2, …" in caplog.text


def test_close_stores_messages_of_all_topics_but_a_stuck_one(tmp_path: Path) -> None:
    """Whichever topic is stuck, messages and acknowledgements of the others are stored."""
    stuck, *others = [f"t{number}" for number in range(COUNT)]
    with open_cluster(tmp_path, flush_ms=60_000) as cluster:
        topics = {name: cluster.topic(name, **PLAIN) for name in (stuck, *others)}
        consumers = {name: topic.subscribe("s") for name, topic in topics.items()}
        for topic in topics.values():
            topic.publish_batch([b"a", b"b"])
        Stuck(cluster, {topics[stuck].managed.chain.ledgers[-1].ledger})
        last = {name: topic.submit(b"c") for name, topic in topics.items()}
        for name in others:
            consumers[name].acknowledge(received(consumers[name], 1))
        with pytest.raises(OutcomeUnknownError, match=r"1 of 12 topics were closed .* no outcome: t0$"):
            cluster.close(timeout=5.0)
        assert fails(last[stuck])
        assert [last[name].result(0) for name in others] == [2] * len(others)
    with open_cluster(tmp_path) as cluster:
        for name in others:
            with cluster.topic(name) as topic:
                check_backlog(topic, "s", [1, 2])


def test_a_second_call_takes_nothing_from_the_first_one(tmp_path: Path) -> None:
    """The first call was abandoned with its task, and its thread goes on."""
    with open_cluster(tmp_path) as cluster:
        topics, topic = cluster.topics, cluster.topic("t", **PLAIN)
        topic.publish(b"a")
        interceptor = RequestInterceptor(cluster)
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        last = topic.submit(b"b")
        interceptor.wait_for(RequestKind.ADD)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(cluster.close)
            until(lambda: topics.is_closing)
            cluster.close()
            interceptor.clear()
            interceptor.release()
            closing.result(PATIENCE_S)
        assert last.result(0) == 1
    with open_cluster(tmp_path) as cluster:
        assert [value for batch in cluster.topic("t", **PLAIN).read() for value in batch.values()] == [b"a", b"b"]
