"""OffsetCommits: commits, fetches, deletes and expires offsets of a group of any protocol, after the group's checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_effects import AppendRecords, GroupEffect, GroupRecord, Moment, Respond
from pyreplog.kafka.groups.group_offsets import GroupOffsets
from pyreplog.kafka.groups.group_records import OffsetCommitValue, encode_offset, encode_offset_key
from pyreplog.kafka.groups.group_requests import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetFetchResult,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

_TOMBSTONES_BYTES = 128 << 10  # approximate maximum of a batch of tombstones: the log refuses large ones
_RECORD_BYTES = 32  # most bytes of a tombstone beside its key

Effects = list[GroupEffect]


class StoreOffsets(NamedTuple):
    """Append of offsets in flight."""

    request: Any
    offsets: Mapping[TopicPartition, OffsetCommitValue]
    results: OffsetCommitResult
    producer_id: int | None


class DeleteOffsets(NamedTuple):
    """Append of tombstones of offsets in flight."""

    request: Any
    partitions: Collection[TopicPartition]
    results: OffsetCommitResult


class OffsetCommits:
    """Appends offsets of one group, and applies them when they are committed. The group checks who may commit.

    Not thread-safe.

    Args:
        group_id: name of the group.
        offsets: offsets of the group.
        config: settings of the coordinator.
    """

    def __init__(self, group_id: str, offsets: GroupOffsets, config: ConsumerGroupConfig) -> None:
        self._group_id, self._offsets, self._config = group_id, offsets, config

    def records(self, offsets: Mapping[TopicPartition, OffsetCommitValue]) -> list[GroupRecord]:
        """Return the records of offsets."""
        return [
            (encode_offset_key(self._group_id, *partition), encode_offset(value))
            for partition, value in offsets.items()
        ]

    def commit(
        self, request: Any, commit: OffsetCommitRequest, now: Moment, producer: tuple[int, int] | None,
        verification: int | None,
    ) -> Effects:  # fmt: skip
        """Append offsets of a client that may commit them.

        Args:
            request: gets an `OffsetCommitResult` as its response.
            commit: the offsets to commit.
            now: current time.
            producer: id and epoch of the producer, if the offsets belong to its transaction.
            verification: verification token of the transaction.
        """
        results: OffsetCommitResult = {}
        offsets: dict[TopicPartition, OffsetCommitValue] = {}
        for partition, (offset, leader_epoch, metadata, topic_id) in commit.offsets.items():
            if len(metadata.encode()) > self._config.offset_metadata_max_bytes:
                results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                results[partition] = ErrorCode.NONE
                offsets[partition] = OffsetCommitValue(offset, leader_epoch, metadata, now.wall_ms, topic_id=topic_id)
        if not offsets:
            return [Respond(request, results)]
        token = StoreOffsets(request, offsets, results, None if producer is None else producer[0])
        self._offsets.begin_commit(offsets, transactional=producer is not None)
        return [AppendRecords(token, self.records(offsets), producer, verification)]

    def fetch(self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool) -> OffsetFetchResult:
        """Return committed offsets.

        Args:
            partitions: partitions to return; None: all with a committed offset.
            require_stable: whether to refuse partitions with an offset in an open transaction.
        """
        names = list(self._offsets.committed) if partitions is None else partitions
        if partitions is None and require_stable:
            names = sorted(self._offsets.all_partitions())
        offsets = {}
        for partition in names:
            committed = self._offsets.committed.get(partition)
            if require_stable and self._offsets.is_unstable(partition):
                offsets[partition] = FetchedOffset(code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif committed is None:
                offsets[partition] = FetchedOffset()
            else:
                value = committed.value
                offsets[partition] = FetchedOffset(value.offset, value.leader_epoch, value.metadata)
        return OffsetFetchResult(ErrorCode.NONE, offsets)

    def delete(self, request: Any, results: OffsetCommitResult) -> Effects:
        """Append tombstones for offsets that may be deleted.

        Args:
            request: gets an `OffsetCommitResult` as its response.
            results: NONE for each partition whose offset may be deleted, otherwise an error code.
        """
        deleted = [
            partition
            for partition, code in results.items()
            if code is ErrorCode.NONE and partition in self._offsets.all_partitions()
        ]
        if not deleted:
            return [Respond(request, results)]
        return self._delete(DeleteOffsets(request, deleted, results))

    def expire(self, expired: list[TopicPartition]) -> Effects:
        """Append tombstones for expired offsets, as many as one batch has room for."""
        return self._delete(DeleteOffsets(None, expired[: self._deleted_at_once(expired)], {}))

    def delete_topics(self, topics: Mapping[str, Collection[bytes]]) -> Effects:
        """Delete all offsets of topics that were deleted, also those of open transactions, and append tombstones.

        Args:
            topics: ids of the topics by name; NO_TOPIC_ID: also offsets without the id of a topic.
        """
        partitions = self._offsets.of_topics(topics)
        self._offsets.forget(partitions)
        effects: Effects = []
        while partitions:
            count = self._deleted_at_once(partitions)
            effects += self._delete(DeleteOffsets(None, partitions[:count], {}))
            partitions = partitions[count:]
        return effects

    def _deleted_at_once(self, partitions: Sequence[TopicPartition]) -> int:
        """Return how many tombstones, of the first partitions, one batch has room for; at least one."""
        size = 0
        for number, partition in enumerate(partitions):
            size += len(encode_offset_key(self._group_id, *partition)) + _RECORD_BYTES
            if size > _TOMBSTONES_BYTES and number:
                return number
        return len(partitions)

    def _delete(self, token: DeleteOffsets) -> Effects:
        self._offsets.begin(token.partitions)
        records: list[GroupRecord] = [
            (encode_offset_key(self._group_id, *partition), None) for partition in token.partitions
        ]
        return [AppendRecords(token, records)]

    def rewrite(self, before: int, records_max: int) -> tuple[Effects, bool]:
        """Append offsets again that are before an offset of the internal partition.

        Args:
            before: the offset.
            records_max: maximum number of records per call.

        Returns:
            Effects, and whether offsets before that offset are left, or appends of them are in flight.
        """
        free, is_left = self._offsets.stale(before)
        if not free:
            return [], is_left
        offsets = {partition: self._offsets.committed[partition].value for partition in free[:records_max]}
        self._offsets.begin_commit(offsets)
        return [AppendRecords(StoreOffsets(None, offsets, {}, None), self.records(offsets))], True

    # ---- outcomes of appends --------------------------------------------------------------------------------

    def appended(self, token: StoreOffsets | DeleteOffsets, at: int) -> Effects:
        """Apply committed records, the first one at offset `at`."""
        if isinstance(token, StoreOffsets):
            self._offsets.end_commit(token.offsets, transactional=token.producer_id is not None)
            for number, (partition, value) in enumerate(token.offsets.items()):
                if token.producer_id is None:
                    self._offsets.apply(partition, value, at + number)
                else:
                    self._offsets.apply_pending(token.producer_id, partition, value, at + number)
        else:
            self._offsets.end(token.partitions)
            for number, partition in enumerate(token.partitions):
                self._offsets.apply_deletion(partition, at + number)
        return [] if token.request is None else [Respond(token.request, token.results)]

    def append_failed(self, token: StoreOffsets | DeleteOffsets) -> None:
        """Note that an append failed. `respond_with_error` returns the response to its request."""
        if isinstance(token, StoreOffsets):
            self._offsets.end_commit(token.offsets, transactional=token.producer_id is not None)
        else:
            self._offsets.end(token.partitions)

    def respond_with_error(self, token: StoreOffsets | DeleteOffsets, code: ErrorCode) -> Effects:
        """Return the error response for an append that failed, or whose outcome is unknown."""
        if token.request is None:
            return []
        known = token.results.items()
        return [Respond(token.request, {name: code if known is ErrorCode.NONE else known for name, known in known})]
