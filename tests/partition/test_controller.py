"""Controllers over a metadata store: topics are placed, leaders elected, partitions grown, reassigned and deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import InvalidArgumentError, MetadataUnavailableError, NoSuchTopicError, TopicExistsError
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.operations import Operation
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.partition.controller import Controller
from pyreplog.partition.metadata.broker_registration import (
    CONTROLLER,
    BrokerLease,
    BrokerMetadata,
    broker_key,
)
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.topic_metadata import (
    STATES,
    TopicMetadata,
    create_partitions,
    create_topic,
    delete_topic,
    find_topic,
    list_topics,
    remove_topic,
    state_key,
    states_key,
    topic_key,
)
from pyreplog.partition.protocol.election import reassign
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from tests.waiting import PATIENCE_S, until

BALANCE_S = 300.0
REPLACE_S = 600.0


class Broker:
    """A broker that has a registration and a controller, and no log."""

    def __init__(
        self, store: MetadataStore, name: str, clock: ManualClock, incarnation: int = 1, rack: str = ""
    ) -> None:
        self.name = name
        metadata = BrokerMetadata(directory="0" * 32, incarnation=incarnation, rack=rack).encode()
        stored = store.get(broker_key(name))
        if stored is None:
            store.create(broker_key(name), metadata)
        else:
            store.put(broker_key(name), metadata, stored.version)
        self.lease = BrokerLease(store, Member(name, incarnation), 60.0)
        self.lease.refresh()
        self.controller: Controller | None = None
        self.cache = MetadataCache(store, self, lambda again: threading.Timer(0.01, again).start())
        self.controller = Controller(store, self.cache, self.lease, clock, BALANCE_S, REPLACE_S)

    def _wake(self) -> None:
        if self.controller is not None:
            self.controller.wake()

    def topics_changed(self, topics: Set[str]) -> None:
        if self.controller is not None:
            self.controller.wake(frozenset(), topics)

    def states_changed(self, partitions: Set[PartitionId]) -> None:
        if self.controller is not None:
            self.controller.wake(partitions)

    def brokers_changed(self) -> None:
        self._wake()

    def close(self) -> None:
        if self.controller is not None:
            self.controller.close()
        self.cache.close()
        self.lease.close()


class Cluster:
    def __init__(self, store: MetadataStore) -> None:
        self.store, self.clock = store, ManualClock(1_700_000_000_000_000)
        self.brokers: dict[str, Broker] = {}

    def start(self, *names: str, incarnation: int = 1, rack: str = "") -> None:
        for name in names:
            self.brokers[name] = Broker(self.store, name, self.clock, incarnation, rack)

    def stop(self, name: str) -> None:
        self.brokers.pop(name).close()

    def close(self) -> None:
        with ExitStack() as stack:
            for broker in self.brokers.values():
                stack.callback(broker.close)

    def create(self, topic: str, partitions: int = 1, replication_factor: int = 3, **settings: object) -> TopicMetadata:
        return create_topic(
            self.store, topic, partitions=partitions, replication_factor=replication_factor, now_us=1,
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip

    def state(self, topic: TopicMetadata, partition: int = 0) -> PartitionState | None:
        stored = self.store.get(state_key(topic.topic_id, partition))
        return None if stored is None else PartitionState.decode(stored.value)

    def states(self, topic: TopicMetadata) -> list[PartitionState]:
        states = [self.state(topic, partition) for partition in range(topic.partitions)]
        return [state for state in states if state is not None]

    def await_state(self, topic: TopicMetadata, is_right: Callable[[PartitionState], bool]) -> PartitionState:
        def look() -> PartitionState | None:
            state = self.state(topic)
            return state if state is not None and is_right(state) else None

        return until(look)

    def pass_time(self, seconds: float) -> None:
        """Each broker has seen who is alive before it passes, and the controller looks at once."""
        for broker in self.brokers.values():
            alive = {*self.brokers}
            until(
                lambda broker=broker, alive=alive: {
                    name for name, registration in broker.cache.brokers().items() if not registration.is_fenced
                } == alive
            )  # fmt: skip
            assert broker.controller is not None
            broker.controller.round()
        self.clock.advance(round(seconds * 1e6))
        for broker in self.brokers.values():
            assert broker.controller is not None
            broker.controller.wake()

    def change(self, topic: TopicMetadata, change: Callable[[PartitionState], PartitionState]) -> None:
        """As a leader, or an operator, does."""
        key = state_key(topic.topic_id, 0)
        stored = self.store.get(key)
        assert stored is not None
        self.store.put(key, change(PartitionState.decode(stored.value)).encode(), stored.version)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    with MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "metadata") as store:
        yield store


@pytest.fixture
def cluster(store: MetadataStore) -> Iterator[Cluster]:
    cluster = Cluster(store)
    yield cluster
    cluster.close()


def test_a_new_topic_is_led_evenly(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", partitions=6, min_isr=2)
    states = until(lambda: (states := cluster.states(topic)) and len(states) == 6 and states)
    assert sorted(state.leader for state in states) == ["a", "a", "b", "b", "c", "c"]
    for state in states:
        assert state.leader == state.replicas[0] and len({*state.replicas}) == 3
        assert state.epoch.number == 1 and state.min_isr == 2 and not state.is_unclean
        assert [member.broker for member in state.isr] == ["a", "b", "c"]


def lead_by_another(cluster: Cluster) -> tuple[TopicMetadata, Broker]:
    """Make a partition of a, b and c that b leads, with all in the ISR; return its topic and the controller's broker,
    whose cache knows it."""
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", assignment={0: ["a", "b", "c"]}, min_isr=2)
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.stop("a")
    state = cluster.await_state(topic, lambda state: state.leader == "b")
    assert state.epoch.number == 2 and state.isr == (Member("b", 1), Member("c", 1))

    cluster.start("a")  # cleanly: the same incarnation
    cluster.change(topic, lambda state: state.with_isr((*state.isr, Member("a", 1)), {}))
    broker = cluster.brokers[until(lambda: cluster.store.get(CONTROLLER)).value.decode().partition("@")[0]]
    partition = PartitionId(topic.topic_id, 0)
    until(lambda: (known := broker.cache.state(partition)) and known[1].leader == "b" and len(known[1].isr) == 3)
    until(lambda: not broker.cache.brokers()["a"].is_fenced)
    return topic, broker


def test_the_leader_that_is_gone_is_replaced_and_comes_back_as_the_preferred_one(cluster: Cluster) -> None:
    topic, broker = lead_by_another(cluster)
    assert broker.controller is not None
    broker.controller.round()
    state = cluster.await_state(topic, lambda state: len(state.isr) == 3)
    assert state.leader == "b", "not before the time for it"
    cluster.clock.advance(round((BALANCE_S + 1) * 1e6))
    broker.controller.wake()
    assert cluster.await_state(topic, lambda state: state.leader == "a").epoch.number == 3


class WatchedStore(MemoryStore):
    """Counts what is written, and fails with write `failing`. Reads of several keys, which are those of caches, wait while
    `is_readable` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.failing = 0, 0
        self.is_readable = threading.Event()
        self.is_readable.set()

    def _get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        assert self.is_readable.wait(PATIENCE_S)
        return super()._get_many(keys)

    def _put(self, key: str, value: bytes, version: int) -> int:
        self.writes += 1
        if self.writes == self.failing:
            raise MetadataUnavailableError("away")
        return super()._put(key, value, version)


