"""Many replicated topics of which few are used: what the idle ones take, and what each of the others gets."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.entries import BATCH, make_values
from benchmarks.plan import Plan
from benchmarks.proc import anonymous_bytes
from benchmarks.result import Comparison, Figure, Goal, Section, Table
from benchmarks.rows.geo.pair import AHEAD, WAIT_S, Pair, pair
from benchmarks.topics import verify_topic
from pyreplog.future import AppendFuture
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.topic.owner.topic import Topic

_TOPICS_FULL, _TOPICS, _TOPICS_TINY = 10_000, 500, 8
_ACTIVE = 0.01
_LEAST_ACTIVE = 2
_MESSAGES = 1 << 21
_PATIENCE_S = 1200.0
_WINDOWS = 5
_SLACK_BYTES = 1 << 20
_SLACK_THREADS = 12
"""Of the keeper, of replicators that begin (four), and of connections, however many topics there are."""
_IDLE_CPU, _FAIR = 0.005, 0.5
_IDLE, _BUSY = "idle-", "busy-"


class _Held(NamedTuple):
    """By this process. cpu: share of a core, while nothing happens."""

    size: int
    threads: int
    cpu: float


def topics(plan: Plan) -> Section:
    """Idle topics are replicated; then a backlog of the others is, at once."""
    count = _TOPICS_FULL if plan.full else _TOPICS if plan.budget >= 5 else _TOPICS_TINY
    active = max(_LEAST_ACTIVE, int(count * _ACTIVE))
    section = Section(
        "geo-topics", f"{count:,} replicated topics, {active} of them active, both clusters in one process"
    )
    with pair(plan) as clusters:
        bare = _held(0.0)
        begin = time.perf_counter()
        idle = _opened(clusters, _IDLE, count - active)
        opened_s = time.perf_counter() - begin
        before = _held(plan.budget)
        clusters.here.geo.add_cluster("there", f"pyreplog://{clusters.address}")
        begin = time.perf_counter()
        clusters.here.geo.set_policy(_IDLE, prefix=True, targets=["there"])
        _until(lambda: _stored(clusters, _IDLE) == [1] * len(idle))
        replicated_s = time.perf_counter() - begin
        after = _held(plan.budget)
        if after.threads > before.threads + _SLACK_THREADS:
            raise ValueError(f"{before.threads} threads, and {after.threads} when {len(idle)} topics are replicated")
        busy = _share(plan, clusters, active)
        if not all(clusters.target(topic.name).end == 1 for topic in idle):
            raise ValueError("an idle topic has other messages at the target than here")
        begin = time.perf_counter()
        clusters.here.close(None)
        closed_s = time.perf_counter() - begin
    held = max(after.size - before.size - _SLACK_BYTES, 0) / len(idle)
    section.comparisons += [
        Comparison(
            "memory of an idle replication",
            Figure("anonymous memory", held, "B", "synced"),
            Figure("both topics", (before.size - bare.size) / len(idle), "B", "synced"),
            Goal("at most", 1.0),
            f"{len(idle):,} topics with 1 message each",
        ),
        Comparison(
            "CPU while nothing happens, of one core",
            Figure("more than without replication", max(after.cpu - before.cpu, 0.0), "share", "synced"),
            Figure("not replicated", before.cpu, "share", "synced"),
            Goal("at most", _IDLE_CPU, absolute=True),
            f"{len(idle):,} topics with 1 message each",
        ),
        Comparison(
            "threads of both clusters, while nothing happens",
            Figure("replicated", after.threads, "count", "synced"),
            Figure("not replicated", before.threads, "count", "synced"),
            Goal("at most", before.threads + _SLACK_THREADS, absolute=True),
            f"{len(idle):,} topics with 1 message each",
        ),
        Comparison(
            f"messages of {active} active topics, while all are published into",
            Figure("topic with the fewest", min(busy.rates), "/s", "synced", 100),
            Figure("topic with the most", max(busy.rates), "/s", "synced", 100),
            Goal("at least", _FAIR),
            busy.verified,
        ),
    ]
    section.tables.append(
        Table(
            "Idle and active topics",
            [
                "idle", "opened in", "replicated in", "source closed in", "threads before", "threads", "active",
                "unsent by then",
            ],
            [
                [
                    f"{len(idle):,}", f"{opened_s:.1f} s", f"{replicated_s:.1f} s", f"{closed_s:.1f} s",
                    f"{before.threads}", f"{after.threads}", f"{active}", f"{busy.unsent:.0%}",
                ]
            ],
        )
    )  # fmt: skip
    section.notes.append(
        "All topics are open here and there, and have one message. One policy names all idle ones by their prefix, and "
        "another one all active ones, into which batches are published in turn as fast as they are taken. CPU is the "
        "lowest of several seconds: cursors are stored some time after the messages."
    )
    return section


def _opened(clusters: Pair, prefix: str, count: int) -> list[Topic]:
    """Open topics here and there."""
    made = [clusters.topic(f"{prefix}{number}") for number in range(count)]
    for topic in made:
        clusters.target(topic.name)
        topic.publish(b"first")
    return made


class _Busy(NamedTuple):
    """What active topics got. rates: messages per second of each while all were published into; unsent: share of what
    was published then that the target lacked at the end of that; verified: what was read back."""

    rates: list[float]
    unsent: float
    verified: str


def _share(plan: Plan, clusters: Pair, active: int) -> _Busy:
    """Publish batches into each active topic in turn, as fast as they are taken; count when the last one is taken."""
    values = make_values(100)
    group = values * (BATCH // len(values))
    batches = max(plan.scaled(_MESSAGES, 16 * BATCH) // BATCH // active, 8)
    busy = _opened(clusters, _BUSY, active)
    clusters.here.geo.set_policy(_BUSY, prefix=True, targets=["there"])
    _until(lambda: _stored(clusters, _BUSY) == [1] * active)
    sent: deque[AppendFuture[Any]] = deque()
    begin = time.perf_counter()
    for _ in range(batches):
        for topic in busy:
            sent.append(topic.submit_batch(group))
            if len(sent) > AHEAD:
                sent.popleft().result(WAIT_S)
    stored, seconds = _stored(clusters, _BUSY), time.perf_counter() - begin
    for future in sent:
        future.result(WAIT_S)
    total = active * batches * BATCH
    _until(lambda: sum(_stored(clusters, _BUSY)) == total + active)
    for topic in busy:
        verify_topic(clusters.target(topic.name), values, 1, batches * BATCH)
    rates = [(count - 1) / seconds for count in stored]
    return _Busy(rates, 1.0 - (sum(stored) - active) / total, f"{total:,} messages at the target")


def _stored(clusters: Pair, prefix: str) -> list[int]:
    """What the target has of each replicated topic."""
    rows: list[ReplicatorStatus] = clusters.here.geo.status()
    return [row.stored or 0 for row in rows if row.topic.startswith(prefix)]


def _held(budget_s: float) -> _Held:
    gc.collect()
    shares = [_busy_share(min(budget_s / 5, 1.0)) for _ in range(_WINDOWS)]
    return _Held(anonymous_bytes([os.getpid()]), threading.active_count(), min(shares))


def _busy_share(seconds: float) -> float:
    """Share of a core that this process used in a while."""
    begin, cpu_s = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu_s) / (time.perf_counter() - begin)


def _until(condition: Callable[[], bool], pause_s: float = 0.05) -> None:
    """Wait for a condition. Looking at it takes at most a tenth of the time, also if it looks at 10,000 topics."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        begin = time.monotonic()
        if condition():
            return
        if begin > deadline:
            raise TimeoutError(f"not all topics were replicated in {_PATIENCE_S} s")
        time.sleep(max(pause_s, 9 * (time.monotonic() - begin)))
