"""The coordinator of groups over real partitions: three brokers with replica managers, whose fetches a test delivers; and
an embedded broker that is killed."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.clock import SystemClock
from pyreplog.errors import MetadataUnavailableError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.error_codes import code_of_append, code_of_store
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator, new_member_id, partition_of_group
from pyreplog.kafka.groups.group_requests import (
    GroupState,
    LeavingMember,
    OffsetCommitRequest,
    OffsetToCommit,
    SyncGroupRequest,
)
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC, ReplicaManagerOffsetsLog
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker as PartitionBroker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.topic_metadata import create_topic, find_topic, state_key
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.topic_partition import TopicPartition
from tests.crash.process import in_background
from tests.kafka.consumer_group_driver import Topics
from tests.kafka.group_driver import BILLS, ORDERS, join_request
from tests.partition.managers import Cluster
from tests.simulation.groups.log import marker
from tests.waiting import PATIENCE_S, until

Code = ErrorCode
ORDERS_ID, OTHER_ID, BILLS_ID = (bytes([number]) * 16 for number in (1, 2, 3))
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)


class Brokers:
    """Three brokers with a coordinator each. Nothing is delivered unless a test says so."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.cluster = Cluster(path, topics=(OFFSETS,))
        values = {"offsets_partitions": 1, "initial_rebalance_delay_ms": 0, **settings}
        self.config = ConsumerGroupConfig(**values)
        self.topics = Topics(orders=4)
        self.coordinators = {name: self._coordinator(name) for name in self.cluster.brokers}
        self.leader = ""

    def _coordinator(self, name: str) -> GroupCoordinator:
        log = ReplicaManagerOffsetsLog(self.cluster.brokers[name].manager, self.config.append_timeout_ms)
        return GroupCoordinator(log, self.cluster.clock, self.config, topics=self.topics)

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.coordinators[self.leader]

    def elect(self, name: str, *, is_served: bool = True) -> None:
        """A broker leads the partition, all learn of it, and it loads the groups."""
        before = self.leader
        self.cluster.lead(name, OFFSETS)
        self.cluster.settle()
        self.leader = name
        epoch = self.cluster.states[OFFSETS][1].epoch.number
        if before and before != name:
            self.coordinators[before].leadership_changed(OFFSETS, None)
        self.coordinator.leadership_changed(OFFSETS, epoch)
        if is_served:
            self.settle()

    def settle(self, rounds: int = 12) -> None:
        self.cluster.settle(rounds)
        for coordinator in self.coordinators.values():
            coordinator.expire()

    def advance(self, ms: int) -> None:
        for _ in range(0, ms, 500):
            self.cluster.advance_ms(500)
            self.settle(2)

    def result(self, future: AppendFuture[Any]) -> Any:
        for _ in range(20):
            if future.done():
                break
            self.settle(2)
        return future.result(0)

    def commit(self, group: str, offset: int, **settings: Any) -> AppendFuture[Any]:
        committed = OffsetToCommit(offset, topic_id=settings.get("topic_id", NO_TOPIC_ID))
        request = OffsetCommitRequest("", -1, {settings.get("partition", ORDERS): committed})
        return self.coordinator.commit_offsets(group, request)

    def fetch(self, group: str, partition: TopicPartition = ORDERS, **settings: Any) -> Any:
        fetched = self.result(self.coordinator.fetch_offsets(group, [partition], **settings))
        entry = fetched.offsets[partition]
        return entry.code if entry.code else entry.offset

    def member(self, group: str, **settings: Any) -> str:
        """A group with one member, which has its assignment."""
        joined = self.result(self.coordinator.join_group(group, join_request(**settings)))
        assert joined.code is Code.NONE, joined
        sync = SyncGroupRequest(joined.member_id, joined.generation, assignments={joined.member_id: b"all"})
        assert self.result(self.coordinator.sync_group(group, sync)).assignment == b"all"
        return str(joined.member_id)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    brokers.elect("a")
    yield brokers
    brokers.cluster.close()


