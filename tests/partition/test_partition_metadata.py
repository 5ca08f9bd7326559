"""Values of partitions in the metadata store: what is written is read, and what contradicts itself is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMetadataError,
    MetadataVersionError,
    NoSuchTopicError,
    OutcomeUnknownError,
    TopicExistsError,
)
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.operations import Operation
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.replica_placement import ReplicaCounts, place_replicas
from pyreplog.partition.metadata.state_store import StateStore, machine_version
from pyreplog.partition.metadata.topic_metadata import (
    STATES,
    TopicMetadata,
    alter_topic,
    create_partitions,
    create_states_folder,
    create_topic,
    delete_topic,
    find_topic,
    list_topics,
    remove_topic,
    state_key,
    states_key,
    topic_key,
)
from pyreplog.partition.protocol.election import elect, elect_preferred, with_min_isr
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, PartitionState
from pyreplog.partition.topic_partition import TopicPartition
from tests.waiting import until

STATE = PartitionState(("a", "b", "c"), (Member("a", 1), Member("b", 1)), 2, (), "a", LeaderEpoch(3, "a"))
TOPIC = TopicMetadata(topic_id="0" * 32, partitions=2, replication_factor=2)
ALIVE = {name: BrokerRegistration(1) for name in "abc"}


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6, unique=True))
    split = draw(st.lists(st.sampled_from(["isr", "elr", ""]), min_size=len(names), max_size=len(names)))
    members = {
        kind: tuple(
            sorted(
                Member(name, draw(st.integers(0, 9)))
                for name, chosen in zip(names, split, strict=True)
                if chosen == kind
            )
        )
        for kind in ("isr", "elr")
    }
    in_sync = [member.broker for member in members["isr"]]
    leader = draw(st.sampled_from(["", *in_sync]))
    last = leader or draw(st.sampled_from(["", *names]))
    epoch = LeaderEpoch(draw(st.integers(1, 1 << 40)), last) if last else LeaderEpoch(0, "")
    target = tuple(draw(st.lists(st.sampled_from(names), unique=True)))
    return PartitionState(
        tuple(names),
        members["isr"],
        draw(st.integers(1, 5)),
        members["elr"],
        leader,
        epoch,
        target,
        draw(st.booleans()),
    )


@given(states())
def test_states_are_read_as_they_were_written(state: PartitionState) -> None:
    assert PartitionState.decode(state.encode()) == state


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"replicas": []}, "expected a replica"),
        ({"replicas": ["a", "a", "b"]}, "distinct brokers"),
        ({"replicas": ["a"]}, "expected ISR and ELR among"),
        ({"replicas": [f"b{at}" for at in range(65)]}, "at most 64"),
        ({"isr": [["b", 1], ["a", 1]]}, "in the order of their names"),
        ({"isr": [["a", -1]]}, "isr: expected 0 to"),
        ({"isr": [["a"]]}, "not enough values"),
        ({"isr": [["..", 1]]}, "distinct brokers"),
        ({"elr": [["a", 1]]}, "an ELR without members of the ISR"),
        ({"leader": "c"}, "a leader in the ISR"),
        ({"leader": "b"}, "the leader of epoch"),
        ({"epoch": [0, "a"]}, "the broker that began the epoch"),
        ({"epoch": [1 << 63, "a"]}, "epoch: expected 0 to"),
        ({"epoch": 3}, "epoch: expected list"),
        ({"target": ["d"]}, "a target among"),
        ({"min_isr": 0}, "min_isr of 1 to 64"),
        ({"is_unclean": 1}, "is_unclean: expected bool"),
    ],
)
def test_states_that_contradict_themselves_are_refused(change: dict[str, Any], expected: str) -> None:
    stored = {**json.loads(STATE.encode()), **change}
    with pytest.raises(InvalidMetadataError, match=expected):
        PartitionState.decode(json.dumps(stored).encode())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topic_id": "zz"}, "non-hexadecimal"),
        ({"topic_id": "0" * 30}, "32 hexadecimal digits"),
        ({"partitions": 0}, "partitions: expected 1 to 65536"),
        ({"partitions": 1 << 40}, "partitions: expected 1 to 65536"),
        ({"replication_factor": True}, "replication_factor: expected int"),
        ({"assignment": {"x": ["a"]}}, "invalid literal"),
        ({"assignment": {"0": ["a/b"]}}, "expected 1 to 64 brokers"),
        ({"assignment": {"0": "ab"}}, "0: expected list"),
        ({"assignment": {"70000": ["a"]}}, "partitions from 0 to 65535"),
        ({"is_deleted": None}, "is_deleted: expected bool"),
    ],
)
def test_topics_that_cannot_be_are_refused(change: dict[str, Any], expected: str) -> None:
    stored = {**json.loads(TOPIC.encode()), **change}
    with pytest.raises(InvalidMetadataError, match=expected):
        TopicMetadata.decode(json.dumps(stored).encode())


@pytest.mark.parametrize("value", [STATE, TOPIC], ids=["state", "topic"])
def test_metadata_for_a_newer_reader_raises_metadata_version_error(value: PartitionState | TopicMetadata) -> None:
    with pytest.raises(MetadataVersionError):
        type(value).decode(json.dumps({**json.loads(value.encode()), "min_reader": 3}).encode())


# ---- placement --------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 8), st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 20)
)  # fmt: skip
def test_replicas_are_placed_evenly_over_brokers_and_racks(
    brokers: int, partitions: int, factor: int, racks: int, seed: int
) -> None:
    names = {f"b{at}": f"r{at % racks}" for at in range(brokers)}
    factor = min(factor, brokers)
    placed = place_replicas(str(seed), range(partitions), factor, names)
    assert placed == place_replicas(str(seed), range(partitions), factor, names), "all controllers choose the same"
    leaders = [sum(replicas[0] == name for replicas in placed.values()) for name in names]
    assert max(leaders) - min(leaders) <= 1
    for replicas in placed.values():
        assert len({*replicas}) == factor
        most = min(factor, len({*names.values()}))
        assert len({names[name] for name in replicas}) == most, "as many racks as there are"


def test_placement_looks_at_what_brokers_have() -> None:
    present = ReplicaCounts()
    for number in range(4):
        present.set("other", number, ("a", "b"))
    placed = place_replicas("t", range(4), 2, dict.fromkeys("abcd", ""), present)
    assert sorted(replicas[0] for replicas in placed.values()) == ["b", "c", "c", "d"] or sorted(
        replicas[0] for replicas in placed.values()
    ) == ["b", "c", "d", "d"]
    assert all("a" not in replicas for replicas in placed.values())
    with pytest.raises(InvalidArgumentError, match="at most 2, the number of brokers, of which 2 are alive, found 3"):
        place_replicas("t", [0], 3, {"a": "", "b": ""})


def test_racks_count_more_than_load() -> None:
    racks = {"a": "one", "b": "one", "c": "two"}
    present = ReplicaCounts()
    for number in range(9):
        present.set("other", number, ("c", "c"))
    placed = place_replicas("t", range(3), 2, racks, present)
    assert all("c" in replicas for replicas in placed.values())


def test_counts_of_replicas_follow_the_partitions() -> None:
    counts = ReplicaCounts()
    for number in range(3):
        counts.set("t", number, ("a", "b"))
    counts.set("u", 0, ("b", "c"))
    counts.set("t", 1, ("c", "a"))
    assert (+counts.leaders, +counts.replicas) == ({"a": 2, "b": 1, "c": 1}, {"a": 3, "b": 3, "c": 2})
    counts.set("t", 1, ())
    assert (+counts.leaders, +counts.replicas) == ({"a": 2, "b": 1}, {"a": 2, "b": 3, "c": 1})
    counts.remove_topic("t")
    assert (+counts.leaders, +counts.replicas) == ({"b": 1}, {"b": 1, "c": 1})


# ---- preferred leaders, min ISR -----------------------------------------------------------------------------------


def test_the_preferred_leader_takes_over_only_from_within_the_isr() -> None:
    state = STATE.led_by("b")
    after = elect_preferred(state, ALIVE)
    assert after is not None and after.leader == "a" and after.epoch > state.epoch and after.isr == state.isr
    assert elect_preferred(STATE, ALIVE) is None
    assert elect_preferred(state.with_isr((Member("b", 1),), {}), ALIVE) is None
    for registration in (BrokerRegistration(1, is_fenced=True), BrokerRegistration(1, is_stopping=True)):
        assert elect_preferred(state, {**ALIVE, "a": registration}) is None
    assert elect_preferred(state, {**ALIVE, "a": BrokerRegistration(2)}) is None, "another incarnation"


def test_a_lower_min_isr_ends_the_eligibility_of_members_that_left() -> None:
    """From then on the ISR commits without them."""
    alone = STATE.with_isr((Member("a", 1),), {})
    assert alone.elr == (Member("b", 1),)
    lowered = with_min_isr(alone, 1)
    assert lowered.elr == () and lowered.min_isr == 1 and with_min_isr(lowered, 1) is lowered
    elected = elect(lowered, {**ALIVE, "a": BrokerRegistration(1, is_fenced=True)}, requires_sync=False)
    assert elected is None or elected.leader == "", "b may lack what was committed since"


class _RecordingListener:
    """Notes the topics that changed, and those whose states were read when it was told of that."""

    def __init__(self) -> None:
        self.cache: MetadataCache | None = None
        self.changed: set[str] = set()
        self.read: set[str] = set()

    def topics_changed(self, topics: Set[str]) -> None:
        self.changed |= topics
        if self.cache is not None:
            self.read |= set(filter(self.cache.has_states, topics))

    def brokers_changed(self) -> None: ...

    def states_changed(self, partitions: Set[PartitionId]) -> None: ...


def test_listener_is_notified_of_a_new_topic_without_states() -> None:
    """Else the controller, which places partitions of topics whose states it has read, would notice a second later."""
    with MemoryStore() as store:
        listener = _RecordingListener()
        listener.cache = MetadataCache(store, listener, lambda again: again())
        topic = create_topic(store, "flights", partitions=1, replication_factor=1, now_us=1)
        until(lambda: topic.topic_id in listener.read)
        listener.cache.close()


def test_listener_is_notified_only_of_changed_topics() -> None:
    with MemoryStore() as store:
        listener = _RecordingListener()
        listener.cache = cache = MetadataCache(store, listener, lambda again: again())
        first, other = (create_topic(store, name, partitions=1, replication_factor=1, now_us=1) for name in ("a", "b"))
        until(lambda: listener.read == {first.topic_id, other.topic_id})
        listener.changed.clear()
        stored = store.get(topic_key("a"))
        assert stored is not None
        store.put(topic_key("a"), replace(first, is_deleted=True).encode(), stored.version)
        until(lambda: listener.changed)
        assert (cache.topic_name(first.topic_id), cache.topic_name(other.topic_id)) == (None, "b")
        assert cache.topic_by_id(first.topic_id) == ("a", replace(first, is_deleted=True))
        store.delete(topic_key("a"), stored.version + 1)
        until(lambda: cache.topic_by_id(first.topic_id) is None)
        again = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        until(lambda: again.topic_id in listener.read)
        assert listener.changed == {first.topic_id, again.topic_id}
        assert not cache.has_states(first.topic_id)
        cache.close()


def test_watcher_of_deletions_is_called_once_for_each_deleted_topic() -> None:
    with MemoryStore() as store:
        deletions: list[list[str]] = []
        cache = MetadataCache(store, _RecordingListener(), lambda again: again())
        end = cache.watch_deletions(lambda names: deletions.append(sorted(names)))
        for name in ("a", "b"):
            create_topic(store, name, partitions=1, replication_factor=1, now_us=1)
        delete_topic(store, "a")
        until(lambda: deletions == [["a"]])
        stored = store.get(topic_key("a"))
        assert stored is not None
        store.delete(topic_key("a"), stored.version)
        until(lambda: cache.topic("a") is None)
        again = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        until(lambda: cache.topic_name(again.topic_id) == "a")
        stored = store.get(topic_key("a"))
        assert stored is not None and deletions == [["a"]]
        store.put(topic_key("a"), replace(again, topic_id="1" * 32).encode(), stored.version)
        until(lambda: deletions == [["a"], ["a"]])
        end()
        delete_topic(store, "b")
        until(lambda: (topic := cache.topic("b")) is not None and topic.is_deleted)
        assert len(deletions) == 2
        cache.close()


def test_state_of_a_deleted_topic_is_not_stored_for_a_new_one_with_its_name() -> None:
    """Else a leader of the old one, which does not know of the deletion yet, would set ISR and epoch of the new one."""
    name = TopicPartition("a", 0)
    with MemoryStore() as store, StateStore(store) as states:
        former = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        before = states.of_topic(former.topic_id)
        store.delete(topic_key("a"), 0)
        again = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        key = state_key(again.topic_id, 0)
        version = store.create(key, STATE.encode())
        results: list[int | None] = []
        before.compare_and_set(name, machine_version(version), replace(STATE, min_isr=7), results.append)
        until(lambda: results)
        stored = store.get(key)
        assert results == [0] and stored is not None and stored.value == STATE.encode()
        after = states.of_topic(again.topic_id)
        loaded: list[tuple[int, PartitionState]] = []
        before.load(name, lambda *read: loaded.append(read))
        after.load(name, lambda *read: loaded.append(read))
        until(lambda: loaded)
        after.compare_and_set(name, machine_version(version), replace(STATE, min_isr=2), results.append)
        until(lambda: len(results) == 2)
        assert loaded == [(machine_version(version), STATE)] and results[1] == machine_version(version) + 1


def test_a_topic_that_replaces_another_one_in_its_key_is_a_new_one() -> None:
    """A process may see only the last of several changes."""
    with MemoryStore() as store:
        listener = _RecordingListener()
        listener.cache = cache = MetadataCache(store, listener, lambda again: again())
        former = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        store.create(state_key(former.topic_id, 0), STATE.encode())
        until(lambda: cache.partitions(former.topic_id))
        stored = store.get(topic_key("a"))
        assert stored is not None
        store.put(topic_key("a"), replace(former, topic_id="1" * 32).encode(), stored.version)
        until(lambda: "1" * 32 in listener.read)
        assert former.topic_id in listener.changed
        assert (cache.topic_by_id(former.topic_id), cache.partitions(former.topic_id)) == (None, [])
        assert cache.topic_name("1" * 32) == "a"
        cache.close()


# ---- topics of one name -----------------------------------------------------------------------------------------


class _InterruptedStore(MemoryStore):
    """Runs a function once, right after a read of a key: what other processes do while this one is suspended."""

    def __init__(self) -> None:
        super().__init__()
        self._interruptions: dict[str, Callable[[], object]] = {}

    def interrupt(self, key: str, act: Callable[[], object]) -> None:
        self._interruptions[key] = act

    def _get(self, key: str) -> Versioned | None:
        stored = super()._get(key)
        if (act := self._interruptions.pop(key, None)) is not None:
            act()
        return stored


@pytest.fixture
def interrupted_store() -> Iterator[_InterruptedStore]:
    with _InterruptedStore() as store:
        yield store


def _replace_topic(store: MetadataStore, topic: TopicMetadata) -> TopicMetadata:
    """Delete the topic "a" as a controller does, and create another one of that name, whose key has the same version."""
    delete_topic(store, "a")
    remove_topic(store, "a", topic.topic_id)
    return create_topic(store, "a", partitions=2, replication_factor=1, now_us=2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda store: alter_topic(store, "a", {"retention.ms": 7}), {"settings": {"retention.ms": 7}}),
        (lambda store: create_partitions(store, "a", 5), {"partitions": 5}),
        (lambda store: delete_topic(store, "a"), {"is_deleted": True}),
    ],
    ids=["alter", "grow", "delete"],
)
def test_change_of_a_topic_does_not_bring_back_a_deleted_one_of_that_name(
    interrupted_store: _InterruptedStore, change: Callable[[MetadataStore], TopicMetadata], expected: dict[str, Any]
) -> None:
    """With ZooKeeper, versions begin again when a key is created again: the version is no proof of the topic's id."""
    store = interrupted_store
    created: list[TopicMetadata] = []
    former = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
    store.interrupt(topic_key("a"), lambda: created.append(_replace_topic(store, former)))
    changed = change(store)
    assert changed == find_topic(store, "a") == replace(created[0], **expected)