@pytest.fixture
def watched_store() -> Iterator[WatchedStore]:
    with WatchedStore() as store:
        yield store


def test_a_state_is_written_once_though_the_cache_reads_it_late(watched_store: WatchedStore) -> None:
    with closing(Cluster(watched_store)) as cluster:
        topic, broker = lead_by_another(cluster)
        watched_store.is_readable.clear()
        before = watched_store.writes
        assert broker.controller is not None
        for _ in range(50):  # each gives partitions back to their preferred leaders
            cluster.clock.advance(round((BALANCE_S + 1) * 1e6))
            broker.controller.round()
        assert 1 <= watched_store.writes - before < 25, "once, and once more for each second without a change"
        watched_store.is_readable.set()
        cluster.await_state(topic, lambda state: state.leader == "a")


def test_a_preferred_leader_is_elected_though_the_cache_was_behind_when_that_was_due(
    watched_store: WatchedStore,
) -> None:  # fmt: skip
    with closing(Cluster(watched_store)) as cluster:
        topic, broker = lead_by_another(cluster)
        watched_store.is_readable.clear()
        cluster.change(topic, lambda state: replace(state, min_isr=1))  # the controller is to set 2 again
        assert broker.controller is not None
        broker.controller.round()  # the cache still has 2
        cluster.clock.advance(round((BALANCE_S + 1) * 1e6))
        broker.controller.round()  # a is elected, but the state has changed
        watched_store.is_readable.set()
        assert cluster.await_state(topic, lambda state: state.leader == "a").min_isr == 2