def test_a_group_lies_where_kafka_puts_it() -> None:
    """Java's String.hashCode, and Utils.abs."""
    hashes = {"": 0, "a": 97, "ab": 3105, "Aa": 2112, "BB": 2112, "hello": 99162322, "\U0001f600": 1772899}
    for name, value in hashes.items():
        assert partition_of_group(name, 1 << 30) == abs(value) % (1 << 30), name
    assert partition_of_group("polygenelubricants", 50) == 0, "its hash is the lowest number there is"
    assert new_member_id("c") != new_member_id("c")


def test_a_commit_is_answered_when_the_replicas_have_it(brokers: Brokers) -> None:
    future = brokers.commit("g", 7)
    assert not future.done()
    now = brokers.coordinator.fetch_offsets("g", [ORDERS]).result(0).offsets[ORDERS]
    assert now.offset == -1
    assert brokers.result(future) == {ORDERS: Code.NONE}
    assert brokers.fetch("g") == 7 and brokers.fetch("g", BILLS) == -1 and brokers.fetch("other") == -1


def test_offsets_and_members_are_there_after_a_failover(brokers: Brokers) -> None:
    member = brokers.member("g")
    request = OffsetCommitRequest(member, 1, {ORDERS: OffsetToCommit(42, 3, "text")})
    assert brokers.result(brokers.coordinator.commit_offsets("g", request)) == {ORDERS: Code.NONE}
    brokers.elect("b")
    assert brokers.fetch("g") == 42
    assert brokers.result(brokers.coordinator.heartbeat("g", member, 1)) is Code.NONE
    assert brokers.result(brokers.coordinator.heartbeat("g", member, 0)) is Code.ILLEGAL_GENERATION
    old = brokers.coordinators["a"]
    assert brokers.result(old.heartbeat("g", member, 1)) is Code.NOT_COORDINATOR
    described = brokers.result(brokers.coordinator.describe_group("g"))
    assert described.state is GroupState.STABLE and described.members[0].assignment == b"all"
    brokers.advance(11_000)
    assert brokers.result(brokers.coordinator.describe_group("g")).state is GroupState.EMPTY


def test_nothing_is_served_before_all_is_committed_and_loaded(brokers: Brokers) -> None:
    brokers.result(brokers.commit("g", 7))
    brokers.elect("b", is_served=False)
    brokers.cluster.brokers["c"].is_fetching = brokers.cluster.brokers["a"].is_fetching = False
    coordinator = brokers.coordinator
    code = Code.COORDINATOR_LOAD_IN_PROGRESS
    assert brokers.fetch("g") in (code, 7)
    brokers.elect("c", is_served=False)
    coordinator = brokers.coordinator
    member = LeavingMember("m")
    assert coordinator.join_group("g", join_request()).result(0).code is code
    assert coordinator.sync_group("g", SyncGroupRequest("m", 1)).result(0).code is code
    assert coordinator.heartbeat("g", "m", 1).result(0) is code
    assert coordinator.leave_group("g", [member]).result(0).code is code
    assert brokers.commit("g", 8).result(0) == {ORDERS: code}
    assert coordinator.fetch_offsets("g", [ORDERS]).result(0).offsets[ORDERS].code is code
    assert coordinator.delete_offsets("g", [ORDERS]).result(0) == {ORDERS: code}
    assert coordinator.delete_group("g").result(0) is code
    assert coordinator.describe_group("g").result(0).code is code
    assert coordinator.list_groups().result(0).code is code
    brokers.cluster.brokers["a"].is_fetching = True
    until(lambda: brokers.settle(2) or brokers.fetch("g") == 7)


def test_broker_that_does_not_lead_answers_not_coordinator(brokers: Brokers) -> None:
    other = brokers.coordinators["b"]
    code = Code.NOT_COORDINATOR
    assert other.join_group("g", join_request()).result(0).code is code
    assert other.commit_offsets("g", OffsetCommitRequest("", -1, {ORDERS: OffsetToCommit(1)})).result(0) == {
        ORDERS: code
    }
    assert other.fetch_offsets("g").result(0).code is code
    assert other.list_groups().result(0) == (Code.NONE, ())