def test_deletion_of_a_topic_by_its_id_spares_a_later_one_of_that_name(interrupted_store: _InterruptedStore) -> None:
    store = interrupted_store
    created: list[TopicMetadata] = []
    former = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
    store.interrupt(topic_key("a"), lambda: created.append(_replace_topic(store, former)))
    with pytest.raises(NoSuchTopicError, match=former.topic_id):
        delete_topic(store, "a", former.topic_id)
    assert find_topic(store, "a") == created[0]


def test_removal_of_a_deleted_topic_spares_a_later_one_of_that_name(interrupted_store: _InterruptedStore) -> None:
    """A controller that was suspended between the read of the key and its deletion."""
    store = interrupted_store
    created: list[TopicMetadata] = []

    def replace_topic() -> None:
        _replace_topic(store, former)
        created.append(alter_topic(store, "a", {"retention.ms": 7}))  # now its key has the version of the deleted one

    former = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
    store.create(state_key(former.topic_id, 0), STATE.encode())
    delete_topic(store, "a")
    store.interrupt(topic_key("a"), replace_topic)
    remove_topic(store, "a", former.topic_id)
    assert find_topic(store, "a") == created[0] and store.list(STATES) == [created[0].topic_id]


def test_topic_and_its_folder_of_states_are_created_together(interrupted_store: _InterruptedStore) -> None:
    topic = create_topic(interrupted_store, "a", partitions=1, replication_factor=1, now_us=1)
    assert interrupted_store.list(STATES) == [topic.topic_id]
    with pytest.raises(TopicExistsError, match="choose another name"):
        create_topic(interrupted_store, "a", partitions=1, replication_factor=1, now_us=1)
    assert interrupted_store.list(STATES) == [topic.topic_id]


