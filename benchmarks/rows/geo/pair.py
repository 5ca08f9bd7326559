"""Two clusters, and replication from the first one, in this process, to the second one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.plan import Plan
from benchmarks.proc import job
from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer

WAIT_S = 60.0
_WINDOW_BYTES = 16 << 20
AHEAD = 64
"""Batches that are published before the first one is confirmed."""


class Pair:
    """Two clusters of one bookie, and a server of the second one. Everything is synced.

    Args:
        here: the first cluster.
        there: the second cluster; None: it is in another process.
        address: of the server of the second cluster.
        stack: ends the connections to it.
    """

    def __init__(self, here: Cluster, there: Cluster | None, address: str, stack: ExitStack) -> None:
        self.here, self.address, self._stack = here, address, stack
        self.client: Client = stack.enter_context(connect(f"pyreplog://{address}"))
        self.link = self.link_to(address)
        self._there: Cluster | Client = self.client if there is None else there

    def link_to(self, address: str) -> TargetLink:
        """A way to the second cluster by another address."""
        link = TargetLink(connect(f"pyreplog://{address}"))
        self._stack.callback(link.close)
        return link

    def topic(self, name: str) -> Topic:
        return self.here.topic(name, ensemble=1, retention_bytes=None, retention_ms=None)

    def target(self, name: str) -> Topic | RemoteTopic:
        return self._there.topic(name, ensemble=1, retention_bytes=None, retention_ms=None)

    def replicate(self, topic: Topic, link: TargetLink | None = None, **settings: Any) -> Replicator:
        """Begin to replicate; the session is open. settings: of the policy."""
        policy = ReplicationPolicy(**{"targets": ("there",), "window_bytes": _WINDOW_BYTES, **settings})
        replicator = Replicator(topic, "there", link or self.link, policy)
        replicator.start()
        wait(lambda: replicator.status().state == "running")
        return replicator


@contextmanager
def pair(plan: Plan) -> Iterator[Pair]:
    """Both clusters are in this process."""
    with ExitStack() as stack:
        here, there = (
            stack.enter_context(Cluster.embedded(stack.enter_context(plan.folder()), bookies=1)) for _ in range(2)
        )
        for cluster in (there, here):
            stack.callback(cluster.close, None)  # thousands of topics take longer than an ordinary close waits
        yield Pair(here, there, stack.enter_context(TopicServer(there)).address, stack)


@contextmanager
def pair_of_processes(plan: Plan) -> Iterator[Pair]:
    """The second cluster is in a process of its own."""
    with plan.folder() as near, plan.folder() as far, ExitStack() as stack:
        server = stack.enter_context(job("topic_server", str(far)))
        here = stack.enter_context(Cluster.embedded(near, bookies=1))
        yield Pair(here, None, server.answer(), stack)


def publish_all(topic: Topic, group: list[bytes], batches: int) -> None:
    """Publish a batch so many times, and wait until all is confirmed."""
    sent: deque[AppendFuture[Any]] = deque()
    for _ in range(batches):
        if len(sent) >= AHEAD:
            sent.popleft().result(WAIT_S)
        sent.append(topic.submit_batch(group))
    for future in sent:
        future.result(WAIT_S)


def wait(condition: Callable[[], object]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came for {WAIT_S} s")
        time.sleep(0.001)