def test_pending_requests_get_not_coordinator_when_leadership_is_lost(brokers: Brokers) -> None:
    first = brokers.result(brokers.coordinator.join_group("g", join_request()))
    waiting = brokers.coordinator.join_group("g", join_request())
    brokers.cluster.brokers["b"].is_fetching = brokers.cluster.brokers["c"].is_fetching = False
    commit = brokers.commit("other", 7)
    old = brokers.coordinator
    old.leadership_changed(OFFSETS, None)
    assert waiting.result(0).code is Code.NOT_COORDINATOR and commit.result(0) == {ORDERS: Code.NOT_COORDINATOR}
    assert old.heartbeat("g", first.member_id, 1).result(0) is Code.NOT_COORDINATOR


def test_an_outcome_that_is_unknown_is_not_guessed(brokers: Brokers) -> None:
    """The followers are gone for a while: the offset is neither told as committed nor forgotten."""
    brokers.result(brokers.commit("g", 7))
    for name in "bc":
        brokers.cluster.brokers[name].is_fetching = False
    commit = brokers.commit("g", 8)
    brokers.advance(6_000)
    assert commit.result(0) == {ORDERS: Code.REQUEST_TIMED_OUT} and brokers.fetch("g") == 7
    for name in "bc":
        brokers.cluster.brokers[name].is_fetching = True
    until(lambda: brokers.settle(2) or brokers.fetch("g") == 8)
    brokers.elect("b")
    assert brokers.fetch("g") == 8


def test_a_coordinator_of_an_old_epoch_appends_nothing(brokers: Brokers) -> None:
    """It was deposed, leads again, and has not heard of either: what it knows is old."""
    member = brokers.member("g")
    old = brokers.coordinator
    for name in ("b", "a"):
        brokers.cluster.lead(name, OFFSETS)
        brokers.cluster.settle()
    request = OffsetCommitRequest(member, 1, {ORDERS: OffsetToCommit(1)})
    assert brokers.result(old.commit_offsets("g", request)) == {ORDERS: Code.NOT_COORDINATOR}


def test_the_errors_that_a_coordinator_gives(brokers: Brokers) -> None:
    coordinator, result = brokers.coordinator, brokers.result
    member = LeavingMember("m")
    assert coordinator.join_group("", join_request()).result(0).code is Code.INVALID_GROUP_ID
    assert coordinator.sync_group("", SyncGroupRequest("m", 1)).result(0).code is Code.INVALID_GROUP_ID
    assert coordinator.heartbeat("", "m", 1).result(0) is Code.INVALID_GROUP_ID
    for ms in (1, 1 << 30):
        joined = coordinator.join_group("g", join_request(session_timeout_ms=ms)).result(0)
        assert joined.code is Code.INVALID_SESSION_TIMEOUT
    assert result(coordinator.join_group("g", join_request("m"))).code is Code.UNKNOWN_MEMBER_ID
    assert result(coordinator.sync_group("g", SyncGroupRequest("m", 1))).code is Code.UNKNOWN_MEMBER_ID
    assert result(coordinator.heartbeat("g", "m", 1)) is Code.UNKNOWN_MEMBER_ID
    left = result(coordinator.leave_group("g", [member]))
    assert left.code is Code.NONE and left.members[0].code is Code.UNKNOWN_MEMBER_ID
    request = OffsetCommitRequest("m", 1, {ORDERS: OffsetToCommit(1)})
    assert result(coordinator.commit_offsets("g", request)) == {ORDERS: Code.ILLEGAL_GENERATION}
    assert result(coordinator.delete_offsets("g", [ORDERS])) == {ORDERS: Code.GROUP_ID_NOT_FOUND}
    assert result(coordinator.delete_group("g")) is Code.GROUP_ID_NOT_FOUND
    assert result(coordinator.describe_group("g")).state is GroupState.DEAD
    refused = coordinator.commit_transactional_offsets("g", OffsetCommitRequest("", -1, request.offsets), 5, 0)
    assert result(refused) == {ORDERS: Code.INVALID_TXN_STATE}, "nobody has asked the transaction's coordinator"
    long = OffsetCommitRequest("", -1, {ORDERS: OffsetToCommit(1, -1, "x" * 5_000)})
    assert result(coordinator.commit_offsets("g", long)) == {ORDERS: Code.OFFSET_METADATA_TOO_LARGE}