def test_removal_of_a_topic_removes_a_state_that_is_created_meanwhile(interrupted_store: _InterruptedStore) -> None:
    """By a controller of an earlier build that was suspended."""
    store = interrupted_store
    topic = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
    delete_topic(store, "a")
    store.interrupt(states_key(topic.topic_id), lambda: store.create(state_key(topic.topic_id, 0), STATE.encode()))
    remove_topic(store, "a", topic.topic_id)
    assert (store.list(STATES), list_topics(store)) == ([], [])


def test_removal_of_a_topic_continues_after_each_step(interrupted_store: _InterruptedStore) -> None:
    """A controller may be killed between any two writes; earlier builds deleted the folder of states before the key."""
    store = interrupted_store
    for removed in (["0"], ["0", "1"], ["0", "1", "folder"]):
        topic = create_topic(store, "a", partitions=2, replication_factor=1, now_us=1)
        keys = {
            "0": state_key(topic.topic_id, 0),
            "1": state_key(topic.topic_id, 1),
            "folder": states_key(topic.topic_id),
        }
        for number in "01":
            store.create(keys[number], STATE.encode())
        delete_topic(store, "a")
        for name in removed:
            store.delete(keys[name], 0)
        remove_topic(store, "a", topic.topic_id)
        assert (store.list(STATES), list_topics(store)) == ([], [])


