"""Our side of the topics' rows: a topic of a cluster of three bookies in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.entries import BATCH
from benchmarks.ledgers import SPARES, settings
from benchmarks.plan import Plan
from pyreplog.cluster import Cluster
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.runtime import EmbeddedRuntime
from pyreplog.topic.owner.topic import Topic

COLLECT_MS = 250
COLLECT_S = 60.0
COPIES = 3


@contextmanager
def cluster(plan: Plan) -> Iterator[Cluster]:
    """Three bookies, in a folder that goes with them."""
    of_each = settings(plan, "appended") | {"collect_interval_ms": COLLECT_MS if plan.budget >= 1 else 1}
    with plan.folder() as folder, Cluster.embedded(folder, bookies=COPIES, **of_each) as made:
        yield made


def topic_of(owner: Cluster, **more: Any) -> Topic:
    """A topic of E=3 Qw=3 Qa=2, appended, of which nothing is trimmed."""
    return owner.topic(
        "bench", ensemble=COPIES, write_quorum=COPIES, ack_quorum=2, durability="appended",
        retention_bytes=None, retention_ms=None, **more,
    )  # fmt: skip


@contextmanager
def topic(plan: Plan, **more: Any) -> Iterator[Topic]:
    """The same, in a cluster of its own."""
    with cluster(plan) as owner, topic_of(owner, **more) as made:
        yield made


def fill(topic: Topic, values: list[bytes], count: int) -> None:
    """Publish `count` messages, in whole batches; value n is number n % len(values)."""
    group = values * (BATCH // len(values))
    for _ in range(count // BATCH - 1):
        topic.submit_batch(group)
    topic.publish_batch(group)


def verify_topic(topic: Topic, values: list[bytes], start: int, count: int) -> str:
    """Read messages back, and compare; says how many."""
    at = start
    for batch in topic.read(start):
        check_values(batch.packed()[1].tobytes(), values, at - start, len(batch))
        at = batch.end
    if at - start != count:
        raise ValueError(f"{at - start} of {count} messages were read back")
    return f"{count:,} messages"


def check_values(found: bytes, values: list[bytes], first: int, count: int) -> None:
    """ValueError, unless these are `count` values end to end, from number `first` on."""
    if found != b"".join([values[n % len(values)] for n in range(first, first + count)]):
        raise ValueError(f"messages from number {first} on are not what was published")


def collect(runtime: Runtime) -> None:
    """Wait until every bookie keeps nothing but the segment it writes, and has the next ones ready."""
    assert isinstance(runtime, EmbeddedRuntime)
    deadline = time.monotonic() + COLLECT_S
    for bookie in runtime.bookies.values():
        log = bookie.log.log
        while len(log.segments()) > 1 or log._log.stats().ready_segments < SPARES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{log}: its garbage was not collected for {COLLECT_S} s")
            time.sleep(0.002)
