"""GroupCoordinator: serves the groups whose partitions of `__consumer_offsets` this broker leads."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from pyreplog.clock import Clock
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_result
from pyreplog.kafka.groups.classic_group import ClassicGroup
from pyreplog.kafka.groups.consumer_group import ConsumerGroup, check_heartbeat
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_effects import GroupEffect, Moment, Respond
from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchedOffset,
    GroupState,
    GroupType,
    JoinGroupRequest,
    JoinGroupResult,
    LeaveGroupResult,
    LeaveMemberResult,
    LeavingMember,
    ListedGroup,
    ListGroupsResult,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResult,
)
from pyreplog.kafka.groups.group_shard import Executor, GroupShard
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC, OffsetsLog
from pyreplog.kafka.groups.reconciliation import JOINING_EPOCH
from pyreplog.kafka.groups.topic_catalog import NoTopics, TopicCatalog
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

_NAME_MAX = 255  # maximum characters of a client id in a member id
_INT_MIN = -(1 << 31)

Effects = Iterable[GroupEffect]
T = TypeVar("T")


def new_member_id(client_id: str) -> str:
    """Return a unique member id, made of the client id and a UUID as in Kafka's coordinators."""
    return f"{client_id[:_NAME_MAX]}-{uuid.uuid4()}"


