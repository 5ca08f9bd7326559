"""The offsets of one group: committed offsets, and those of open transactions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
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
        self._ids_in_flight: dict[TopicPartition, Counter[bytes]] = {}  # topic ids of commits
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

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetCommitValue], *, transactional: bool = False) -> None:
        """Note the start of an append of offsets."""
        self.begin(offsets, transactional=transactional)
        for partition, value in offsets.items():
            self._ids_in_flight.setdefault(partition, Counter())[value.topic_id] += 1

    def end_commit(self, offsets: Mapping[TopicPartition, OffsetCommitValue], *, transactional: bool = False) -> None:
        """Note the end of an append of offsets; its outcome is applied separately."""
        self.end(offsets, transactional=transactional)
        for partition, value in offsets.items():
            ids = self._ids_in_flight[partition]
            ids[value.topic_id] -= 1
            self._ids_in_flight[partition] = +ids
            if not self._ids_in_flight[partition]:
                del self._ids_in_flight[partition]

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

    # ---- topics ---------------------------------------------------------------------------------------------

    def add_topics(self, topics: dict[str, set[bytes]]) -> None:
        """Add the topics, with all their ids, that have an offset in the log or in flight."""
        for partition, ids in self._topic_ids().items():
            topics.setdefault(partition.topic, set()).update(ids)

    def of_topics(self, topics: Mapping[str, Collection[bytes]]) -> list[TopicPartition]:
        """Return the partitions that have offsets in the log or in flight, all of them of one of these topics.

        A partition that has an offset of another topic as well is left out: that one follows, as a topic of the same
        name was created later.

        Args:
            topics: ids by name.
        """
        return sorted(
            partition
            for partition, ids in self._topic_ids().items()
            if partition.topic in topics and ids <= {*topics[partition.topic]}
        )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget offsets for which tombstones are being appended; those in flight follow when they are applied."""
        for partition in partitions:
            self.apply_deletion(partition, sys.maxsize)

    def _topic_ids(self) -> dict[TopicPartition, set[bytes]]:
        topic_ids: dict[TopicPartition, set[bytes]] = {}
        for offsets in (self.committed, *self._pending.values()):
            for partition, (value, _) in offsets.items():
                topic_ids.setdefault(partition, set()).add(value.topic_id)
        for partition, ids in self._ids_in_flight.items():
            topic_ids.setdefault(partition, set()).update(ids)
        return topic_ids

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
