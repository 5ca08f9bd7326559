"""The offsets of one group: committed offsets, and those of open transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pyreplog.kafka.groups.group_records import OffsetCommitValue
from pyreplog.partition.topic_partition import TopicPartition


class CommittedOffset(NamedTuple):
    """A committed offset, and the offset `at` of its record: of two records the one with the higher `at` applies."""

    value: OffsetCommitValue
    at: int


class GroupOffsets:
    """The offsets of one group.

    For partitions in flight, a record is being appended, and may or may not be committed.
    """

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: Counter[TopicPartition] = Counter()
        self._transactional_in_flight: Counter[TopicPartition] = Counter()
        self._pending: dict[int, dict[TopicPartition, CommittedOffset]] = {}  # of open transactions, by producer id

    @property
    def is_empty(self) -> bool:
        """Whether no offset is committed, pending or in flight."""
        return not (self.committed or self._pending or +self._in_flight)

    def producers(self) -> Iterator[int]:
        """Iterate over the producer ids of open transactions."""
        return iter(self._pending)

    def is_in_flight(self, partition: TopicPartition) -> bool:
        """Return whether a commit or a deletion for the partition is being appended."""
        return self._in_flight[partition] > 0

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Return whether an open transaction has an offset for the partition (KIP-447)."""
        if self._transactional_in_flight[partition] > 0:
            return True
        return any(partition in offsets for offsets in self._pending.values())

    # ---- in flight ------------------------------------------------------------------------------------------

    def begin(self, partitions: Iterable[TopicPartition], *, transactional: bool = False) -> None:
        """Note the start of an append of records for partitions."""
        for partition in partitions:
            self._in_flight[partition] += 1
            self._transactional_in_flight[partition] += transactional

    def end(self, partitions: Iterable[TopicPartition], *, transactional: bool = False) -> None:
        """Note the end of an append; its outcome is applied separately."""
        for partition in partitions:
            for counter, step in ((self._in_flight, 1), (self._transactional_in_flight, int(transactional))):
                counter[partition] -= step
                if counter[partition] <= 0:
                    del counter[partition]

    # ---- committed records ----------------------------------------------------------------------------------

    def apply(self, partition: TopicPartition, value: OffsetCommitValue, at: int) -> None:
        """Apply a committed record."""
        before = self.committed.get(partition)
        if before is None or before.at <= at:
            self.committed[partition] = CommittedOffset(value, at)

    def apply_pending(self, producer_id: int, partition: TopicPartition, value: OffsetCommitValue, at: int) -> None:
        """Apply a committed record of an open transaction."""
        self._pending.setdefault(producer_id, {})[partition] = CommittedOffset(value, at)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker of a transaction."""
        pending = self._pending.pop(producer_id, {})
        if committed:
            for partition, (value, at) in pending.items():
                self.apply(partition, value, at)

    def apply_deletion(self, partition: TopicPartition, at: int) -> None:
        """Apply a tombstone. It deletes offsets of open transactions for the partition as well."""
        before = self.committed.get(partition)
        if before is not None and before.at <= at:
            del self.committed[partition]
        for producer_id, pending in list(self._pending.items()):
            if partition in pending and pending[partition].at <= at:
                del pending[partition]
                if not pending:
                    del self._pending[producer_id]

    def all_partitions(self) -> set[TopicPartition]:
        """Return the partitions with a committed or pending offset."""
        return {*self.committed, *(partition for pending in self._pending.values() for partition in pending)}

    def recorded_partitions(self) -> set[TopicPartition]:
        """Return the partitions with an offset in the log, or with one that may still get there: it is in flight."""
        return self.all_partitions() | set(+self._in_flight)

    # ---- expiry and rewriting -------------------------------------------------------------------------------

    def expired(
        self, now_ms: int, retention_ms: int, empty_since_ms: int | None, subscribed: Collection[str] = ()
    ) -> list[TopicPartition]:
        """Return the partitions whose offsets have expired (KIP-211).

        Args:
            now_ms: current time, ms since 1970.
            retention_ms: time for which offsets are kept, milliseconds.
            empty_since_ms: when the group became empty, ms since 1970; None: the time of each commit decides.
            subscribed: topics whose offsets do not expire.
        """
        return [
            partition
            for partition, (value, _) in self.committed.items()
            if partition.topic not in subscribed
            and not self.is_in_flight(partition)
            and not self.is_unstable(partition)
            and _is_expired(value, now_ms, retention_ms, empty_since_ms)
        ]

    def stale(self, before: int) -> tuple[list[TopicPartition], bool]:
        """Return the partitions whose offsets are before a position of the log and may be appended again.

        The second value tells whether there are others, which cannot be appended again now: because a record is in
        flight, or a transaction may still be open.
        """
        stale = [partition for partition, (_, at) in self.committed.items() if at < before]
        free = [name for name in stale if not self.is_in_flight(name) and not self.is_unstable(name)]
        is_open = any(at < before for pending in self._pending.values() for _, at in pending.values())
        return free, is_open or len(free) < len(stale)


def _is_expired(value: OffsetCommitValue, now_ms: int, retention_ms: int, empty_since_ms: int | None) -> bool:
    if value.expire_timestamp >= 0:
        return now_ms >= value.expire_timestamp
    since = value.commit_timestamp if empty_since_ms is None else max(empty_since_ms, value.commit_timestamp)
    return now_ms - since >= retention_ms