def test_append_errors_become_codes_for_group_clients() -> None:
    """What clients do with a code: try again, look for the coordinator, or give up."""
    assert code_of_append(ErrorCode.NONE) is Code.NONE
    for code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        assert code_of_append(code) is Code.REQUEST_TIMED_OUT
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        assert code_of_append(code) is Code.NOT_COORDINATOR
    assert code_of_append(ErrorCode.NOT_ENOUGH_REPLICAS) is Code.COORDINATOR_NOT_AVAILABLE
    assert code_of_append(ErrorCode.MESSAGE_TOO_LARGE) is Code.INVALID_COMMIT_OFFSET_SIZE
    assert code_of_append(ErrorCode.INVALID_PRODUCER_EPOCH) is Code.INVALID_PRODUCER_EPOCH
    assert code_of_store(Code.REQUEST_TIMED_OUT) is Code.COORDINATOR_NOT_AVAILABLE
    assert code_of_store(Code.INVALID_COMMIT_OFFSET_SIZE) is Code.UNKNOWN_SERVER_ERROR


def test_commit_larger_than_a_batch_is_refused(brokers: Brokers) -> None:
    offsets = {TopicPartition("t" * 200, number): OffsetToCommit(1) for number in range(6_000)}
    results = brokers.result(brokers.coordinator.commit_offsets("g", OffsetCommitRequest("", -1, offsets)))
    assert len(results) == len(offsets)
    assert all(code == Code.INVALID_COMMIT_OFFSET_SIZE for code in results.values())
    assert brokers.result(brokers.commit("g", 1)) == {ORDERS: Code.NONE}


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("reloads", [True, False])
def test_offsets_of_a_transaction_count_when_it_is_committed(brokers: Brokers, committed: bool, reloads: bool) -> None:
    brokers.result(brokers.commit("g", 1))
    verification = brokers.coordinator.begin_verification("g", 9)
    request = OffsetCommitRequest("", -1, {ORDERS: OffsetToCommit(5)})
    commit = brokers.coordinator.commit_transactional_offsets("g", request, 9, 0, verification)
    assert brokers.result(commit) == {ORDERS: Code.NONE}
    if reloads:
        brokers.elect("b")
    assert brokers.fetch("g") == 1 and brokers.fetch("g", require_stable=True) is Code.UNSTABLE_OFFSET_COMMIT
    appended = brokers.cluster.brokers[brokers.leader].manager.append_records(
        ACKS_ALL, {OFFSETS: marker(9, committed=committed, epoch=1)}, origin=AppendOrigin.COORDINATOR,
        internal_topics_allowed=True,
    )  # fmt: skip
    assert brokers.result(appended)[OFFSETS].code is ErrorCode.NONE
    if reloads:
        brokers.elect("c")
    else:
        brokers.coordinator.handle_txn_completion(OFFSETS, 9, committed=committed)
    assert brokers.fetch("g") == brokers.fetch("g", require_stable=True) == (5 if committed else 1)


def test_offsets_of_a_deleted_topic_are_deleted_also_those_in_flight_and_in_transactions(brokers: Brokers) -> None:
    """A new topic of that name would else be read from an offset of the old one."""
    brokers.member("g")
    for group in ("g", "simple", "transactional"):
        partitions = (ORDERS, BILLS) if group != "g" else ()
        for partition in partitions:
            brokers.result(brokers.commit(group, 7, partition=partition))
    verification = brokers.coordinator.begin_verification("transactional", 9)
    request = OffsetCommitRequest("", -1, {ORDERS: OffsetToCommit(8)})
    commit = brokers.coordinator.commit_transactional_offsets("transactional", request, 9, 0, verification)
    assert brokers.result(commit) == {ORDERS: Code.NONE}
    in_flight = brokers.commit("other", 3)
    assert not in_flight.done()
    brokers.coordinator.topics_deleted({"orders": {NO_TOPIC_ID}})
    assert brokers.result(in_flight) == {ORDERS: Code.NONE}
    brokers.coordinator.handle_txn_completion(OFFSETS, 9, committed=True)
    for leader in ("a", "b"):
        if leader != brokers.leader:
            brokers.elect(leader)
        brokers.settle()
        for group in ("simple", "transactional", "other"):
            assert brokers.fetch(group) == -1, (leader, group)
        assert brokers.fetch("simple", BILLS) == brokers.fetch("transactional", BILLS) == 7