@lru_cache(maxsize=4096)
def partition_of_group(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` of a group, computed as in Kafka's clients and tools."""
    value = 0
    data = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    value -= (value >> 31) << 32
    return 0 if value == _INT_MIN else abs(value) % partitions


class GroupCoordinator:
    """The coordinator of this broker's groups, for Kafka's classic protocol and that of KIP-848.

    Each request returns a future. A request that waits is completed by the thread that causes its completion, or by
    `expire`. Any thread may call any method, also from a callback of a future. The coordinator has no thread: the
    caller has to call `expire` regularly, for example every 10 ms. Offset commits are acknowledged when the offsets are
    committed to the internal topic, and assignments are returned when their generation is.

    Args:
        log: the partitions of `__consumer_offsets`.
        clock: source of time.
        config: settings of the coordinator.
        new_member_id: returns a new, unique member id for a client id.
        executor: returns an executor for the events of one partition.
        is_expected: returns whether this broker is about to lead a partition. Then clients wait, as while the partition
            is loaded; otherwise they look for another coordinator.
        topics: topics of the cluster, whose partitions consumer groups assign.

    Example:
        ```python
        log = ReplicaManagerOffsetsLog(broker.replicas, config.append_timeout_ms)
        coordinator = GroupCoordinator(log, SystemClock(), config)
        coordinator.leadership_changed(TopicPartition("__consumer_offsets", 3), epoch)
        offsets = {TopicPartition("orders", 0): OffsetToCommit(17)}
        outcome = coordinator.commit_offsets("billing", OffsetCommitRequest("", -1, offsets)).result()
        ```
    """

    def __init__(
        self, log: OffsetsLog, clock: Clock, config: ConsumerGroupConfig | None = None, *,
        new_member_id: Callable[[str], str] = new_member_id, executor: Callable[[], Executor] = EventQueue,
        is_expected: Callable[[TopicPartition], bool] = lambda _: False, topics: TopicCatalog | None = None,
    ) -> None:  # fmt: skip
        self.config = ConsumerGroupConfig() if config is None else config
        self._log, self._clock = log, clock
        self._new_member_id, self._executor, self._is_expected = new_member_id, executor, is_expected
        self._topics = NoTopics() if topics is None else topics
        self._shards: dict[int, GroupShard] = {}
        self._changing = threading.Lock()

    # ---- leadership -----------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` whose leader coordinates a group (FindCoordinator)."""
        topic = self._topics.topic(OFFSETS_TOPIC)  # created by any broker, perhaps with another number of partitions
        return partition_of_group(group_id, self.config.offsets_partitions if topic is None else topic.partitions)

    def is_loading(self, group_id: str) -> bool:
        """Return whether requests of a group are refused with COORDINATOR_LOAD_IN_PROGRESS.

        Args:
            group_id: id of the group.
        """
        number = self.partition_of(group_id)
        shard = self._shards.get(number)
        return self._is_expected(TopicPartition(OFFSETS_TOPIC, number)) if shard is None else shard.is_loading

    def leadership_changed(self, partition: TopicPartition, epoch: int | None) -> None:
        """Note a change of this broker's leadership of a partition. Changes of one partition must come in order.

        Args:
            partition: a partition of any topic; topics other than `__consumer_offsets` are ignored.
            epoch: number of the leader epoch; None: this broker does not lead the partition.
        """
        if partition.topic != OFFSETS_TOPIC:
            return
        number = partition.partition
        with self._changing:
            shards = dict(self._shards)
            before = shards.pop(number, None)
            if before is not None and before.epoch == epoch:
                return
            if epoch is not None:
                shards[number] = GroupShard(
                    number, epoch, self._log, self._clock, self.config, self._new_member_id, self._executor(),
                    self._topics,
                )  # fmt: skip
            self._shards = shards
        if before is not None:
            before.stop()

    def expire(self) -> None:
        """Expire sessions, rebalances and offsets, and load partitions, in small steps."""
        for shard in list(self._shards.values()):
            shard.expire()

    def close(self) -> None:
        """Fail pending requests with NOT_COORDINATOR, and refuse further ones."""
        with self._changing:
            shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.stop()

    def _submit(
        self, group_id: str, failed: Callable[[ErrorCode], T],
        act: Callable[[GroupShard, AppendFuture[T], Moment], Effects], *, may_be_nameless: bool = False,
    ) -> AppendFuture[T]:  # fmt: skip
        if not group_id and not may_be_nameless:
            return _answered(failed(ErrorCode.INVALID_GROUP_ID))
        number = self.partition_of(group_id)
        shard = self._shards.get(number)
        if shard is None:
            is_expected = self._is_expected(TopicPartition(OFFSETS_TOPIC, number))
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_expected else ErrorCode.NOT_COORDINATOR
            return _answered(failed(code))
        return shard.submit(failed, lambda future, now: act(shard, future, now), group_id)

    # ---- members --------------------------------------------------------------------------------------------

    def join_group(self, group_id: str, join: JoinGroupRequest) -> AppendFuture[JoinGroupResult]:
        """Let a member join or rejoin a group (JoinGroup)."""

        def failed(code: ErrorCode) -> JoinGroupResult:
            return JoinGroupResult(code, member_id=join.member_id)

        def act(shard: GroupShard, future: AppendFuture[JoinGroupResult], now: Moment) -> Effects:
            if join.member_id and shard.group(group_id) is None:
                return [Respond(future, failed(ErrorCode.UNKNOWN_MEMBER_ID))]
            group = shard.create_group(group_id)
            if isinstance(group, ClassicGroup):
                return group.join(future, join, now)
            if not group.is_vacant:
                return [Respond(future, failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))]
            if group.is_recorded:  # the client retries after that
                return group.dissolve(future, failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), failed)
            return shard.make_classic_group(group_id).join(future, join, now)

        config = self.config
        if group_id and not config.min_session_timeout_ms <= join.session_timeout_ms <= config.max_session_timeout_ms:
            return _answered(failed(ErrorCode.INVALID_SESSION_TIMEOUT))
        return self._submit(group_id, failed, act)

    def sync_group(self, group_id: str, sync: SyncGroupRequest) -> AppendFuture[SyncGroupResult]:
        """Return a member's assignment; the leader sends the assignments of all members (SyncGroup)."""

        def act(shard: GroupShard, future: AppendFuture[SyncGroupResult], now: Moment) -> Effects:
            group = shard.group(group_id)
            if not isinstance(group, ClassicGroup):
                return [Respond(future, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))]
            return group.sync(future, sync, now)

        return self._submit(group_id, SyncGroupResult, act)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> AppendFuture[ErrorCode]:
        """Extend the session of a member (Heartbeat)."""

        def act(shard: GroupShard, future: AppendFuture[ErrorCode], now: Moment) -> Effects:
            group = shard.group(group_id)
            if not isinstance(group, ClassicGroup):
                return [Respond(future, ErrorCode.UNKNOWN_MEMBER_ID)]
            return group.heartbeat(future, member_id, instance_id, generation, now)

        return self._submit(group_id, ErrorCode, act)

    def leave_group(self, group_id: str, members: Collection[LeavingMember]) -> AppendFuture[LeaveGroupResult]:
        """Remove members from a group (LeaveGroup)."""

        def act(shard: GroupShard, future: AppendFuture[LeaveGroupResult], now: Moment) -> Effects:
            group = shard.group(group_id)
            if isinstance(group, ClassicGroup):
                return group.leave(future, members, now)
            results = tuple(LeaveMemberResult(*each, ErrorCode.UNKNOWN_MEMBER_ID) for each in members)
            return [Respond(future, LeaveGroupResult(ErrorCode.NONE, results))]

        return self._submit(group_id, LeaveGroupResult, act)

    # ---- members of consumer groups -------------------------------------------------------------------------

    def consumer_heartbeat(self, group_id: str, beat: ConsumerHeartbeat) -> AppendFuture[ConsumerHeartbeatResult]:
        """Let a member join, stay in, or leave a consumer group (ConsumerGroupHeartbeat)."""

        def act(shard: GroupShard, future: AppendFuture[ConsumerHeartbeatResult], now: Moment) -> Effects:
            group = shard.group(group_id)
            if isinstance(group, ConsumerGroup):
                return group.heartbeat(future, beat, now)
            if beat.member_epoch != JOINING_EPOCH or (group is not None and not group.is_vacant):
                text = f"there is no consumer group {group_id}" + ("" if group is None else ", but a classic one")
                return [Respond(future, ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text))]
            if group is not None and group.is_recorded:  # the client retries after that
                later = ConsumerHeartbeatResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return group.dissolve(future, later, ConsumerHeartbeatResult)
            return shard.make_consumer_group(group_id).heartbeat(future, beat, now)

        refused = check_heartbeat(beat, self.config)
        if refused is not None and group_id:
            return _answered(refused)
        return self._submit(group_id, ConsumerHeartbeatResult, act)

    def describe_consumer_group(self, group_id: str) -> AppendFuture[DescribedConsumerGroup]:
        """Return a consumer group and its members (ConsumerGroupDescribe)."""

        def failed(code: ErrorCode) -> DescribedConsumerGroup:
            return DescribedConsumerGroup(code, group_id)

        def act(shard: GroupShard, future: AppendFuture[DescribedConsumerGroup], _: Moment) -> Effects:
            group = shard.group(group_id)
            if isinstance(group, ConsumerGroup):
                return [Respond(future, group.describe_consumers())]
            text = f"there is no consumer group {group_id}" + ("" if group is None else ", but a classic one")
            return [Respond(future, failed(ErrorCode.GROUP_ID_NOT_FOUND)._replace(text=text))]

        return self._submit(group_id, failed, act)

    # ---- offsets --------------------------------------------------------------------------------------------

    def commit_offsets(self, group_id: str, commit: OffsetCommitRequest) -> AppendFuture[OffsetCommitResult]:
        """Commit offsets (OffsetCommit)."""
        return self._commit(group_id, commit, None, None)

    def begin_verification(self, group_id: str, producer_id: int) -> int | None:
        """Begin to verify that a transaction may commit offsets of a group, before asking its coordinator.

        Returns:
            A token for `commit_transactional_offsets`; None: no verification is necessary, because the partition of the
            group already has records of the transaction.
        """
        return self._log.begin_verification(self.partition_of(group_id), producer_id)

    def commit_transactional_offsets(
        self, group_id: str, commit: OffsetCommitRequest, producer_id: int, producer_epoch: int,
        verification: int | None = None,
    ) -> AppendFuture[OffsetCommitResult]:  # fmt: skip
        """Commit offsets as part of a transaction (TxnOffsetCommit): they apply when it commits.

        Args:
            group_id: name of the group.
            commit: the offsets to commit.
            producer_id: id of the transaction's producer.
            producer_epoch: epoch of the producer.
            verification: token of `begin_verification`, after the transaction coordinator has confirmed that the
                group's partition belongs to the transaction; None: no verification was necessary.
        """
        return self._commit(group_id, commit, (producer_id, producer_epoch), verification)

    def _commit(
        self, group_id: str, commit: OffsetCommitRequest, producer: tuple[int, int] | None, verification: int | None
    ) -> AppendFuture[OffsetCommitResult]:
        def failed(code: ErrorCode) -> OffsetCommitResult:
            return dict.fromkeys(commit.offsets, code)

        def act(shard: GroupShard, future: AppendFuture[OffsetCommitResult], now: Moment) -> Effects:
            if shard.group(group_id) is None and commit.generation >= 0:
                knows_code = commit.knows_member_epochs and producer is None
                code = ErrorCode.GROUP_ID_NOT_FOUND if knows_code else ErrorCode.ILLEGAL_GENERATION
                return [Respond(future, failed(code))]
            return shard.create_group(group_id).commit(future, commit, now, producer, verification)

        return self._submit(group_id, failed, act, may_be_nameless=producer is None)

    def handle_txn_completion(self, partition: TopicPartition, producer_id: int, *, committed: bool) -> None:
        """Note that a transaction marker was committed to a partition of `__consumer_offsets`.

        The call must come before the producer gets the response that its transaction has ended.
        """
        shard = self._shards.get(partition.partition) if partition.topic == OFFSETS_TOPIC else None
        if shard is not None:
            shard.transaction_ended(producer_id, committed=committed)

    def fetch_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None, *, require_stable: bool = False,
        member_id: str | None = None, member_epoch: int = -1,
    ) -> AppendFuture[OffsetFetchResult]:  # fmt: skip
        """Return committed offsets of a group (OffsetFetch).

        Args:
            group_id: name of the group.
            partitions: partitions to return; None: all with a committed offset.
            require_stable: whether partitions with an offset in an open transaction get UNSTABLE_OFFSET_COMMIT.
            member_id: member of a consumer group that asks; None: the client is no member.
            member_epoch: epoch of the member; another epoch than the current one gets STALE_MEMBER_EPOCH.
        """

        def failed(code: ErrorCode) -> OffsetFetchResult:
            return OffsetFetchResult(code, {name: FetchedOffset(code=code) for name in partitions or ()})

        def act(shard: GroupShard, future: AppendFuture[OffsetFetchResult], _: Moment) -> Effects:
            group = shard.group(group_id)
            if group is None:
                none = {name: FetchedOffset() for name in partitions or ()}
                return [Respond(future, OffsetFetchResult(ErrorCode.NONE, none))]
            fetched = group.fetch(
                partitions, require_stable=require_stable, member_id=member_id, member_epoch=member_epoch
            )
            return [Respond(future, fetched)]

        return self._submit(group_id, failed, act, may_be_nameless=True)

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> AppendFuture[OffsetCommitResult]:
        """Delete offsets of partitions to which no member of the group subscribes (OffsetDelete)."""

        def failed(code: ErrorCode) -> OffsetCommitResult:
            return dict.fromkeys(partitions, code)

        def act(shard: GroupShard, future: AppendFuture[OffsetCommitResult], _: Moment) -> Effects:
            group = shard.group(group_id)
            if group is None:
                return [Respond(future, failed(ErrorCode.GROUP_ID_NOT_FOUND))]
            return group.delete_offsets(future, partitions)

        return self._submit(group_id, failed, act)

    def topics_deleted(self, topics: Mapping[str, Collection[bytes]]) -> None:
        """Delete the committed offsets of topics that were deleted, in all groups of this broker.

        Without that, a new topic of the same name would be read from an offset of the old one.

        Args:
            topics: ids of the topics by name; NO_TOPIC_ID: also offsets without the id of a topic.
        """
        for shard in list(self._shards.values()):
            shard.topics_deleted(topics)

    # ---- groups ---------------------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> AppendFuture[ErrorCode]:
        """Delete an empty group and its offsets (DeleteGroups)."""

        def act(shard: GroupShard, future: AppendFuture[ErrorCode], _: Moment) -> Effects:
            group = shard.group(group_id)
            if group is None or group.is_forgettable:
                return [Respond(future, ErrorCode.GROUP_ID_NOT_FOUND)]
            return group.delete(future)

        return self._submit(group_id, ErrorCode, act, may_be_nameless=True)

    def describe_group(self, group_id: str) -> AppendFuture[DescribedGroup]:
        """Return a group and its members (DescribeGroups). A group that does not exist is Dead, without an error."""

        def failed(code: ErrorCode) -> DescribedGroup:
            return DescribedGroup(code, group_id)

        def act(shard: GroupShard, future: AppendFuture[DescribedGroup], _: Moment) -> Effects:
            group = shard.group(group_id)
            if isinstance(group, ConsumerGroup):
                return [Respond(future, failed(ErrorCode.GROUP_ID_NOT_FOUND))]
            described = failed(ErrorCode.NONE) if group is None else group.describe()
            return [Respond(future, described)]

        return self._submit(group_id, failed, act, may_be_nameless=True)

    def list_groups(
        self, states: Collection[GroupState] = (), types: Collection[GroupType] = ()
    ) -> AppendFuture[ListGroupsResult]:
        """Return the groups of this broker (ListGroups).

        Args:
            states: states of the groups to return; empty: all.
            types: types of the groups to return; empty: all.
        """

        def act(shard: GroupShard, future: AppendFuture[ListGroupsResult]) -> Effects:
            listed = [group.listed() for group in shard.groups()]
            chosen = tuple(
                group
                for group in listed
                if (not states or group.state in states) and (not types or group.group_type in types)
            )
            return [Respond(future, ListGroupsResult(ErrorCode.NONE, chosen))]

        def failed(code: ErrorCode) -> ListGroupsResult:
            return ListGroupsResult(code, ())

        shards = list(self._shards.values())
        parts = [shard.submit(failed, lambda future, _, shard=shard: act(shard, future)) for shard in shards]  # type: ignore[misc]
        whole = AppendFuture[ListGroupsResult]()
        waiting, lock = [len(parts)], threading.Lock()

        def one_is_done(_: AppendFuture[ListGroupsResult]) -> None:
            with lock:
                waiting[0] -= 1
                is_last = not waiting[0]
            if is_last:
                set_result(whole, _joined([part.result() for part in parts]))

        for part in parts:
            part.add_done_callback(one_is_done)
        if not parts:
            set_result(whole, failed(ErrorCode.NONE))
        return whole


def _answered(result: T) -> AppendFuture[T]:
    future = AppendFuture[T]()
    set_result(future, result)
    return future


def _joined(parts: Iterable[ListGroupsResult]) -> ListGroupsResult:
    code, groups = ErrorCode.NONE, list[ListedGroup]()
    for part in parts:
        groups += part.groups
        if part.code is not ErrorCode.NOT_COORDINATOR and part.code is not ErrorCode.NONE:
            code = part.code
    return ListGroupsResult(code, tuple(groups))
