"""How markers of transactions reach the leaders of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from pyreplog.errors import PeerError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.partition.delayed_produce import ProduceResponses
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.record_batch import end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.topic_partition import TopicPartition


class MarkersToWrite(NamedTuple):
    """A marker, and where it is written.

    Attributes:
        marker: the marker.
        partitions: that get it.
        transaction_version: 2: it has a higher epoch than the batches that it ends; 1: it need not.
    """

    marker: TransactionMarker
    partitions: Sequence[TopicPartition]
    transaction_version: int


MarkerCodes: TypeAlias = list[Mapping[TopicPartition, ErrorCode]]
"""For each marker the codes of its partitions. NONE: it is committed."""


@runtime_checkable
class MarkerTransport(Protocol):
    """Sends markers to other brokers. Any thread may use it; it does not block."""

    def write_markers(self, broker: str, markers: Sequence[MarkersToWrite]) -> AppendFuture[MarkerCodes]:
        """Let a broker write markers to partitions that it leads.

        A future that fails says that the broker writes none of these markers later: close the connection before it
        fails. Otherwise a late marker of version 1 would end the next transaction of its producer.
        """
        ...


class NoTransport:
    """A transport that reaches no other broker."""

    def write_markers(self, broker: str, markers: Sequence[MarkersToWrite]) -> AppendFuture[MarkerCodes]:
        """Fail; see `MarkerTransport`."""
        future = AppendFuture[MarkerCodes]()
        set_exception(future, PeerError(f"broker {broker}: no markers can be sent to other brokers"))
        return future


def write_markers(
    replicas: ReplicaManager, markers: Sequence[MarkersToWrite], now_ms: int, timeout_ms: int = 5_000
) -> AppendFuture[MarkerCodes]:  # fmt: skip
    """Write markers to partitions that this broker leads, as it is asked to by a transaction coordinator.

    Args:
        replicas: the partitions of this broker.
        markers: the markers.
        now_ms: their time, milliseconds since 1970-01-01 UTC.
        timeout_ms: how long they may wait to be committed, milliseconds.

    Returns:
        A future of their codes. Any code but NONE means: not known to be committed.
    """
    future = AppendFuture[MarkerCodes]()
    codes: MarkerCodes = [{} for _ in markers]
    left, lock = {*range(len(markers))}, Lock()

    def done(at: int, responses: AppendFuture[ProduceResponses]) -> None:
        answered = {name: response.code for name, response in responses.result().items()}
        with lock:
            codes[at] = answered
            left.discard(at)
            is_last = not left
        if is_last:
            set_result(future, codes)

    for at, (marker, partitions, version) in enumerate(markers):
        batch = end_marker(marker, now_ms)
        appended = replicas.append_records(
            ACKS_ALL, dict.fromkeys(partitions, batch), timeout_ms=timeout_ms, origin=AppendOrigin.COORDINATOR,
            internal_topics_allowed=True, transaction_version=version,
        )  # fmt: skip
        appended.add_done_callback(partial(done, at))
    if not markers:
        set_result(future, codes)
    return future