def test_topic_that_is_deleted_while_its_groups_are_loaded_loses_its_offsets(brokers: Brokers) -> None:
    brokers.result(brokers.commit("simple", 7))
    brokers.elect("b", is_served=False)
    brokers.coordinator.topics_deleted({"orders": {NO_TOPIC_ID}})
    brokers.advance(1_000)
    assert brokers.fetch("simple") == -1


@pytest.mark.parametrize(
    ("present", "kept"),
    [
        ({"orders": OTHER_ID, "bills": BILLS_ID}, {"with id": False, "without id": True}),
        ({"bills": BILLS_ID}, {"with id": False, "without id": False}),
        ({"orders": NO_TOPIC_ID, "bills": BILLS_ID}, {"with id": False, "without id": True}),
        ({"orders": ORDERS_ID, "bills": BILLS_ID}, {"with id": True, "without id": True}),
    ],
)
def test_coordinator_that_missed_the_deletion_of_a_topic_drops_its_offsets(
    brokers: Brokers, present: dict[str, bytes], kept: dict[str, bool]
) -> None:  # fmt: skip
    """It was down, or no coordinator. NO_TOPIC_ID: the topic may be one on ledgers, which the broker does not serve."""
    brokers.result(brokers.commit("with id", 7, topic_id=ORDERS_ID))
    brokers.result(brokers.commit("with id", 9, partition=BILLS, topic_id=BILLS_ID))
    brokers.result(brokers.commit("without id", 7))
    brokers.topics.lookups = lookups = []
    brokers.elect("b")
    assert brokers.fetch("with id") == Code.COORDINATOR_LOAD_IN_PROGRESS
    set_result(lookups[0], present)
    for group, is_kept in kept.items():
        assert brokers.fetch(group) == (7 if is_kept else -1), group
    assert brokers.fetch("with id", BILLS) == 9
    brokers.topics.lookups = None
    brokers.settle()
    brokers.elect("c")
    for group, is_kept in kept.items():
        assert brokers.fetch(group) == (7 if is_kept else -1), group


def test_offsets_of_a_topic_that_is_created_again_are_kept_while_its_former_id_is_looked_up(brokers: Brokers) -> None:
    for group in ("stays", "moves"):
        brokers.result(brokers.commit(group, 7, topic_id=ORDERS_ID))
    brokers.topics.lookups = lookups = []
    brokers.elect("b")
    brokers.advance(2_500)
    assert brokers.fetch("stays") == 7  # the store does not answer: groups are served nevertheless
    brokers.result(brokers.commit("moves", 3, topic_id=OTHER_ID))
    in_flight = brokers.commit("flies", 4, topic_id=OTHER_ID)
    set_result(lookups[0], {})  # read before the topic was created again
    assert brokers.result(in_flight) == {ORDERS: Code.NONE}
    brokers.settle()
    assert [brokers.fetch(group) for group in ("stays", "moves", "flies")] == [-1, 3, 4]


def test_lookup_of_topics_that_fails_is_repeated(brokers: Brokers) -> None:
    brokers.result(brokers.commit("g", 7, topic_id=ORDERS_ID))
    brokers.topics.lookups = lookups = []
    brokers.elect("b")
    set_exception(lookups[0], MetadataUnavailableError("the metadata store is away"))
    brokers.settle()
    assert brokers.fetch("g") == 7
    brokers.advance(11_000)
    set_result(lookups[1], {})
    brokers.settle()
    assert brokers.fetch("g") == -1 and len(lookups) == 2


def test_coordinator_looks_topics_up_again_from_time_to_time(tmp_path: Path) -> None:
    """A deletion that no watch has told, as that of a topic on ledgers, is found as well."""
    brokers = Brokers(tmp_path, retention_check_ms=5_000)
    brokers.elect("a")
    brokers.result(brokers.commit("g", 7, topic_id=ORDERS_ID))
    brokers.topics.lookups = lookups = []
    brokers.advance(brokers.config.retention_check_ms + 1_000)
    assert len(lookups) == 1
    set_result(lookups[0], {})
    brokers.settle()
    assert brokers.fetch("g") == -1
    brokers.cluster.close()


