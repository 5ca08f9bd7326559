"""Orders of operators over a metadata store alone: reassignments, cancels, elections; one outcome per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pyreplog.errors import OutcomeUnknownError
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.broker_registration import (
    BrokerAvailability,
    BrokerMetadata,
    available_key,
    broker_key,
)
from pyreplog.partition.metadata.partition_changes import (
    ElectionType,
    PartitionResult,
    Reassignment,
    elect_leaders,
    list_reassignments,
    reassign_partitions,
)
from pyreplog.partition.metadata.topic_metadata import create_topic, delete_topic, find_topic, state_key
from pyreplog.partition.protocol.election import complete_reassignment
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from pyreplog.partition.topic_partition import TopicPartition

from .replicas import members, registered

ZERO, ONE, NOWHERE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 7)
DONE = PartitionResult(ErrorCode.NONE)


class Cluster:
    """A topic of two partitions with replicas a, b and c; brokers a to e."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        for name in "abcde":
            store.create(broker_key(name), BrokerMetadata(directory="0" * 32, incarnation=1).encode())
            store.create(available_key(name), BrokerAvailability(incarnation=1).encode())
        create_topic(store, "t", partitions=2, replication_factor=3, now_us=1)
        for number in range(2):
            state = PartitionState(("a", "b", "c"), members(*"abc"), 2).led_by("a")
            store.create(self._key(number), state.encode())

    def _key(self, number: int) -> str:
        topic = find_topic(self.store, "t")
        assert topic is not None
        return state_key(topic.topic_id, number)

    def state(self, number: int = 0) -> PartitionState:
        stored = self.store.get(self._key(number))
        assert stored is not None
        return PartitionState.decode(stored.value)

    def change(self, change: Callable[[PartitionState], PartitionState | None], number: int = 0) -> None:
        stored = self.store.get(self._key(number))
        assert stored is not None
        changed = change(PartitionState.decode(stored.value))
        assert changed is not None
        self.store.put(self._key(number), changed.encode(), stored.version)

    def kill(self, name: str) -> None:
        stored = self.store.get(available_key(name))
        assert stored is not None
        self.store.delete(available_key(name), stored.version)

    def reassign(self, target: Sequence[str] | None) -> PartitionResult:
        return reassign_partitions(self.store, {ZERO: target})[ZERO]


class UnsureStore(MemoryStore):
    """Writes are done, and some answers are lost."""

    lost = 0

    def put(self, key: str, value: bytes, version: int) -> int:
        after = super().put(key, value, version)
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknownError("the answer was lost")
        return after


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with UnsureStore() as store:
        yield Cluster(store)


def codes(results: dict[TopicPartition, PartitionResult]) -> dict[TopicPartition, ErrorCode]:
    return {name: result.code for name, result in results.items()}


# ---- reassignments ----------------------------------------------------------------------------------------------


def test_reassignments_are_listed_until_they_are_complete(cluster: Cluster) -> None:
    assert list_reassignments(cluster.store) == {}
    assert cluster.reassign(["d", "b", "c"]) == DONE
    under_way = Reassignment(("d", "b", "c", "a"), ("d",), ("a",), ("d", "b", "c"))
    assert list_reassignments(cluster.store) == list_reassignments(cluster.store, ["t"]) == {ZERO: under_way}
    assert list_reassignments(cluster.store, ["u"]) == {}
    cluster.change(lambda state: state.with_isr((*state.isr, Member("d", 1)), {}))
    cluster.change(lambda state: complete_reassignment(state, registered(*"abcd")))
    assert list_reassignments(cluster.store) == {} and cluster.state().replicas == ("d", "b", "c")


def test_a_cancelled_reassignment_restores_the_replicas(cluster: Cluster) -> None:
    before = cluster.state()
    cluster.reassign(["e", "d"])
    cluster.reassign(["d", "b"])
    assert cluster.state().original == ("a", "b", "c")
    assert cluster.reassign(None) == DONE
    assert cluster.state() == before