def test_next_round_completes_a_failed_round(watched_store: WatchedStore) -> None:
    with closing(Cluster(watched_store)) as cluster:
        cluster.start("a", "b", "c")
        topic = cluster.create("flights", assignment={0: ["a", "b", "c"]})
        cluster.await_state(topic, lambda state: state.leader == "a")
        watched_store.failing = watched_store.writes + 2
        stored = watched_store.get(state_key(topic.topic_id, 0))
        assert stored is not None
        headless = replace(PartitionState.decode(stored.value), leader="").encode()
        watched_store.put(state_key(topic.topic_id, 0), headless, stored.version)
        cluster.await_state(topic, lambda state: state.leader == "a" and state.epoch.number > 1)
        assert watched_store.writes > watched_store.failing


def test_deleted_partition_state_is_created_again(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", partitions=2)
    until(lambda: len(cluster.states(topic)) == 2)
    key = state_key(topic.topic_id, 1)
    stored = cluster.store.get(key)
    assert stored is not None
    cluster.store.delete(key, stored.version)
    until(lambda: (state := cluster.state(topic, 1)) and state.leader)


def test_the_death_of_the_controller_is_no_end(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", assignment={0: ["a", "b", "c"]})
    cluster.await_state(topic, lambda state: state.leader == "a")
    while len(cluster.brokers) > 1:
        holder = until(lambda: cluster.store.get(CONTROLLER)).value.decode().partition("@")[0]
        cluster.stop(holder)
        cluster.await_state(topic, lambda state: state.leader in cluster.brokers)
    state = cluster.state(topic)
    assert state is not None and state.leader in cluster.brokers and not state.is_unclean


def test_a_later_incarnation_is_no_member(cluster: Cluster) -> None:
    cluster.start("a", "b")
    topic = cluster.create("flights", replication_factor=2, assignment={0: ["a", "b"]}, min_isr=1)
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.stop("b")
    cluster.change(topic, lambda state: state.with_isr((Member("a", 1),), {}))
    cluster.stop("a")
    cluster.start("a", incarnation=2)  # it lost what was not on its disk
    state = cluster.await_state(topic, lambda state: state.epoch.number == 2)
    assert state.leader == "a" and state.isr == (Member("a", 2),) and state.is_unclean, (
        "the last leader, for nobody has it all"
    )


def test_partitions_that_are_added_are_placed(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", replication_factor=1)
    first = cluster.await_state(topic, lambda state: state.leader != "")
    grown = create_partitions(cluster.store, "flights", 3)
    states = until(lambda: (states := cluster.states(grown)) and len(states) == 3 and states)
    assert states[0] == first and sorted(state.leader for state in states) == ["a", "b", "c"]
    with pytest.raises(InvalidArgumentError, match="expected at least 3, found 2"):
        create_partitions(cluster.store, "flights", 2)


def test_a_topic_waits_for_brokers(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.start("a")
    topic = cluster.create("flights", replication_factor=2)
    until(lambda: "created when there are more brokers" in caplog.text)
    assert cluster.states(topic) == []
    cluster.start("b")
    assert len(cluster.await_state(topic, lambda state: state.leader != "").isr) == 2


def test_partitions_are_created_while_a_broker_is_down(cluster: Cluster) -> None:
    """As in Kafka: a topic needs no other replicas than those of living brokers, so that a restart of a broker stops
    nobody. The dead one is not in the ISR, for which appends would wait."""
    cluster.start("a", "b", "c")
    for broker in cluster.brokers.values():
        until(lambda broker=broker: len(broker.cache.brokers()) == 3)
    cluster.stop("c")
    for broker in cluster.brokers.values():
        until(lambda broker=broker: broker.cache.brokers()["c"].is_fenced)
    cluster.pass_time(2)
    free = cluster.create("flights", partitions=8)
    chosen = cluster.create("trains", assignment={0: ["c", "b", "a"]})
    states = until(lambda: (states := cluster.states(free)) and len(states) == 8 and states)
    states.append(cluster.await_state(chosen, lambda _: True))
    for state in states:
        assert sorted(state.replicas) == ["a", "b", "c"], state
        assert state.isr == (Member("a", 1), Member("b", 1)) and state.leader in ("a", "b"), state
    assert {state.replicas[2] for state in states[:8]} == {"c"}, "the dead one is the last choice"


def test_racks_are_kept_apart(cluster: Cluster) -> None:
    cluster.start("a", "b", rack="one")
    cluster.start("c", "d", rack="two")
    topic = cluster.create("flights", partitions=8, replication_factor=2)
    states = until(lambda: (states := cluster.states(topic)) and len(states) == 8 and states)
    for state in states:
        assert len({*state.replicas} & {"a", "b"}) == 1
    assert sorted(state.leader for state in states) == [*"aabbccdd"]


def test_a_reassignment_completes_when_all_are_in_sync(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", replication_factor=2, assignment={0: ["a", "b"]})
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.change(topic, lambda state: reassign(state, ("c", "b")))
    state = cluster.await_state(topic, lambda state: state.target != ())
    assert state.replicas == ("c", "b", "a") and state.leader == "a"
    cluster.change(topic, lambda state: state.with_isr((*state.isr, Member("c", 1)), {}))
    state = cluster.await_state(topic, lambda state: state.target == ())
    assert state.replicas == ("c", "b") and state.leader == "c" and state.isr == (Member("b", 1), Member("c", 1))


def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(cluster: Cluster) -> None:
    cluster.start("a")
    topic = cluster.create("flights", partitions=3, replication_factor=1)
    until(lambda: len(cluster.states(topic)) == 3)
    with pytest.raises(TopicExistsError):
        cluster.create("flights")
    delete_topic(cluster.store, "flights")
    until(lambda: find_topic(cluster.store, "flights") is None)
    assert cluster.store.list(states_key(topic.topic_id)) == [] and list_topics(cluster.store) == []
    with pytest.raises(NoSuchTopicError):
        delete_topic(cluster.store, "flights")
    again = cluster.create("flights", replication_factor=1)
    assert again.topic_id != topic.topic_id
    cluster.await_state(again, lambda state: state.leader == "a")


def test_min_isr_of_a_topic_reaches_its_partitions(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", min_isr=1)
    cluster.await_state(topic, lambda state: state.leader != "" and state.min_isr == 1)
    key = topic_key("flights")
    stored = cluster.store.get(key)
    assert stored is not None
    cluster.store.put(key, replace(TopicMetadata.decode(stored.value), min_isr=2).encode(), stored.version)
    cluster.await_state(topic, lambda state: state.min_isr == 2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"partitions": 0}, "partitions: expected 1 to 65536, found 0"),
        ({"replication_factor": 65}, "replication_factor: expected 1 to 64, found 65"),
        ({"min_isr": 0}, "min_isr: expected 1 to 64"),
        ({"assignment": {0: ["a", "a"]}}, "expected distinct brokers"),
        ({"assignment": {0: []}}, "expected 1 to 64 brokers"),
        ({"assignment": {7: ["a"]}}, "expected partitions below 1, found 7"),
        ({"assignment": {0: ["../a/b"]}}, "expected 1 to 64 brokers"),
    ],
)
def test_impossible_topics_are_refused(cluster: Cluster, settings: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        cluster.create("flights", **settings)  # type: ignore[arg-type]
    assert list_topics(cluster.store) == []


# ---- changes of the controller ----------------------------------------------------------------------------------


class SuspendedStore(MemoryStore):
    """Runs a function once, before the first write of a state by a controller: what others do while it is suspended."""

    def __init__(self) -> None:
        super().__init__()
        self.interruption: Callable[[], object] | None = None

    def _interrupt(self, keys: Sequence[str]) -> None:
        if self.interruption is not None and any(key.startswith(f"{STATES}/") for key in keys):
            act, self.interruption = self.interruption, None
            act()

    def _create(self, key: str, value: bytes) -> int:
        self._interrupt([key])
        return super()._create(key, value)

    def _multi(self, operations: Sequence[Operation]) -> list[int | None]:
        self._interrupt([operation.key for operation in operations])
        return super()._multi(operations)


def test_suspended_controller_leaves_no_state_of_a_topic_that_was_deleted_meanwhile() -> None:
    """Nobody would remove it: no topic has this id any more."""
    with SuspendedStore() as store, closing(Cluster(store)) as cluster:
        topic = cluster.create("flights", partitions=3, replication_factor=1)
        deleted = threading.Event()

        def delete() -> None:
            delete_topic(store, "flights")
            remove_topic(store, "flights", topic.topic_id)
            deleted.set()

        store.interruption = delete
        cluster.start("a")
        assert deleted.wait(PATIENCE_S)
        until(lambda: cluster.brokers["a"].cache.topic("flights") is None)
        controller = cluster.brokers["a"].controller
        assert controller is not None
        controller.round()
        assert store.list(STATES) == []
        cluster.await_state(cluster.create("flights", replication_factor=1), lambda state: state.leader == "a")


def test_next_controller_continues_a_deletion(cluster: Cluster) -> None:
    cluster.start("a")
    topic = cluster.create("flights", partitions=3, replication_factor=1)
    until(lambda: len(cluster.states(topic)) == 3)
    cluster.stop("a")
    delete_topic(cluster.store, "flights")
    key = state_key(topic.topic_id, 1)  # it was killed after this deletion
    stored = cluster.store.get(key)
    assert stored is not None
    cluster.store.delete(key, stored.version)
    cluster.start("b")
    until(lambda: find_topic(cluster.store, "flights") is None)
    assert cluster.store.list(STATES) == []


def test_next_controller_creates_the_partitions_that_are_missing(cluster: Cluster) -> None:
    """Of a new topic, and of one that was grown."""
    cluster.start("a")
    topic = cluster.create("flights", partitions=2, replication_factor=1)
    until(lambda: len(cluster.states(topic)) == 2)
    cluster.stop("a")
    key = state_key(topic.topic_id, 0)  # it was killed before this creation
    stored = cluster.store.get(key)
    assert stored is not None
    cluster.store.delete(key, stored.version)
    grown = create_partitions(cluster.store, "flights", 4)
    created = cluster.state(grown, 1)
    assert created is not None
    cluster.start("b")
    until(lambda: len(cluster.states(grown)) == 4)
    kept = cluster.state(grown, 1)
    assert kept is not None and kept.replicas == created.replicas == ("a",)


def test_next_controller_completes_a_reassignment(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create("flights", replication_factor=2, assignment={0: ["a", "b"]})
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.change(topic, lambda state: reassign(state, ("c", "b")))
    cluster.stop("a")
    cluster.await_state(topic, lambda state: state.leader == "b" and state.target == ("c", "b"))
    cluster.change(topic, lambda state: state.with_isr((*state.isr, Member("c", 1)), {}))
    state = cluster.await_state(topic, lambda state: state.target == ())
    assert state.replicas == ("c", "b") and state.leader == "b" and state.original == ()


def test_topic_of_an_earlier_build_gets_its_partitions(cluster: Cluster) -> None:
    """Its key was created without the folder of its states."""
    topic = TopicMetadata(topic_id="0" * 32, partitions=2, replication_factor=1)
    cluster.store.create(topic_key("flights"), topic.encode())
    cluster.start("a")
    states = until(lambda: (states := cluster.states(topic)) and len(states) == 2 and states)
    assert {state.leader for state in states} == {"a"}


# ---- brokers that are dead for good -----------------------------------------------------------------------------


def test_a_broker_that_is_dead_for_good_is_replaced(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", "d")
    topic = cluster.create("flights", assignment={0: ["c", "a", "b"]}, min_isr=2)
    cluster.await_state(topic, lambda state: state.leader == "c")
    cluster.stop("c")
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.pass_time(REPLACE_S - 1)
    for broker in cluster.brokers.values():
        assert broker.controller is not None
        broker.controller.round()
    before = cluster.state(topic)
    assert before is not None and before.target == (), "not before its time"
    cluster.pass_time(1)
    state = cluster.await_state(topic, lambda state: state.target != ())
    assert state.target == ("d", "a", "b") and state.replaced == ("c",) and state.removing == ("c",)
    cluster.change(topic, lambda state: state.with_isr((*members_of(state, "ab"), Member("d", 1)), {}))
    state = cluster.await_state(topic, lambda state: state.target == ())
    assert state.replicas == ("d", "a", "b") and state.replaced == () and state.original == ()


def members_of(state: PartitionState, names: str) -> list[Member]:
    return [member for member in state.isr if member.broker in names]


def test_a_broker_that_comes_back_in_time_stays(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", "d")
    topic = cluster.create("flights", assignment={0: ["a", "b", "c"]}, min_isr=2)
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.stop("c")
    cluster.pass_time(REPLACE_S)
    cluster.await_state(topic, lambda state: state.target == ("a", "b", "d"))
    cluster.start("c")
    state = cluster.await_state(topic, lambda state: state.target == ())
    assert state.replicas == ("a", "b", "c") and state.original == state.replaced == ()


def test_a_short_absence_counts_from_its_own_beginning(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", "d")
    topic = cluster.create("flights", assignment={0: ["a", "b", "c"]}, min_isr=2)
    cluster.await_state(topic, lambda state: state.leader == "a")
    for _ in range(3):
        cluster.stop("c")
        cluster.pass_time(REPLACE_S / 2)
        cluster.start("c")
        cluster.pass_time(0)
    for broker in cluster.brokers.values():
        assert broker.controller is not None
        broker.controller.round()
    state = cluster.state(topic)
    assert state is not None and state.target == () and state.epoch.number == 1


def test_controller_does_not_replace_brokers_of_a_requested_reassignment(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", "d", "e")
    topic = cluster.create("flights", assignment={0: ["a", "b", "c"]})
    cluster.await_state(topic, lambda state: state.leader == "a")
    cluster.change(topic, lambda state: reassign(state, ("a", "b", "e")))
    for name in "ce":
        cluster.stop(name)
    cluster.pass_time(REPLACE_S)
    for broker in cluster.brokers.values():
        assert broker.controller is not None
        broker.controller.round()
    state = cluster.state(topic)
    assert state is not None and state.target == ("a", "b", "e")


def test_few_partitions_are_copied_at_once(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    count = 3 * 16
    topic = cluster.create("flights", partitions=count, assignment={at: ["a", "b"] for at in range(count)})
    until(lambda: len(cluster.states(topic)) == count and all(state.leader for state in cluster.states(topic)))
    cluster.stop("b")
    cluster.pass_time(REPLACE_S)
    seen = until(lambda: sum(bool(state.target) for state in cluster.states(topic)) >= 16)
    for broker in cluster.brokers.values():
        assert broker.controller is not None
        broker.controller.round()
    under_way = [at for at, state in enumerate(cluster.states(topic)) if state.target]
    assert seen and len(under_way) == 16