def test_late_notice_of_a_deletion_leaves_the_offsets_of_the_topic_that_was_created_again(brokers: Brokers) -> None:
    for group in ("stays", "moves"):
        brokers.result(brokers.commit(group, 7, topic_id=ORDERS_ID))
    brokers.result(brokers.commit("moves", 3, topic_id=OTHER_ID))
    brokers.coordinator.topics_deleted({"orders": {NO_TOPIC_ID, ORDERS_ID}})
    brokers.settle()
    assert [brokers.fetch(group) for group in ("stays", "moves")] == [-1, 3]


def test_a_deleted_group_loses_the_offsets_whose_commits_were_in_flight(brokers: Brokers) -> None:
    brokers.result(brokers.commit("simple", 7, partition=BILLS))
    commit = brokers.commit("simple", 7)
    deleted = brokers.coordinator.delete_group("simple")
    assert not commit.done() and not deleted.done()
    assert brokers.result(commit) == {ORDERS: Code.NONE} and brokers.result(deleted) is Code.NONE
    for leader in ("a", "b"):
        if leader != brokers.leader:
            brokers.elect(leader)
        assert brokers.fetch("simple") == brokers.fetch("simple", BILLS) == -1, leader
        assert brokers.result(brokers.coordinator.list_groups()).groups == ()


def test_groups_are_listed_and_deleted(brokers: Brokers) -> None:
    member = brokers.member("g")
    brokers.result(brokers.commit("simple", 1))
    listed = brokers.result(brokers.coordinator.list_groups())
    assert {(group.group_id, group.state, group.protocol_type) for group in listed.groups} == {
        ("g", GroupState.STABLE, "consumer"), ("simple", GroupState.EMPTY, ""),
    }  # fmt: skip
    stable = brokers.result(brokers.coordinator.list_groups([GroupState.STABLE]))
    assert [group.group_id for group in stable.groups] == ["g"]
    assert brokers.result(brokers.coordinator.delete_group("g")) is Code.NON_EMPTY_GROUP
    assert brokers.result(brokers.coordinator.delete_group("simple")) is Code.NONE
    left = brokers.result(brokers.coordinator.leave_group("g", [LeavingMember(member)]))
    assert left.members[0].code is Code.NONE
    assert brokers.result(brokers.coordinator.delete_group("g")) is Code.NONE
    brokers.elect("b")
    assert brokers.result(brokers.coordinator.list_groups()).groups == ()


def test_offsets_of_an_empty_group_expire(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, offsets_retention_ms=60_000, retention_check_ms=1_000)
    brokers.elect("a")
    brokers.result(brokers.commit("g", 1))
    brokers.advance(50_000)
    assert brokers.fetch("g") == 1
    brokers.advance(15_000)
    assert brokers.fetch("g") == -1 and brokers.result(brokers.coordinator.list_groups()).groups == ()
    brokers.elect("b")
    assert brokers.fetch("g") == -1
    brokers.cluster.close()


def test_a_join_ends_in_time(brokers: Brokers) -> None:
    """A member waits for another one that never comes back."""
    first = brokers.member("g", rebalance_timeout_ms=5_000)
    second = brokers.coordinator.join_group("g", join_request(rebalance_timeout_ms=5_000))
    brokers.settle()
    assert not second.done()
    assert brokers.result(brokers.coordinator.heartbeat("g", first, 1)) is Code.REBALANCE_IN_PROGRESS
    brokers.advance(6_000)
    assert second.result(0).code is Code.NONE and second.result(0).generation == 2


