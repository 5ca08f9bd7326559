"""TransactionMetadata: the state of a transactional id in the coordinator's log: its producer and its newest
transaction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyreplog.partition.topic_partition import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = (1 << 15) - 1
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""A producer with this epoch gets another id instead of a higher epoch; the last epoch is reserved for fencing it."""


class TransactionState(IntEnum):
    """The state of a transactional id, with Kafka's numbers in the log."""

    EMPTY = 0
    """No transaction has begun since the producer was initialised."""
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The commit is decided, and markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """All markers are written."""
    COMPLETE_ABORT = 5
    DEAD = 6
    """The id expired. In the log this is a key without a value."""
    PREPARE_EPOCH_FENCE = 7
    """An older producer is being fenced and its transaction aborted. Never in the log."""

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of one transactional id.

    Attributes:
        producer_id: id of its producer.
        producer_epoch: epoch of its producer; lower ones are fenced. While a transaction ends, the epoch of its
            markers.
        timeout_ms: a transaction that takes longer is aborted, milliseconds.
        state: state of its newest transaction.
        partitions: partitions that have or may get records of the transaction.
        updated_ms: time of the last change, milliseconds since 1970-01-01 UTC.
        started_ms: when the transaction began; -1: no transaction is open.
        last_producer_epoch: epoch of the producer before it requested a higher one (KIP-360); -1: no such request.
        previous_producer_id: the producer's id before its epochs were exhausted; -1: none.
        next_producer_id: the producer's id after the transaction; -1: the same id.
        transaction_version: 2: each transaction ends with a higher epoch (KIP-890); 1: the epoch stays.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    started_ms: int = -1
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    transaction_version: int = 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch would be the last one."""
        return self.producer_epoch >= EPOCH_EXHAUSTED