@pytest.mark.parametrize("target", [["a", "b", "c"], ["c", "a", "b"]])
def test_a_reassignment_to_the_same_replicas_changes_at_most_their_order(cluster: Cluster, target: list[str]) -> None:
    before = cluster.state()
    assert cluster.reassign(target) == DONE
    if target == ["a", "b", "c"]:
        assert cluster.state() == before
    else:
        cluster.change(lambda state: complete_reassignment(state, registered(*"abc")))
        assert cluster.state().replicas == ("c", "a", "b") and cluster.state().leader == "a"


def test_each_partition_has_its_own_outcome(cluster: Cluster) -> None:
    targets: dict[TopicPartition, Any] = {
        ZERO: ["d"], ONE: None, NOWHERE: ["d"], TopicPartition("u", 0): ["d"],
        TopicPartition("t", 3): ["d", "d"], TopicPartition("t", 4): ["z"], TopicPartition("t", 5): [],
        TopicPartition("t", 6): ["../d"],
    }  # fmt: skip
    results = reassign_partitions(cluster.store, targets)
    assert codes(results) == {
        ZERO: ErrorCode.NONE,
        ONE: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        NOWHERE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        **{TopicPartition("t", number): ErrorCode.INVALID_REPLICA_ASSIGNMENT for number in (3, 4, 5, 6)},
    }
    assert "expected registered brokers, found z" in results[TopicPartition("t", 4)].message
    delete_topic(cluster.store, "t")
    assert cluster.reassign(["e"]).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_change_whose_answer_was_lost_is_made_once(cluster: Cluster) -> None:
    assert isinstance(cluster.store, UnsureStore)
    for target in (["d", "e"], None):
        cluster.store.lost = 1
        assert cluster.reassign(target) == DONE
        assert cluster.state().target == tuple(target or ())
    cluster.change(lambda state: state.led_by("b"))
    cluster.store.lost = 1
    assert elect_leaders(cluster.store, ElectionType.PREFERRED, [ZERO]) == {ZERO: DONE}
    assert cluster.state().epoch.number == 3, "once"


# ---- elections --------------------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected(cluster: Cluster) -> None:
    cluster.change(lambda state: state.led_by("b"))
    results = elect_leaders(cluster.store, ElectionType.PREFERRED, [ZERO, ONE, NOWHERE])
    assert codes(results) == {
        ZERO: ErrorCode.NONE,
        ONE: ErrorCode.ELECTION_NOT_NEEDED,
        NOWHERE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert cluster.state().leader == "a"
    cluster.change(lambda state: state.led_by("b"))
    assert elect_leaders(cluster.store, ElectionType.PREFERRED) == {ZERO: DONE}


def test_a_preferred_leader_that_cannot_lead(cluster: Cluster) -> None:
    cluster.change(lambda state: state.led_by("b"))
    cluster.kill("a")
    results = elect_leaders(cluster.store, ElectionType.PREFERRED, [ZERO])
    assert codes(results) == {ZERO: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.state().leader == "b"


def test_an_unclean_election_needs_a_partition_without_a_leader(cluster: Cluster) -> None:
    assert codes(elect_leaders(cluster.store, ElectionType.UNCLEAN, [ZERO])) == {ZERO: ErrorCode.ELECTION_NOT_NEEDED}
    cluster.change(lambda state: state.with_isr(members("a"), {}).led_by(""))
    cluster.change(lambda state: PartitionState(state.replicas, members("a"), 1, (), "", state.epoch))
    for name in "ab":
        cluster.kill(name)
    assert elect_leaders(cluster.store, ElectionType.UNCLEAN, [ZERO]) == {ZERO: DONE}
    state = cluster.state()
    assert (state.leader, state.isr, state.is_unclean) == ("c", members("c"), True)
    assert not cluster.state(1).is_unclean


def test_an_unclean_election_of_a_partition_whose_brokers_are_dead(cluster: Cluster) -> None:
    cluster.change(lambda state: state.led_by(""))
    for name in "abc":
        cluster.kill(name)
    results = elect_leaders(cluster.store, ElectionType.UNCLEAN, [ZERO])
    assert codes(results) == {ZERO: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
