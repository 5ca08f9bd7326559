"""A cluster in a process of its own, whose consumer acknowledges out of order until the process is killed, or hands the
subscription over."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.entries import BATCH
from benchmarks.rows.geo.pair import publish_all, wait
from pyreplog.cluster import Cluster
from pyreplog.topic.server.topic_server import TopicServer

TOPIC, SUBSCRIPTION = "orders", "audit"
BURSTS = 50
_SIZE = 100


def value_of(number: int) -> bytes:
    """The message of a number."""
    return number.to_bytes(8, "little") * (_SIZE // 8)


def number_of(value: bytes) -> int:
    """The number of a message."""
    return int.from_bytes(value[:8], "little")


def replicate_to(cluster: Cluster, name: str, url: str) -> None:
    """Replicate the topic and its subscriptions to another cluster."""
    cluster.geo.add_cluster(name, url)
    cluster.geo.set_policy(TOPIC, targets=[name], replicated_subscriptions=True)


def order_of(messages: int, acks: int, seed: int) -> list[int]:
    """The numbers that are acknowledged, in their order; never the last one."""
    return random.Random(seed).sample(range(messages - 1), acks)


def run(folder: str, messages: int, acks: int, seed: int, report: Callable[[Any], None]) -> None:
    """Publish, receive, and acknowledge in bursts; say each burst before it begins, and what the other one knows after.
    Then hand the subscription over, when it is told to.

    Args:
        folder: of the cluster.
        messages: that are published.
        acks: messages that are acknowledged.
        seed: of their order.
        report: writes a line to the process that kills this one.
    """
    with Cluster.embedded(Path(folder), bookies=1) as cluster, TopicServer(cluster) as server:
        report(f"pyreplog://{server.address}")
        replicate_to(cluster, "there", sys.stdin.readline().strip())
        topic = cluster.topic(TOPIC, ensemble=1, retention_bytes=None, retention_ms=None)
        with topic.subscribe(SUBSCRIPTION, start="earliest", type="shared", queue=messages) as consumer:
            for start in range(0, messages, BATCH):
                publish_all(topic, [value_of(at) for at in range(start, min(start + BATCH, messages))], 1)
            received: dict[int, int] = {}  # offsets by number
            while len(received) < messages:
                batch = consumer.receive_batch(60.0)
                assert batch is not None
                received.update(zip(map(number_of, batch.values()), batch.offset.tolist(), strict=True))

            def unknown() -> int | None:
                """Acknowledgements that the other cluster does not know; None: it has not said."""
                rows = cluster.geo.readiness(TOPIC)
                return rows[0].repeated if rows and rows[0].is_known and not rows[0].error else None

            def is_ready() -> bool:
                rows = cluster.geo.readiness(TOPIC)
                return bool(rows) and rows[0].is_ready and not rows[0].error

            wait(is_ready)
            report("ready")
            sys.stdin.readline()
            order = order_of(messages, acks, seed)
            for burst in range(BURSTS):
                end = acks * (burst + 1) // BURSTS
                report({"acknowledged": end})
                for number in order[acks * burst // BURSTS : end]:
                    consumer.acknowledge([received[number]])
                if burst == BURSTS // 2:
                    consumer.flush()
                    wait(is_ready)
                if (left := unknown()) is not None:
                    report({"known": max(end - left, 0)})
            if sys.stdin.readline():
                begin = time.perf_counter()
                cluster.geo.handover(TOPIC, SUBSCRIPTION, "there", grace=0.0)
                report({"handed_over_s": time.perf_counter() - begin})
            sys.stdin.readline()
