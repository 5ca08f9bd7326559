"""Metrics of a node for Prometheus; docs/operations.md explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyreplog.errors import ClosedError, NotMasterError
from pyreplog.ha.client_requests import ClientStats
from pyreplog.ha.node_context import start_of
from pyreplog.ha.protocol.replica_progress import ReplicaStats
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.metrics import Labels, Metric

if TYPE_CHECKING:
    from pyreplog.ha.node import Node

_PREFIX = "pyreplog_ha_"

_OF_REPLICAS: tuple[tuple[str, str, Callable[[ReplicaStats], float]], ...] = (
    (
        "replica_connected",
        "1 if the replica is connected, and the master streams to it.",
        lambda each: each.state == "streaming",
    ),
    ("replica_in_sync", "1 if the replica has caught up, so that appends wait for it.", lambda each: each.in_sync),
    ("replica_lag_bytes", "Bytes of the log that the replica has not acknowledged.", lambda each: each.lag_bytes),
    ("replica_lag_seconds", "Time since the replica had all of the master's log.", lambda each: each.lag_us / 1e6),
    (
        "replica_received_position",
        "Position up to which the replica has received the log.",
        lambda each: each.received.position,
    ),
    (
        "replica_synced_position",
        "Position up to which the replica has synced the log to its disk.",
        lambda each: each.synced.position,
    ),
)


def node_metrics(node: Node) -> Iterator[Metric]:
    """Yield the metrics of one node in any role. Positions are bytes since the log began, the same on all nodes."""
    labels = {"node": node.name}
    received, synced = node.log_ends()
    try:
        log = node.log
    except (NotMasterError, ClosedError):  # the replica has no log yet, or the node is closed
        log = None
    yield _gauge("master", "1 if the node is the master.", labels, node.role == "master")
    yield _gauge("term", "Highest term that the node leads, follows or has promised.", labels, node.term.number)
    yield _gauge(
        "start_position",
        "Position at which the log of the node begins.",
        labels,
        0 if log is None else start_of(log).position,
    )
    yield _gauge("received_position", "Position at which the log of the node ends.", labels, received.position)
    yield _gauge(
        "synced_position", "Position up to which the log of the node is synced to its disk.", labels, synced.position
    )
    yield _gauge(
        "committed_position",
        "Position of the commit point, as far as the node knows it.",
        labels,
        node.committed.position,
    )
    yield _gauge(
        "unreplicated", "1 if readers may see entries that too few replicas have.", labels,
        log is not None and log.unreplicated,
    )  # fmt: skip
    yield _gauge("streaming", "1 if the node is a replica, and its master streams to it.", labels, node.is_streaming)
    yield from _clients(labels, node.clients.stats)
    try:
        stats = node.replication()
    except NotMasterError:  # also if the role has just changed
        return
    yield from _group(labels, stats)


def _clients(labels: Labels, stats: ClientStats) -> Iterator[Metric]:
    yield _counter("client_appends", "Batches of clients that were acknowledged.", labels, stats.appends)
    yield _counter("client_entries", "Entries of clients that were acknowledged.", labels, stats.entries)
    yield _counter(
        "client_bytes",
        "Bytes of the records of clients that were acknowledged, as they were sent.",
        labels,
        stats.bytes,
    )
    yield _counter("client_refused", "Batches of clients that were not acknowledged.", labels, stats.refused)
    yield _counter("client_reads", "Reads of clients that were answered with entries.", labels, stats.reads)
    yield _counter(
        "client_read_bytes", "Bytes of the records in answers to reads of clients.", labels, stats.read_bytes
    )


def _group(labels: Labels, stats: GroupStats) -> Iterator[Metric]:
    yield _gauge(
        "asynchronous", "1 if the master is in fall-back: appends wait for no replica.", labels, stats.asynchronous
    )
    yield _counter(
        "fallbacks", "Times that the master fell back, and went on without replicas.", labels, stats.fallbacks
    )
    yield _counter(
        "alone_commits",
        "Times that the commit point moved while the master was in fall-back.",
        labels,
        stats.alone_commits,
    )
    yield _counter("refused_joins", "Joins of replicas that the master refused.", labels, stats.refused)
    yield _counter("reports", "Reports that replicas have sent.", labels, stats.reports)
    for name, text, value in _OF_REPLICAS:
        samples = [({**labels, "replica": each.name}, float(value(each))) for each in stats.replicas]
        yield Metric(_PREFIX + name, "gauge", text, [*samples])


def _gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [(labels, float(value))])


def _counter(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [(labels, float(value))])
