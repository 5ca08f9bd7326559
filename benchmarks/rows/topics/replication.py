"""Replicating a topic to another cluster, beside a program that consumes here and publishes there."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from benchmarks.topics import verify_topic
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer

_MESSAGES = 1 << 18
_HOPS = 1024
_WAIT_S = 60.0
_AHEAD = 64
"""Batches that the program publishes before the first one is confirmed."""


class Pair:
    """Two clusters of one bookie, in this process, and a server of the second one. Everything is synced."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self.here = stack.enter_context(Cluster.embedded(stack.enter_context(plan.folder()), bookies=1))
        self.there = stack.enter_context(Cluster.embedded(stack.enter_context(plan.folder()), bookies=1))
        server = stack.enter_context(TopicServer(self.there))
        self.url = f"pyreplog://{server.address}"
        self.client: Client = stack.enter_context(connect(self.url))
        self.link = TargetLink(connect(self.url))
        stack.callback(self.link.close)

    def topic(self, name: str) -> Topic:
        return self.here.topic(name, ensemble=1, retention_bytes=None, retention_ms=None)

    def target(self, name: str) -> Topic:
        return self.there.topic(name, ensemble=1, retention_bytes=None, retention_ms=None)

    def replicate(self, topic: Topic) -> Replicator:
        return Replicator(topic, "there", self.link, ReplicationPolicy(targets=("there",), window_bytes=16 << 20))


@contextmanager
def pair(plan: Plan) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(plan, stack)


def replication(plan: Plan) -> Section:
    """A backlog, until the other cluster has all of it."""
    section = Section("geo-replication", f"A backlog of batches of {BATCH} to another cluster over TCP, synced")
    for size in (100, 1024):
        count = plan.scaled(_MESSAGES * 100 // size, 4 * BATCH) // BATCH * BATCH
        values = make_values(size)
        with pair(plan.shared(2)) as clusters:
            turns = _Turns(clusters, values, count)
            rates = interleave(plan.shared(2), {"ours": turns.ours, "program": turns.program})
            section.comparisons.append(
                Comparison(
                    SIZES[size],
                    Figure("Replicator", rates["ours"], "/s", "synced", size),
                    Figure("receive_batch, submit_batch of columns", rates["program"], "/s", "synced", size),
                    Goal("at least", 1.0),
                    f"{turns.verified:,} messages at the target",
                )
            )
    section.notes.append(
        "The program is a consumer here and a client there, with up to 64 batches on their way, that acknowledges what "
        "is confirmed. Sessions and topics are open before the time begins. The program keeps neither identities nor "
        "publish times, and repeats messages after a crash."
    )
    return section


class _Turns:
    """Each turn has topics of its own."""

    def __init__(self, clusters: Pair, values: list[bytes], count: int) -> None:
        self._clusters, self._values, self._count = clusters, values, count
        self._names = 0
        self.verified = 0

    def _begin(self) -> Topic:
        """Create topics here and there, without messages."""
        self._names += 1
        topic = self._clusters.topic(f"t{self._names}")
        self._clusters.target(topic.name)
        return topic

    def _fill(self, topic: Topic) -> None:
        group = self._values * (BATCH // len(self._values))
        futures = [topic.submit_batch(group) for _ in range(self._count // BATCH)]
        for future in futures:
            future.result(_WAIT_S)

    def _end(self, topic: Topic, seconds: float) -> float:
        """Compare what the target has; return messages per second."""
        target = self._clusters.target(topic.name)
        verify_topic(target, self._values, 0, self._count)
        self.verified += self._count
        target.close()
        topic.close()
        return self._count / seconds

    def ours(self) -> float:
        topic = self._begin()
        replicator = self._clusters.replicate(topic)
        replicator.start()
        wait(lambda: replicator.status().state == "running")
        replicator.pause()
        self._fill(topic)
        replicator.resume()
        wait(lambda: replicator.status().state == "running")  # the session is stored at the target
        begin = time.perf_counter()
        wait(lambda: (replicator.status().stored or 0) >= self._count)
        seconds = time.perf_counter() - begin
        replicator.close()
        return self._end(topic, seconds)

    def program(self) -> float:
        topic = self._begin()
        target = self._clusters.client.topic(topic.name, create=False)
        topic.create_subscription("program", start="earliest")
        self._fill(topic)
        sent: deque[tuple[MessageBatch, AppendFuture[Any]]] = deque()
        seen = 0
        begin = time.perf_counter()
        with topic.subscribe("program") as consumer:
            while seen < self._count or sent:
                while sent and (len(sent) >= _AHEAD or seen == self._count):
                    batch, future = sent.popleft()
                    future.result(_WAIT_S)
                    consumer.acknowledge(batch)
                if seen < self._count:
                    received = consumer.receive_batch(_WAIT_S)
                    assert received is not None
                    seen += len(received)
                    sent.append((received, target.submit_batch(received.packed())))
            seconds = time.perf_counter() - begin
        target.close()
        return self._end(topic, seconds)


def hop(plan: Plan) -> Section:
    """One message outstanding: published here, received there."""
    section = Section("geo-hop", "Publish here, receive in the other cluster over TCP, synced, one message outstanding")
    count = plan.scaled(_HOPS)
    with pair(plan) as clusters:
        local, far = clusters.topic("local"), clusters.topic("far")
        replicator = clusters.replicate(far)
        replicator.start()
        wait(lambda: replicator.status().state == "running")
        target = clusters.target("far")
        with local.subscribe("bench") as here, target.subscribe("bench") as there:
            times = interleave(
                plan,
                {
                    "hop": lambda: _median(count, far, lambda: there.receive(timeout=_WAIT_S)),
                    "local": lambda: _median(count, local, lambda: here.receive(timeout=_WAIT_S)),
                },
            )
        wait(lambda: (replicator.status().stored or 0) >= far.end)
        checked = verify_topic(target, [bytes(100)], 0, far.end)
        replicator.close()
    section.comparisons.append(
        Comparison(
            "100 B, median",
            Figure("publish here, receive there", times["hop"], "s", "synced"),
            Figure("publish, receive in one cluster", times["local"], "s", "synced"),
            None,
            checked,
        )
    )
    return section


def _median(count: int, topic: Topic, receive: Callable[[], object]) -> float:
    """Median seconds from before the call that publishes to when the other thread has the message."""
    taken: list[float] = []
    free = threading.Semaphore(0)

    def take_all() -> None:
        for _ in range(count):
            assert receive() is not None
            taken.append(time.perf_counter())
            free.release()

    taker = threading.Thread(target=take_all)
    taker.start()
    given = []
    for _ in range(count):
        given.append(time.perf_counter())
        topic.publish(bytes(100))
        free.acquire(timeout=_WAIT_S)
    taker.join()
    return median(end - begin for begin, end in zip(given, taken, strict=True))


def wait(condition: Callable[[], object]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came for {_WAIT_S} s")
        time.sleep(0.001)
