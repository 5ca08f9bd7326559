"""Errors of clients of partitions."""

from __future__ import annotations

from pyreplog.errors.base import OutcomeUnknownError, ReplogError


class PartitionError(ReplogError):
    """A request for a partition was refused.

    Attributes:
        partition: name of the topic and number of the partition, as in `flights-3`.
        error_code: name of the broker's error code, as in `NOT_LEADER_OR_FOLLOWER`; "": the client refused it.
        reason: the error in words.
    """

    def __init__(self, partition: str, error_code: str, reason: str) -> None:
        self.partition, self.error_code, self.reason = partition, error_code, reason
        super().__init__(f"partition {partition}: {reason}")

    def __reduce__(self) -> tuple[type[PartitionError], tuple[str, str, str]]:
        return type(self), (self.partition, self.error_code, self.reason)


class NoSuchPartitionError(PartitionError, LookupError):
    """There is no such topic, or it has fewer partitions. Nothing was done."""


class PartitionUnavailableError(PartitionError):
    """The call timed out before a leader was reached, or the leader had too few in-sync replicas. Nothing was done."""

    retriable = True


class PartitionTimeoutError(PartitionError, OutcomeUnknownError):
    """The append timed out after it had been sent: it may be in the log, now or later, once, or never."""


class ProducerFencedError(PartitionError):
    """Another producer with this id has a higher epoch. Nothing was appended; make another producer."""


class AppendRefusedError(PartitionError):
    """The broker refused the records, and nothing was appended.

    They are too large, invalid, or their time is out of the topic's bounds; or the topic does not offer the durability
    that was asked for.
    """


class PartitionStorageError(PartitionError):
    """The leader's log failed. Nothing was appended, or read."""

    retriable = True
