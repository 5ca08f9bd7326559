"""The origin of an append to a partition, and the checks that its records have to pass (Kafka's AppendOrigin)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class AppendOrigin(Enum):
    """The origin of an append."""

    __hash__ = object.__hash__  # hash in C: `Enum.__hash__` is Python code

    CLIENT = "client"
    """A producer."""
    COORDINATOR = "coordinator"
    """A coordinator of groups or transactions, in its broker's process: it may write control batches."""
    REPLICATION = "replication"
    """A follower, with records of its leader's log: `PartitionLog.append_fetched`. The leader has checked them; a
    follower that refused records of that log would never be in sync again."""


class OriginChecks(NamedTuple):
    """The checks of one origin. CRC, length and format of each batch are verified for all.

    Attributes:
        assigns_offsets: this log assigns the offsets and stamps the leader epoch; otherwise the records must begin at
            its end.
        shape: the base offset is 0, the number of offsets is that of the records, and the batch is not a control batch.
        single_batch: there is one batch.
        timestamps: the batch lies within the topic's window of time.
        size: the batch is not larger than `max_message_bytes`.
        sequences: sequence numbers are checked, for duplicates and for missing batches.
        producer_epochs: a batch of a producer with a lower epoch than before is refused.
        coordinator_epochs: a marker of a coordinator with a lower epoch than before is refused.
        transactions: the transaction of a batch has to be open, or its coordinator has to confirm that it is.
        transaction_version: version of the transaction that a marker ends; None: that of the topic's settings.
        leader_epoch: number of the only leader epoch in which the batch may be appended; None: any epoch.
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
