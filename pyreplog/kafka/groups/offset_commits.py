"""What groups of all protocols do with their offsets, behind the checks of each: commit, fetch, delete, expire them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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

_EXPIRED_AT_ONCE = 5_000  # tombstones of one batch

Effects = list[GroupEffect]


class StoreOffsets(NamedTuple):
    """Offsets are being appended."""

    request: Any
    offsets: Mapping[TopicPartition, OffsetCommitValue]
    results: OffsetCommitResult
    producer_id: int | None


class DeleteOffsets(NamedTuple):
    """Tombstones of offsets are being appended."""

    request: Any
    partitions: Collection[TopicPartition]
    results: OffsetCommitResult


class OffsetCommits:
    """Appends the offsets of one group, and applies them when they are committed. Who may commit, its group says.

    Not for several threads at once.

    Args:
        group_id: of the group.
        offsets: of the group.
        config: settings.
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
        """Append offsets, of somebody who may commit them.

        Args:
            request: completed with an `OffsetCommitResult`.
            commit: the offsets.
            now: the time.
            producer: id and epoch of the transaction that they belong to.
            verification: of the transaction.
        """
        results: OffsetCommitResult = {}
        offsets: dict[TopicPartition, OffsetCommitValue] = {}
        for partition, (offset, leader_epoch, metadata) in commit.offsets.items():
            if len(metadata.encode()) > self._config.offset_metadata_max_bytes:
                results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                results[partition] = ErrorCode.NONE
                offsets[partition] = OffsetCommitValue(offset, leader_epoch, metadata, now.wall_ms)
        if not offsets:
            return [Respond(request, results)]
        token = StoreOffsets(request, offsets, results, None if producer is None else producer[0])
        self._offsets.begin(offsets, transactional=producer is not None)
        return [AppendRecords(token, self.records(offsets), producer, verification)]

    def fetch(self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool) -> OffsetFetchResult:
        """Return committed offsets.

        Args:
            partitions: None: all that have one.
            require_stable: refuse those for which an open transaction has an offset.
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
        """Append tombstones.

        Args:
            request: completed with an `OffsetCommitResult`.
            results: whether the offset of a partition may be deleted.
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
        """Append tombstones of offsets that have expired; of some of them, if there are many."""
        return self._delete(DeleteOffsets(None, expired[:_EXPIRED_AT_ONCE], {}))

    def _delete(self, token: DeleteOffsets) -> Effects:
        self._offsets.begin(token.partitions)
        records: list[GroupRecord] = [
            (encode_offset_key(self._group_id, *partition), None) for partition in token.partitions
        ]
        return [AppendRecords(token, records)]

    def rewrite(self, before: int, records_max: int) -> tuple[Effects, bool]:
        """Append offsets again that lie before an offset of the internal partition.

        Args:
            before: the offset.
            records_max: how many at once.

        Returns:
            Effects, and whether anything is left before that offset, or is on its way.
        """
        free, is_left = self._offsets.stale(before)
        if not free:
            return [], is_left
        offsets = {partition: self._offsets.committed[partition].value for partition in free[:records_max]}
        self._offsets.begin(offsets)
        return [AppendRecords(StoreOffsets(None, offsets, {}, None), self.records(offsets))], True

    # ---- outcomes of appends --------------------------------------------------------------------------------

    def appended(self, token: StoreOffsets | DeleteOffsets, at: int) -> Effects:
        """Apply records that are committed, the first one at offset `at`."""
        if isinstance(token, StoreOffsets):
            self._offsets.end(token.offsets, transactional=token.producer_id is not None)
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
        """Note that records were not appended. `tell` completes the request."""
        if isinstance(token, StoreOffsets):
            self._offsets.end(token.offsets, transactional=token.producer_id is not None)
        else:
            self._offsets.end(token.partitions)

    def tell(self, token: StoreOffsets | DeleteOffsets, code: ErrorCode) -> Effects:
        """Complete the request of records that were not appended, or of which nobody knows."""
        if token.request is None:
            return []
        known = token.results.items()
        return [Respond(token.request, {name: code if known is ErrorCode.NONE else known for name, known in known})]
