"""Who appends to a partition, and which checks its records have to pass (Kafka's AppendOrigin)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class AppendOrigin(Enum):
    """Who appends to a partition."""

    __hash__ = object.__hash__  # that of Enum is Python code

    CLIENT = "client"
    """A producer."""
    COORDINATOR = "coordinator"
    """A coordinator of groups or transactions, in its own broker: it may write control batches."""
    REPLICATION = "replication"
    """A follower, with what its leader's log holds: `PartitionLog.append_fetched`. Its leader has made the checks; a
    follower that refused what is in that log would never be in sync again."""


class OriginChecks(NamedTuple):
    """The checks of one origin. CRC, length and format of each batch are verified for all.

    Attributes:
        assigns_offsets: this log gives the offsets, and stamps the leader epoch; otherwise the records must follow on
            its end.
        shape: the base offset is 0, the offsets are as many as the records, and the records are no control batch.
        single_batch: there is one batch.
        timestamps: the batch lies within the topic's window of time.
        size: the batch is not larger than `max_message_bytes`.
        sequences: a batch that the log holds is a duplicate, and none is missing in front of it.
        producer_epochs: a producer with a lower epoch than before is refused.
        coordinator_epochs: a marker of a coordinator with a lower epoch than before is refused.
        transactions: a transaction has to be open, or be confirmed by its coordinator.
        transaction_version: of the transaction that a marker ends; None: as the topic says.
        leader_epoch: number of the leader epoch in which alone the batch may be appended; None: in any.
    """

    assigns_offsets: bool
    shape: bool
    single_batch: bool
    timestamps: bool
    size: bool
    sequences: bool
    producer_epochs: bool
    coordinator_epochs: bool
    transactions: bool
    transaction_version: int | None = None
    leader_epoch: int | None = None


CHECKS = {
    AppendOrigin.CLIENT: OriginChecks(
        assigns_offsets=True, shape=True, single_batch=True, timestamps=True, size=True, sequences=True,
        producer_epochs=True, coordinator_epochs=True, transactions=True,
    ),
    AppendOrigin.COORDINATOR: OriginChecks(
        assigns_offsets=True, shape=False, single_batch=True, timestamps=True, size=True, sequences=False,
        producer_epochs=True, coordinator_epochs=True, transactions=True,
    ),
    AppendOrigin.REPLICATION: OriginChecks(
        assigns_offsets=False, shape=False, single_batch=False, timestamps=False, size=False, sequences=False,
        producer_epochs=False, coordinator_epochs=False, transactions=False,
    ),
}  # fmt: skip
"""The checks of each origin."""
