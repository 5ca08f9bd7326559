"""What topics and subscriptions that nobody uses take."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.plan import Plan
from benchmarks.proc import anonymous_bytes
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.topics import cluster
from pyreplog.cluster import Cluster
from pyreplog.ledger.runtime import EmbeddedRuntime

_SUBSCRIPTIONS = 10
_TOPIC_BYTES, _SUBSCRIPTION_BYTES = 64 << 10, 16 << 10
_SLACK_BYTES = 1 << 20
"""What the allocator may come to hold, however many there are."""

_PATIENCE_S = 30.0
"""Threads that make and close segments have their files open meanwhile; by then they are done."""

_SLACK_DESCRIPTORS, _SLACK_TIMERS = 8, 3
"""The cluster's own, however many topics there are: logs that have grown, and housekeeping."""


class _Held(NamedTuple):
    """By this process. timers: that are set; those of one tick of the cluster's housekeeping count as one."""

    size: int
    threads: int
    descriptors: int
    timers: int


def memory(plan: Plan) -> Section:
    """Topics that are open, then ten durable subscriptions of each."""
    topics = 10_000 if plan.full else 500 if plan.budget >= 5 else 8
    section = Section("topics-memory", f"{topics:,} idle topics, {_SUBSCRIPTIONS} subscriptions each, embedded")
    with cluster(plan) as there:
        there.topic("first").create_subscription("first")
        before = _held(there)
        opened = [there.topic(f"topic-{number}") for number in range(topics)]
        with_topics = _held(there)
        for topic in opened:
            for number in range(_SUBSCRIPTIONS):
                topic.create_subscription(f"subscription-{number}")
        after = _settled(there, before)
        found = sum(len(topic.subscriptions()) for topic in opened)
        if found != topics * _SUBSCRIPTIONS:
            raise ValueError(f"{found} subscriptions are there")
    sides = (
        ("topic", with_topics.size - before.size, topics, _TOPIC_BYTES),
        ("subscription", after.size - with_topics.size, found, _SUBSCRIPTION_BYTES),
    )
    for what, size, count, limit in sides:
        section.comparisons.append(
            Comparison(
                f"memory of an idle {what}",
                Figure("anonymous memory", max(size - _SLACK_BYTES, 0) / count, "B", "appended"),
                Figure(f"{limit >> 10} KiB", limit, "B", "appended"),
                Goal("at most", 1.0),
                f"{count:,} are open; no thread, timer or descriptor more",
            )
        )
    return section


def _held(cluster: Cluster) -> _Held:
    gc.collect()
    runtime = cluster.runtime
    assert isinstance(runtime, EmbeddedRuntime)
    wheel = runtime.reactor._timers._wheel
    return _Held(
        anonymous_bytes([os.getpid()]), threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), len(wheel)
    )


def _settled(cluster: Cluster, before: _Held) -> _Held:
    """What is held for good. ValueError: idle ones have threads, descriptors or timers."""
    most = before.threads, before.descriptors + _SLACK_DESCRIPTORS, before.timers + _SLACK_TIMERS
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        after = _held(cluster)
        if all(now <= then for now, then in zip(after[1:], most, strict=True)):
            return after
        if time.monotonic() > deadline:
            raise ValueError(f"before {before}, with idle topics {after}")
        time.sleep(0.01)
