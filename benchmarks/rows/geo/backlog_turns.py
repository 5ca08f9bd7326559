"""A backlog that is replicated, by a replicator or by a program: turns of both."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from benchmarks.entries import BATCH
from benchmarks.rows.geo.pair import AHEAD, WAIT_S, Pair, publish_all, wait
from benchmarks.topics import verify_topic
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.future import AppendFuture
from pyreplog.topic.owner.topic import Topic


class BacklogTurns:
    """Each turn has topics of its own.

    Args:
        clusters: where.
        values: the messages are these in turn.
        count: messages of a turn.
    """

    def __init__(self, clusters: Pair, values: list[bytes], count: int) -> None:
        self._clusters, self._values, self._count = clusters, values, count
        self._names = 0
        self.verified = 0
        self.cpu_s: list[float] = []
        """CPU seconds of each of our turns: of this process, which is both clusters."""

    def _begin(self) -> Topic:
        """Create topics here and there, without messages."""
        self._names += 1
        topic = self._clusters.topic(f"t{self._names}")
        self._clusters.target(topic.name)
        return topic

    def _fill(self, topic: Topic) -> None:
        publish_all(topic, self._values * (BATCH // len(self._values)), self._count // BATCH)

    def _end(self, topic: Topic, seconds: float) -> float:
        """Compare what the target has; return messages per second."""
        target = self._clusters.target(topic.name)
        verify_topic(target, self._values, 0, self._count)
        self.verified += self._count
        target.close()
        topic.close()
        return self._count / seconds

    def ours(self) -> float:
        """Messages per second of a replicator."""
        topic = self._begin()
        replicator = self._clusters.replicate(topic)
        replicator.pause()
        self._fill(topic)
        replicator.resume()
        wait(lambda: replicator.status().state == "running")  # the session is stored at the target
        begin, cpu_s = time.perf_counter(), time.process_time()
        wait(lambda: (replicator.status().stored or 0) >= self._count)
        seconds = time.perf_counter() - begin
        self.cpu_s.append(time.process_time() - cpu_s)
        replicator.close()
        return self._end(topic, seconds)

    def program(self) -> float:
        """Messages per second of a program."""
        topic = self._begin()
        target = self._clusters.client.topic(topic.name, create=False)
        topic.create_subscription("program", start="earliest")
        self._fill(topic)
        sent: deque[tuple[MessageBatch, AppendFuture[Any]]] = deque()
        seen = 0
        begin = time.perf_counter()
        with topic.subscribe("program") as consumer:
            while seen < self._count or sent:
                while sent and (len(sent) >= AHEAD or seen == self._count):
                    batch, future = sent.popleft()
                    future.result(WAIT_S)
                    consumer.acknowledge(batch)
                if seen < self._count:
                    received = consumer.receive_batch(WAIT_S)
                    assert received is not None
                    seen += len(received)
                    sent.append((received, target.submit_batch(received.packed())))
            seconds = time.perf_counter() - begin
        target.close()
        return self._end(topic, seconds)