def test_topic_of_an_earlier_build_gets_its_folder_of_states(interrupted_store: _InterruptedStore) -> None:
    """Those built it with the first state."""
    store, topic = interrupted_store, TOPIC
    store.create(topic_key("a"), topic.encode())
    assert store.get(states_key(topic.topic_id)) is None
    assert alter_topic(store, "a", {"retention.ms": 7}).settings == {"retention.ms": 7}
    assert store.get(states_key(topic.topic_id)) is not None
    delete_topic(store, "a")
    remove_topic(store, "a", topic.topic_id)
    assert (store.list(STATES), list_topics(store)) == ([], [])
    assert not create_states_folder(store, "a", topic.topic_id), "it is deleted"
    again = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
    assert not create_states_folder(store, "a", topic.topic_id), "the name is that of another topic"
    assert create_states_folder(store, "a", again.topic_id) and store.list(STATES) == [again.topic_id]


class _UnsureStore(MemoryStore):
    """Loses the answer to its first transaction.

    is_done: whether the transaction is done.
    """

    def __init__(self, *, is_done: bool) -> None:
        super().__init__()
        self._is_done, self.is_unsure = is_done, False

    def _multi(self, operations: Sequence[Operation]) -> list[int | None]:
        if not self.is_unsure:
            return super()._multi(operations)
        self.is_unsure = False
        if self._is_done:
            super()._multi(operations)
        raise OutcomeUnknownError("the answer was lost")


@pytest.mark.parametrize("is_done", [True, False])
def test_changes_of_a_topic_find_out_what_a_lost_answer_was(is_done: bool) -> None:
    with _UnsureStore(is_done=is_done) as store:
        store.is_unsure = True
        topic = create_topic(store, "a", partitions=1, replication_factor=1, now_us=1)
        assert find_topic(store, "a") == topic and store.list(STATES) == [topic.topic_id]
        changes: list[tuple[Callable[[], TopicMetadata], dict[str, Any]]] = [
            (lambda: alter_topic(store, "a", {"retention.ms": 7}), {"settings": {"retention.ms": 7}}),
            (lambda: create_partitions(store, "a", 5), {"partitions": 5}),
            (lambda: delete_topic(store, "a"), {"is_deleted": True}),
        ]
        for change, expected in changes:
            store.is_unsure = True
            topic = replace(topic, **expected)
            assert change() == find_topic(store, "a") == topic and not store.is_unsure
        store.is_unsure = True
        remove_topic(store, "a", topic.topic_id)
        assert (store.list(STATES), list_topics(store), store.is_unsure) == ([], [], False)