def test_the_offsets_partition_is_rewritten_and_stays_small(tmp_path: Path) -> None:
    """What is live is appended again, and segments before that go; nothing is lost by it."""
    brokers = Brokers(tmp_path, rewrite_bytes=20_000)
    brokers.elect("a")
    member = brokers.member("members")
    for number in range(5):
        brokers.result(brokers.commit(f"idle{number}", number))
    for offset in range(1_500):
        brokers.commit("busy", offset)
        if offset % 50 == 0:
            brokers.settle(2)
            brokers.result(brokers.coordinator.heartbeat("members", member, 1))
    brokers.settle()
    brokers.result(brokers.commit("busy", 5_000))
    log = brokers.cluster.brokers["a"].logs[OFFSETS]
    until(lambda: brokers.settle(2) or log.start > 0)
    brokers.elect("b")
    assert brokers.fetch("busy") == 5_000
    assert [brokers.fetch(f"idle{number}") for number in range(5)] == list(range(5))
    assert brokers.result(brokers.coordinator.heartbeat("members", member, 1)) is Code.NONE
    brokers.cluster.close()


# ---- kill -9 -------------------------------------------------------------------------------------------------------

_ACK = struct.Struct("<q")


class _Embedded:
    """A broker in this process with its coordinator. Nobody calls `expire` but `until_served`."""

    def __init__(self, path: Path) -> None:
        self.store = SQLiteStore(path / "metadata")
        if find_topic(self.store, OFFSETS_TOPIC) is None:
            create_topic(self.store, OFFSETS_TOPIC, partitions=1, replication_factor=1, now_us=1)
        transport = LocalTransport()
        self.broker = PartitionBroker(
            path / "a",
            "a",
            self.store,
            transport,
            config=BrokerConfig(segment_bytes=1 << 20, lag_ms=2_000, lease_ms=500),
        )
        transport.register("a", self.broker.replicas)
        config = ConsumerGroupConfig(offsets_partitions=1)
        log = ReplicaManagerOffsetsLog(self.broker.replicas, config.append_timeout_ms)
        self.coordinator = GroupCoordinator(log, SystemClock(), config)

    def until_served(self) -> None:
        def leads() -> bool:
            partition = self.broker.partition(OFFSETS_TOPIC, 0)
            return partition is not None and partition.is_leader

        until(leads)
        topic = find_topic(self.store, OFFSETS_TOPIC)
        assert topic is not None
        stored = self.store.get(state_key(topic.topic_id, 0))
        assert stored is not None
        self.coordinator.leadership_changed(OFFSETS, PartitionState.decode(stored.value).epoch.number)

        def serves() -> bool:
            self.coordinator.expire()
            return self.coordinator.fetch_offsets("g").result(PATIENCE_S).code is Code.NONE

        until(serves)

    def close(self) -> None:
        self.coordinator.close()
        self.broker.close()
        self.store.close()


def _commit_for_ever(path: Path, acks: int) -> None:
    embedded = _Embedded(path)
    embedded.until_served()
    first = embedded.coordinator.fetch_offsets("g", [ORDERS]).result(PATIENCE_S).offsets[ORDERS].offset + 1
    offset = first
    while True:
        request = OffsetCommitRequest("", -1, {ORDERS: OffsetToCommit(offset)})
        outcome = embedded.coordinator.commit_offsets("g", request).result(PATIENCE_S)
        assert outcome == {ORDERS: Code.NONE}
        os.write(acks, _ACK.pack(offset))
        offset += 1


def test_offsets_survive_kill_9(tmp_path: Path, seed: int) -> None:
    rng, acknowledged = Random(seed), -1
    for _ in range(3):
        reading, writing = os.pipe()
        with in_background(partial(_commit_for_ever, tmp_path, writing), tmp_path / "report") as pid:
            os.close(writing)
            with open(reading, "rb") as pipe:
                data = pipe.read(_ACK.size * rng.randint(1, 200))
                os.kill(pid, signal.SIGKILL)
                data += pipe.read()
        assert data, (tmp_path / "report").read_text()
        acknowledged = max(acknowledged, *(offset for (offset,) in _ACK.iter_unpack(data[: len(data) // 8 * 8])))
        embedded = _Embedded(tmp_path)
        embedded.until_served()
        fetched = embedded.coordinator.fetch_offsets("g", [ORDERS]).result(PATIENCE_S).offsets[ORDERS].offset
        embedded.close()
        assert acknowledged <= fetched <= acknowledged + 1
        acknowledged = fetched
