"""OffsetsLog: the coordinator's interface to the partitions of `__consumer_offsets`, and its implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pyreplog.errors import ClosedError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import PartitionProduceResponse
from pyreplog.partition.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"


class OffsetsLog(Protocol):
    """The replicas of `__consumer_offsets` on this broker. Any thread may call any method."""

    def append(
        self, partition: int, batch: bytes, epoch: int, verification: int | None
    ) -> AppendFuture[PartitionProduceResponse]:
        """Append a record batch with acks=-1.

        Args:
            partition: number of the partition.
            batch: the record batch.
            epoch: leader epoch in which this broker must lead.
            verification: verification token of the batch's transaction; None: none.

        Returns:
            A future of the outcome, which is NONE when the records are committed.
        """
        ...

    def committed_range(self, partition: int, epoch: int) -> tuple[int, int, int] | None:
        """Return the log start, high watermark and log end as offsets.

        The result is None if this broker does not lead in this epoch, or does not know these offsets yet.
        """
        ...

    def read(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over the record batches between two offsets, with the offset of the first record of each batch.

        Raises:
            ReplogError: errors of the log.
        """
        ...

    def delete_records(self, partition: int, before: int) -> None:
        """Delete records before an offset, as far as possible."""
        ...

    def begin_verification(self, partition: int, producer_id: int) -> int | None:
        """Begin the verification of a transaction, before asking its coordinator.

        Returns:
            A token for `append`; None: no verification is necessary.
        """
        ...


class ReplicaManagerOffsetsLog:
    """The partitions of `__consumer_offsets`, in a replica manager.

    Args:
        replicas: the replica manager.
        append_timeout_ms: milliseconds for which an append waits for the replicas.
    """

    def __init__(self, replicas: ReplicaManager, append_timeout_ms: int) -> None:
        self._replicas, self._append_timeout_ms = replicas, append_timeout_ms

    def append(
        self, partition: int, batch: bytes, epoch: int, verification: int | None
    ) -> AppendFuture[PartitionProduceResponse]:
        """See `OffsetsLog`."""
        name = TopicPartition(OFFSETS_TOPIC, partition)
        outcome = AppendFuture[PartitionProduceResponse]()
        appended = self._replicas.append_records(
            ACKS_ALL, {name: batch}, timeout_ms=self._append_timeout_ms, origin=AppendOrigin.COORDINATOR,
            internal_topics_allowed=True, leader_epoch=epoch,
            verifications=None if verification is None else {name: verification},
        )  # fmt: skip
        appended.add_done_callback(lambda done: set_result(outcome, done.result()[name]))
        return outcome

    def committed_range(self, partition: int, epoch: int) -> tuple[int, int, int] | None:
        """See `OffsetsLog`."""
        replica = self._replica(partition)
        return None if replica is None else replica.committed_range(epoch)

    def read(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """See `OffsetsLog`."""
        replica = self._replica(partition)
        if replica is None:
            raise ClosedError(f"{OFFSETS_TOPIC}-{partition}: this broker has no such replica")
        return replica.committed_batches(start, end)

    def delete_records(self, partition: int, before: int) -> None:
        """See `OffsetsLog`."""
        replica = self._replica(partition)
        if replica is not None:
            replica.trim(before)

    def begin_verification(self, partition: int, producer_id: int) -> int | None:
        """See `OffsetsLog`."""
        replica = self._replica(partition)
        return -1 if replica is None else replica.begin_verification(producer_id)

    def _replica(self, partition: int) -> Partition | None:
        return self._replicas.partition(TopicPartition(OFFSETS_TOPIC, partition))
