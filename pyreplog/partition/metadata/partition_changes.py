"""Requests of operators for single partitions: reassign, cancel a reassignment, elect a leader. They need no broker.

Each changes the state of a partition by compare-and-set, and has its own outcome. Brokers then copy replicas, and the
controller completes reassignments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pyreplog.errors import KeyExistsError, NoSuchKeyError, OutcomeUnknownError, ReplogError, VersionConflictError
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.broker_registration import (
    AVAILABLE,
    BROKERS,
    BrokerAvailability,
    BrokerMetadata,
    available_key,
    broker_key,
    registrations_of,
)
from pyreplog.partition.metadata.topic_metadata import (
    TopicMetadata,
    find_topic,
    list_topics,
    state_key,
    states_key,
)
from pyreplog.partition.protocol.election import cancel_reassignment, elect, elect_preferred, reassign
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import (
    REPLICAS_MAX,
    BrokerRegistration,
    Brokers,
    PartitionState,
    is_broker_name,
)
from pyreplog.partition.topic_partition import TopicPartition

_ATTEMPTS_MAX = 64


class PartitionResult(NamedTuple):
    """The outcome of a request for one partition.

    Attributes:
        code: NONE, or the error, after which nothing was changed; REQUEST_TIMED_OUT: the outcome is unknown.
        message: the error in words.
    """

    code: ErrorCode
    message: str = ""


class Reassignment(NamedTuple):
    """A reassignment that is under way.

    Attributes:
        replicas: all replicas of the partition, new ones first.
        adding: new replicas.
        removing: replicas that are removed at the end.
        target: the replicas at the end, the preferred leader first.
    """

    replicas: tuple[str, ...]
    adding: tuple[str, ...]
    removing: tuple[str, ...]
    target: tuple[str, ...]


class ElectionType(Enum):
    """The kinds of elections of `elect_leaders` (KIP-460)."""

    PREFERRED = "preferred"
    """Elects the first replica, in place of another leader."""
    UNCLEAN = "unclean"
    """Elects a replica of a partition without a leader; it may lack committed records."""


_Change = Callable[[TopicMetadata, PartitionState, bool], PartitionState | PartitionResult]
"""Computes a change from a topic, the state of a partition, and whether an earlier attempt has an unknown outcome."""


def read_brokers(store: MetadataStore) -> dict[str, BrokerRegistration]:
    """Return the registrations of brokers, by name. Raises InvalidMetadataError, and errors of the store."""
    brokers, available = {}, {}
    for name in store.list(BROKERS):
        if (stored := store.get(broker_key(name))) is not None:
            brokers[name] = BrokerMetadata.decode(stored.value)
    for name in store.list(AVAILABLE):
        if (stored := store.get(available_key(name))) is not None:
            available[name] = BrokerAvailability.decode(stored.value)
    return registrations_of(brokers, available)


def reassign_partitions(
    store: MetadataStore, targets: Mapping[TopicPartition, Sequence[str] | None]
) -> dict[TopicPartition, PartitionResult]:  # fmt: skip
    """Begin reassignments of partitions, or cancel them (KIP-455).

    New replicas are copied while the old ones serve. When the new ones are in the ISR, the controller completes the
    reassignment, and the removed replicas' brokers remove their logs. While a new replica's broker is dead, the
    reassignment cannot complete: request another target, or cancel it.

    Args:
        store: metadata store.
        targets: partition -> names of brokers, the preferred leader first; None: cancel the reassignment under way, so
            that its original replicas return. A new target replaces one under way.

    Returns:
        By partition NONE, or UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS,
        REQUEST_TIMED_OUT.

    Raises:
        ReplogError: the brokers cannot be read; nothing was changed.

    Example:
        ```python
        reassign_partitions(store, {TopicPartition("orders", 0): ["d", "b", "c"]})
        ```
    """
    brokers = read_brokers(store)
    results = {}
    for partition, target in targets.items():
        if target is None:
            results[partition] = _change_state(store, partition, _Cancel(brokers))
        elif message := _target_error(target, brokers):
            results[partition] = PartitionResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        else:
            results[partition] = _change_state(store, partition, _Reassign(tuple(target)))
    return results


def _target_error(target: Sequence[str], brokers: Brokers) -> str:
    """Return the error of a target; "": it is valid."""
    if not 1 <= len(target) <= REPLICAS_MAX or not all(map(is_broker_name, target)):
        return f"expected 1 to {REPLICAS_MAX} names of brokers, found {str(target)[:200]}"
    if len({*target}) < len(target):
        return f"expected distinct brokers, found {', '.join(target)}"
    unknown = [name for name in target if name not in brokers]
    return f"expected registered brokers, found {', '.join(unknown)}" if unknown else ""


class _Reassign:
    """Begins a reassignment. A state that already has this target counts as success."""

    def __init__(self, target: tuple[str, ...]) -> None:
        self._target = target

    def __call__(
        self, topic: TopicMetadata, state: PartitionState, is_unknown: bool
    ) -> PartitionState | PartitionResult:  # fmt: skip
        if (state.target or state.replicas) == self._target and not state.replaced:
            return state
        after = reassign(state, self._target)
        if len(after.replicas) > REPLICAS_MAX:
            message = f"expected at most {REPLICAS_MAX} replicas with those that go, found {len(after.replicas)}"
            return PartitionResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        return after


class _Cancel:
    """Cancels a reassignment. After an attempt with an unknown outcome, a state without one counts as success."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._replicas: tuple[str, ...] = ()

    def __call__(self, _: TopicMetadata, state: PartitionState, is_unknown: bool) -> PartitionState | PartitionResult:
        if not state.target:
            if is_unknown and state.replicas == self._replicas:
                return state
            return PartitionResult(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is under way")
        after = cancel_reassignment(state, self._brokers)
        if after is None:
            message = "none of the replicas before the reassignment is in sync and alive: a cancel would lose records"
            return PartitionResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        self._replicas = after.replicas
        return after


def list_reassignments(
    store: MetadataStore, topics: Iterable[str] | None = None
) -> dict[TopicPartition, Reassignment]:  # fmt: skip
    """Return the reassignments that are under way.

    Args:
        store: metadata store.
        topics: names of topics; None: all topics.

    Raises:
        InvalidMetadataError: a value is malformed.
        ReplogError: errors of the store.
    """
    return {
        partition: Reassignment(state.replicas, state.adding, state.removing, state.target)
        for partition, state in read_states(store, topics)
        if state.target
    }


def read_states(
    store: MetadataStore, topics: Iterable[str] | None = None
) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """Iterate over partitions and their states, in the order of topics and numbers.

    Args:
        store: metadata store.
        topics: names of topics; None: all topics. Topics that do not exist, or are being deleted, are skipped.

    Raises:
        InvalidMetadataError: a value is malformed.
        ReplogError: errors of the store.
    """
    for name in list_topics(store) if topics is None else topics:
        topic = find_topic(store, name)
        if topic is None or topic.is_deleted:
            continue
        for number in sorted(int(child) for child in store.list(states_key(topic.topic_id)) if child.isdecimal()):
            stored = store.get(state_key(topic.topic_id, number))
            if stored is not None:
                yield TopicPartition(name, number), PartitionState.decode(stored.value)


def elect_leaders(
    store: MetadataStore, election_type: ElectionType, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, PartitionResult]:  # fmt: skip
    """Elect leaders at once (KIP-460).

    Args:
        store: metadata store.
        election_type: the kind of election.
        partitions: the partitions; None: all, and those with ELECTION_NOT_NEEDED are left out of the result.

    Returns:
        By partition NONE, or UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, REQUEST_TIMED_OUT.

    Raises:
        ReplogError: the brokers or the topics cannot be read; nothing was changed.
    """
    brokers = read_brokers(store)
    chosen = [name for name, _ in read_states(store, None)] if partitions is None else partitions
    results = {name: _change_state(store, name, _Elect(election_type, brokers)) for name in chosen}
    if partitions is None:
        return {name: at for name, at in results.items() if at.code is not ErrorCode.ELECTION_NOT_NEEDED}
    return results


class _Elect:
    """Elects a leader. After an attempt with an unknown outcome, a state with a leader counts as success."""

    def __init__(self, election_type: ElectionType, brokers: Brokers) -> None:
        self._type, self._brokers = election_type, brokers

    def __call__(
        self, topic: TopicMetadata, state: PartitionState, is_unknown: bool
    ) -> PartitionState | PartitionResult:
        is_preferred = self._type is ElectionType.PREFERRED
        if state.leader == state.replicas[0] if is_preferred else state.leader:
            if is_unknown:
                return state
            return PartitionResult(ErrorCode.ELECTION_NOT_NEEDED, f"{state.leader} leads")
        if is_preferred:
            after = elect_preferred(state, self._brokers)
            if after is None:
                message = f"{state.replicas[0]} is not in sync, or not alive"
                return PartitionResult(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
            return after
        after = elect(state, self._brokers, requires_sync=topic.requires_sync, unclean=True)
        if after is None or not after.leader:
            message = f"none of {', '.join(state.replicas)} is alive"
            return PartitionResult(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
        return after


def _change_state(store: MetadataStore, partition: TopicPartition, change: _Change) -> PartitionResult:
    """Change the state of a partition by compare-and-set; retry after version conflicts."""
    is_unknown = False
    try:
        topic = find_topic(store, partition.topic)
        if topic is None or topic.is_deleted:
            return PartitionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {partition.topic}")
        key = state_key(topic.topic_id, partition.partition)
        for _ in range(_ATTEMPTS_MAX):
            stored = store.get(key)
            if stored is None:
                return PartitionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
            before = PartitionState.decode(stored.value)
            after = change(topic, before, is_unknown)
            if isinstance(after, PartitionResult):
                return after
            if after == before:
                return PartitionResult(ErrorCode.NONE)
            try:
                store.put(key, after.encode(), stored.version)
            except OutcomeUnknownError:
                is_unknown = True
                continue
            except (KeyExistsError, VersionConflictError, NoSuchKeyError):
                continue
            return PartitionResult(ErrorCode.NONE)
    except ReplogError as error:
        code = ErrorCode.REQUEST_TIMED_OUT if is_unknown else ErrorCode.UNKNOWN_SERVER_ERROR
        return PartitionResult(code, f"{type(error).__name__}: {error}")
    return PartitionResult(ErrorCode.REQUEST_TIMED_OUT, f"{key} was changed by others {_ATTEMPTS_MAX} times in a row")
