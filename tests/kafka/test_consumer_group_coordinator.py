"""Consumer groups over real partitions: three brokers with replica managers, whose fetches a test delivers. Groups of both
protocols, which do not mix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    GroupState,
    GroupType,
    LeavingMember,
    OffsetCommitRequest,
    OffsetToCommit,
    SyncGroupRequest,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.consumer_group_driver import ORDERS, partitions
from tests.kafka.group_driver import join_request
from tests.kafka.test_group_coordinator import Brokers

Code = ErrorCode


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    brokers.elect("a")
    yield brokers
    brokers.cluster.close()


def joining(member_id: str = "m") -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=30_000, topics=frozenset({"orders"}), owned=frozenset())


def beat(brokers: Brokers, heartbeat: ConsumerHeartbeat, group: str = "g") -> Any:
    return brokers.result(brokers.coordinator.consumer_heartbeat(group, heartbeat))


def commit(brokers: Brokers, member_id: str, epoch: int, offset: int) -> Any:
    request = OffsetCommitRequest(member_id, epoch, {ORDERS: OffsetToCommit(offset)}, knows_member_epochs=True)
    return brokers.result(brokers.coordinator.commit_offsets("g", request))[ORDERS]


def test_a_member_is_answered_when_the_replicas_know_it(brokers: Brokers) -> None:
    future = brokers.coordinator.consumer_heartbeat("g", joining())
    assert not future.done()
    joined = brokers.result(future)
    assert (joined.code, joined.member_epoch, joined.assignment) == (Code.NONE, 1, partitions("orders", range(4)))


def test_members_and_epochs_are_there_after_a_failover(brokers: Brokers) -> None:
    beat(brokers, joining())
    assert commit(brokers, "m", 1, 42) is Code.NONE
    before = brokers.result(brokers.coordinator.describe_consumer_group("g"))
    brokers.elect("b")
    assert brokers.result(brokers.coordinator.describe_consumer_group("g")) == before
    assert brokers.fetch("g", member_id="m", member_epoch=1) == 42
    assert beat(brokers, ConsumerHeartbeat("m", 1)).code is Code.NONE
    assert beat(brokers, ConsumerHeartbeat("m", 2)).code is Code.FENCED_MEMBER_EPOCH
    assert commit(brokers, "m", 0, 43) is Code.STALE_MEMBER_EPOCH
    old = brokers.coordinators["a"].consumer_heartbeat("g", ConsumerHeartbeat("m", 1))
    assert brokers.result(old).code is Code.NOT_COORDINATOR
    brokers.advance(46_000)
    assert brokers.result(brokers.coordinator.describe_consumer_group("g")).state is GroupState.EMPTY


def test_an_answer_waits_until_its_outcome_is_known(brokers: Brokers) -> None:
    beat(brokers, joining())
    for name in "bc":
        brokers.cluster.brokers[name].is_fetching = False
    future = brokers.coordinator.consumer_heartbeat("g", joining("other"))
    quiet = brokers.coordinator.consumer_heartbeat("g", ConsumerHeartbeat("m", 1))
    brokers.advance(brokers.config.append_timeout_ms + 500)
    assert future.result(0).code is quiet.result(0).code is Code.COORDINATOR_NOT_AVAILABLE
    assert beat(brokers, ConsumerHeartbeat("m", 1)).code is Code.COORDINATOR_NOT_AVAILABLE
    for name in "bc":
        brokers.cluster.brokers[name].is_fetching = True
    brokers.settle()
    again = beat(brokers, joining("other"))
    assert (again.code, again.member_epoch) == (Code.NONE, 2)
    assert len(brokers.result(brokers.coordinator.describe_consumer_group("g")).members) == 2


def test_requests_for_unknown_groups_get_error_codes(brokers: Brokers) -> None:
    coordinator = brokers.coordinator
    assert beat(brokers, ConsumerHeartbeat("m", 3)).code is Code.GROUP_ID_NOT_FOUND
    assert beat(brokers, ConsumerHeartbeat("m", -1)).code is Code.GROUP_ID_NOT_FOUND
    assert beat(brokers, joining(), "").code is Code.INVALID_GROUP_ID
    assert beat(brokers, joining()._replace(member_id="", chooses_id=True)).code is Code.INVALID_REQUEST
    described = brokers.result(coordinator.describe_consumer_group("g"))
    assert (described.code, described.text) == (Code.GROUP_ID_NOT_FOUND, "there is no consumer group g")
    assert commit(brokers, "m", 3, 1) is Code.GROUP_ID_NOT_FOUND
    other = brokers.coordinators["b"].consumer_heartbeat("g", joining())
    assert other.result(0).code is Code.NOT_COORDINATOR
    brokers.elect("b", is_served=False)
    assert brokers.coordinator.consumer_heartbeat("g", joining()).result(0).code is Code.COORDINATOR_LOAD_IN_PROGRESS


def test_the_classic_protocol_is_not_for_a_consumer_group(brokers: Brokers) -> None:
    beat(brokers, joining())
    coordinator = brokers.coordinator
    joined = brokers.result(coordinator.join_group("g", join_request()))
    assert joined.code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert brokers.result(coordinator.sync_group("g", SyncGroupRequest("m", 1))).code is Code.UNKNOWN_MEMBER_ID
    assert brokers.result(coordinator.heartbeat("g", "m", 1)) is Code.UNKNOWN_MEMBER_ID
    left = brokers.result(coordinator.leave_group("g", [LeavingMember("m")]))
    assert left.members[0].code is Code.UNKNOWN_MEMBER_ID
    assert brokers.result(coordinator.describe_group("g")).code is Code.GROUP_ID_NOT_FOUND
    assert brokers.result(coordinator.describe_consumer_group("g")).state is GroupState.STABLE
    assert brokers.result(coordinator.delete_group("g")) is Code.NON_EMPTY_GROUP


def test_heartbeats_of_consumer_groups_are_not_for_a_classic_one(brokers: Brokers) -> None:
    brokers.member("g")
    refused = beat(brokers, joining())
    assert (refused.code, refused.text) == (Code.GROUP_ID_NOT_FOUND, "there is no consumer group g, but a classic one")
    assert beat(brokers, ConsumerHeartbeat("m", 1)).code is Code.GROUP_ID_NOT_FOUND
    described = brokers.result(brokers.coordinator.describe_consumer_group("g"))
    assert described.code is Code.GROUP_ID_NOT_FOUND
    assert brokers.result(brokers.coordinator.describe_group("g")).state is GroupState.STABLE


def test_groups_are_listed_by_type(brokers: Brokers) -> None:
    beat(brokers, joining())
    brokers.member("other")
    coordinator = brokers.coordinator
    listed = brokers.result(coordinator.list_groups()).groups
    assert {(each.group_id, each.group_type, each.protocol_type) for each in listed} == {
        ("g", GroupType.CONSUMER, "consumer"), ("other", GroupType.CLASSIC, "consumer"),
    }  # fmt: skip
    (only,) = brokers.result(coordinator.list_groups(types=[GroupType.CONSUMER])).groups
    assert only.group_id == "g"
    assert not brokers.result(coordinator.list_groups([GroupState.EMPTY], [GroupType.CONSUMER])).groups


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_without_members_changes_its_protocol_and_keeps_its_offsets(brokers: Brokers, fails: bool) -> None:
    """There and back; and a coordinator that reads the log in between, finds what there is."""
    names = iter("bcab")

    def maybe_fail() -> None:
        if fails:
            brokers.elect(next(names))

    member = brokers.member("g")
    request = OffsetCommitRequest(member, 1, {ORDERS: OffsetToCommit(7)})
    assert brokers.result(brokers.coordinator.commit_offsets("g", request)) == {ORDERS: Code.NONE}
    brokers.result(brokers.coordinator.leave_group("g", [LeavingMember(member)]))
    assert beat(brokers, joining()).code is Code.COORDINATOR_LOAD_IN_PROGRESS, "the log does not say yet that it left"
    brokers.settle()
    assert beat(brokers, joining()).code is Code.COORDINATOR_LOAD_IN_PROGRESS
    maybe_fail()
    joined = beat(brokers, joining())
    assert (joined.code, joined.member_epoch) == (Code.NONE, 1)
    maybe_fail()
    assert brokers.fetch("g") == 7 and commit(brokers, "m", 1, 8) is Code.NONE
    assert beat(brokers, ConsumerHeartbeat("m", -1)).code is Code.NONE
    joined = brokers.result(brokers.coordinator.join_group("g", join_request()))
    assert joined.code is Code.COORDINATOR_LOAD_IN_PROGRESS
    maybe_fail()
    brokers.member("g")
    maybe_fail()
    assert brokers.fetch("g") == 8
    assert brokers.result(brokers.coordinator.describe_group("g")).state is GroupState.STABLE


def test_a_group_that_was_only_committed_to_takes_members(brokers: Brokers) -> None:
    brokers.result(brokers.commit("g", 7))
    assert beat(brokers, joining()).code is Code.NONE
    brokers.elect("b")
    assert brokers.fetch("g") == 7
    assert brokers.result(brokers.coordinator.describe_consumer_group("g")).state is GroupState.STABLE
