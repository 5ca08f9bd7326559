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
    ("replica_connected", "1: the replica is connected, and streams.", lambda each: each.state == "streaming"),
    ("replica_in_sync", "1: caught up, so that appends wait for it.", lambda each: each.in_sync),
    ("replica_lag_bytes", "Bytes of the log that the replica has not reported.", lambda each: each.lag_bytes),
    ("replica_lag_seconds", "Since the replica was last level with the master.", lambda each: each.lag_us / 1e6),
    ("replica_received_position", "End of what the replica has.", lambda each: each.received.position),
    ("replica_synced_position", "End of what the replica has on disk.", lambda each: each.synced.position),
)


def node_metrics(node: Node) -> Iterator[Metric]:
    """Yield the metrics of one node in any role. Positions are bytes since the log began, the same on all nodes."""
    labels = {"node": node.name}
    received, synced = node.log_ends()
    try:
        log = node.log
    except (NotMasterError, ClosedError):  # the replica has no log yet, or the node is closed
        log = None
    yield _gauge("master", "1: it is master.", labels, node.role == "master")
    yield _gauge("term", "The highest term that it leads or follows, or has promised to.", labels, node.term.number)
    yield _gauge("start_position", "Where its log begins.", labels, 0 if log is None else start_of(log).position)
    yield _gauge("received_position", "Where its log ends.", labels, received.position)
    yield _gauge("synced_position", "End of what it has on disk.", labels, synced.position)
    yield _gauge("committed_position", "The commit point, as far as it knows.", labels, node.committed.position)
    yield _gauge(
        "unreplicated", "1: readers may see what enough replicas do not have.", labels,
        log is not None and log.unreplicated,
    )  # fmt: skip
    yield _gauge("streaming", "1: it is a replica, and its master streams.", labels, node.is_streaming)
    yield from _clients(labels, node.clients.stats)
    try:
        stats = node.replication()
    except NotMasterError:  # also if the role has just changed
        return
    yield from _group(labels, stats)


def _clients(labels: Labels, stats: ClientStats) -> Iterator[Metric]:
    yield _counter("client_appends", "Batches of clients that were acknowledged.", labels, stats.appends)
    yield _counter("client_entries", "Entries in them.", labels, stats.entries)
    yield _counter("client_bytes", "Bytes of their records, as they came.", labels, stats.bytes)
    yield _counter("client_refused", "Batches of clients that were not acknowledged.", labels, stats.refused)
    yield _counter("client_reads", "Answers to clients with entries.", labels, stats.reads)
    yield _counter("client_read_bytes", "Bytes of records in them.", labels, stats.read_bytes)


def _group(labels: Labels, stats: GroupStats) -> Iterator[Metric]:
    yield _gauge("asynchronous", "1: the master waits for no replicas, in fall-back.", labels, stats.asynchronous)
    yield _counter("fallbacks", "How often it went on alone.", labels, stats.fallbacks)
    yield _counter("alone_commits", "How often the commit point moved meanwhile.", labels, stats.alone_commits)
    yield _counter("refused_joins", "Replicas turned away.", labels, stats.refused)
    yield _counter("reports", "Reports of replicas.", labels, stats.reports)
    for name, text, value in _OF_REPLICAS:
        samples = [({**labels, "replica": each.name}, float(value(each))) for each in stats.replicas]
        yield Metric(_PREFIX + name, "gauge", text, [*samples])


def _gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [(labels, float(value))])


def _counter(name: str, text: str, labels: Labels, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [(labels, float(value))])
