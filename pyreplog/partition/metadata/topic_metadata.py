"""Topics of partitions in the metadata store. FORMAT.md, "Partitions in the metadata store".

The key of a topic is created first, with all decisions of its creator, together with the folder of its states, which
is empty. Controllers create the states of its partitions there. The name of the folder is the id of the topic, so that
a change for a deleted topic of the same name finds no key (KIP-516). The folder exists as long as the topic.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    KeyExistsError,
    KeyNotEmptyError,
    NoSuchKeyError,
    NoSuchTopicError,
    OutcomeUnknownError,
    TopicExistsError,
    VersionConflictError,
)
from pyreplog.metadata import values
from pyreplog.metadata.changes import delete_key
from pyreplog.metadata.operations import CheckExists, CreateKey, DeleteKey, Operation, PutValue
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue
from pyreplog.partition.metadata.topic_settings import SETTINGS, TopicSettings
from pyreplog.partition.protocol.partition_state import REPLICAS_MAX, is_broker_name
from pyreplog.topic_names import check_name, quote_name, unquote_name

TOPICS = "/partitions/topics"
STATES = "/partitions/states"
PARTITIONS_MAX = 65536
_ID_BYTES = 16
_PARTITION_DIGITS = 5
_ATTEMPTS_MAX = 64
_FIELDS = {
    "min.insync.replicas": "min_isr",
    "requires.sync": "requires_sync",
    "unclean.leader.election.enable": "unclean_election",
}
"""Settings that are fields of a topic's value, since version 1."""


def topic_key(topic: str) -> str:
    """Return the key of a topic. Raises the errors of `check_name`."""
    return f"{TOPICS}/{quote_name(check_name(topic))}"


def states_key(topic_id: str) -> str:
    """Return the key above the states of a topic's partitions."""
    return f"{STATES}/{topic_id}"


def state_key(topic_id: str, partition: int) -> str:
    """Return the key of the state of a partition."""
    return f"{STATES}/{topic_id}/{partition:0{_PARTITION_DIGITS}d}"


@dataclass(frozen=True, kw_only=True)
class TopicMetadata(MetadataValue):
    """A topic of partitions in the metadata store.

    Attributes:
        topic_id: 32 hexadecimal digits, random; no other topic ever has it.
        partitions: number of partitions; it only grows.
        replication_factor: replicas of a new partition.
        min_isr: `min.insync.replicas`: an append with acks=-1 needs so many in-sync replicas.
        requires_sync: whether a record is committed only when all in-sync replicas have synced it to disk.
        unclean_election: `unclean.leader.election.enable`: whether a replica that may lack committed records may lead,
            if no other can.
        assignment: partition -> brokers that the creator chose, the preferred leader first; controllers choose those of
            other partitions.
        created_us: when it was created, microseconds since 1970-01-01 UTC.
        is_deleted: whether it is being deleted.
        settings: settings with values other than the default, by Kafka's names, without `min.insync.replicas`,
            `requires.sync` and `unclean.leader.election.enable`, which are fields. Settings of newer builds are kept.
    """

    KIND: ClassVar[str] = "topic of partitions"
    VERSION: ClassVar[int] = 2

    topic_id: str
    partitions: int
    replication_factor: int
    min_isr: int = 1
    requires_sync: bool = False
    unclean_election: bool = False
    assignment: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    created_us: int = 0
    is_deleted: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> TopicSettings:
        """All settings, including defaults."""
        return TopicSettings.of(self._settings())

    def _settings(self) -> dict[str, Any]:
        known = {name: value for name, value in self.settings.items() if name in SETTINGS}
        return {**known, **{name: getattr(self, field) for name, field in _FIELDS.items()}}

    def check(self, error: Callable[[str], Exception]) -> None:
        """Check all numbers. Raises `error`, or ConfigError for settings."""
        bounds = (("partitions", PARTITIONS_MAX), ("replication_factor", REPLICAS_MAX), ("min_isr", REPLICAS_MAX))
        for name, most in bounds:
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise error(f"{name}: expected 1 to {most}, found {value!r}")
        for partition, brokers in self.assignment.items():
            if type(partition) is not int or not 0 <= partition < PARTITIONS_MAX:
                raise error(f"assignment: expected partitions from 0 to {PARTITIONS_MAX - 1}, found {partition!r}")
            if not 1 <= len(brokers) <= REPLICAS_MAX or not all(map(is_broker_name, brokers)):
                raise error(
                    f"assignment of partition {partition}: expected 1 to {REPLICAS_MAX} brokers, found {brokers}"
                )
            if len({*brokers}) < len(brokers):
                raise error(f"assignment of partition {partition}: expected distinct brokers, found {brokers}")
        TopicSettings.of(self._settings())

    def replicas_of(self, partition: int) -> tuple[str, ...] | None:
        """Return the brokers that the creator chose for a partition; None: controllers choose."""
        return self.assignment.get(partition)

    def _encode_fields(self) -> dict[str, Any]:
        assignment = {str(partition): list(brokers) for partition, brokers in self.assignment.items()}
        return {**super()._encode_fields(), "assignment": assignment, "settings": dict(self.settings)}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        topic_id = values.field(fields, "topic_id", str)
        if len(bytes.fromhex(topic_id)) != _ID_BYTES or topic_id != topic_id.lower():
            raise ValueError(f"topic_id: expected {2 * _ID_BYTES} hexadecimal digits, found {topic_id!r}")
        numbers = {name: values.number(fields, name) for name in ("partitions", "replication_factor", "min_isr")}
        flags = {name: values.field(fields, name, bool) for name in ("requires_sync", "unclean_election", "is_deleted")}
        chosen = values.field(fields, "assignment", dict)
        assignment = {int(partition): tuple(values.field(chosen, partition, list)) for partition in chosen}
        decoded: dict[str, Any] = {**numbers, **flags, "topic_id": topic_id, "assignment": assignment}
        decoded["created_us"] = values.number(fields, "created_us")
        decoded["settings"] = values.field(fields, "settings", dict) if "settings" in fields else {}  # since version 2
        cls(**decoded).check(ValueError)
        return decoded


def create_topic(
    store: MetadataStore,
    topic: str,
    *,
    partitions: int,
    replication_factor: int,
    now_us: int,
    min_isr: int = 1,
    requires_sync: bool = False,
    unclean_election: bool = False,
    assignment: Mapping[int, Sequence[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TopicMetadata:
    """Store a new topic. After a lost reply, its id in the store shows whether it was stored.

    Args:
        store: metadata store.
        topic: name of the topic.
        partitions: number of partitions.
        replication_factor: replicas of each partition.
        now_us: the time, microseconds since 1970-01-01 UTC.
        min_isr: see `TopicMetadata`.
        requires_sync: see `TopicMetadata`.
        unclean_election: see `TopicMetadata`.
        assignment: partition -> brokers, the preferred leader first; controllers choose those of other partitions.
        settings: values by Kafka's names, see `TopicSettings`. They override the parameters.

    Returns:
        The stored topic.

    Raises:
        TopicExistsError: a topic of that name exists, or is being deleted.
        InvalidArgumentError: an argument is out of its bounds.
        ConfigError: a setting is unknown, or out of its bounds.
        ReplogError: errors of the store.
    """
    chosen = {partition: tuple(brokers) for partition, brokers in (assignment or {}).items()}
    created = TopicMetadata(
        topic_id=secrets.token_hex(_ID_BYTES), partitions=partitions, replication_factor=replication_factor,
        min_isr=min_isr, requires_sync=requires_sync, unclean_election=unclean_election, assignment=chosen,
        created_us=now_us,
    )  # fmt: skip
    created.check(InvalidArgumentError)
    created = _with_settings(created, settings or {})
    if any(partition >= partitions for partition in chosen):
        raise InvalidArgumentError(f"assignment: expected partitions below {partitions}, found {max(chosen)}")

    key = topic_key(topic)
    for _ in range(_ATTEMPTS_MAX):
        found = find_topic(store, topic)
        if found is not None and found.topic_id != created.topic_id:
            raise TopicExistsError(topic, "it is being deleted" if found.is_deleted else "choose another name")
        if found is not None:
            return created
        with suppress(KeyExistsError, OutcomeUnknownError):
            store.multi([CreateKey(key, created.encode()), CreateKey(states_key(created.topic_id), b"")])
            return created
    raise VersionConflictError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row; try again later")


def _with_settings(topic: TopicMetadata, changes: Mapping[str, Any]) -> TopicMetadata:
    """Return a topic with other settings; None: the default. Raises ConfigError."""
    defaults = TopicSettings()
    TopicSettings.of({name: value for name, value in changes.items() if value is not None or name not in SETTINGS})
    stored, fields = dict(topic.settings), {}
    for name, value in changes.items():
        if name in _FIELDS:
            fields[_FIELDS[name]] = getattr(defaults, _FIELDS[name]) if value is None else value
        elif value is None:
            stored.pop(name, None)
        else:
            stored[name] = value
    return replace(topic, settings=stored, **fields)


def alter_topic(store: MetadataStore, topic: str, changes: Mapping[str, Any]) -> TopicMetadata:
    """Change settings of a topic while it is used. It may be called again after an OutcomeUnknownError.

    Brokers apply the settings without reopening partitions, as soon as their metadata caches have them.

    Args:
        store: metadata store.
        topic: name of the topic.
        changes: values by Kafka's names, see `TopicSettings`; None: the default. Other settings stay.

    Returns:
        The stored topic.

    Raises:
        NoSuchTopicError: there is no such topic, or it is being deleted.
        ConfigError: a setting is unknown, out of its bounds, or fixed when the topic was created. Nothing was changed.
        ReplogError: errors of the store.

    Example:
        ```python
        alter_topic(store, "orders", {"retention.ms": 86_400_000, "retention.bytes": None})
        ```
    """

    def altered(stored: TopicMetadata) -> TopicMetadata:
        if stored.is_deleted:
            raise NoSuchTopicError(topic, "it is being deleted")
        after = _with_settings(stored, changes)
        before, now = stored.config.values(), after.config.values()
        for name in changes:
            if SETTINGS[name].is_fixed and before[name] != now[name]:
                raise ConfigError(f"{name}: topic {topic} was created with {before[name]}, which cannot be changed")
        return after

    return _change(store, topic, altered)


def create_partitions(
    store: MetadataStore, topic: str, partitions: int, assignment: Mapping[int, Sequence[str]] | None = None
) -> TopicMetadata:  # fmt: skip
    """Raise the number of partitions. It may be called again after an OutcomeUnknownError.

    Args:
        store: metadata store.
        topic: name of the topic.
        partitions: the new number of partitions.
        assignment: new partition -> brokers, the preferred leader first; controllers choose those of other partitions.

    Raises:
        NoSuchTopicError: there is no such topic.
        InvalidArgumentError: the topic has more partitions, or cannot have so many; the assignment is invalid.
        ReplogError: errors of the store.
    """
    chosen = {partition: tuple(brokers) for partition, brokers in (assignment or {}).items()}

    def grown(stored: TopicMetadata) -> TopicMetadata:
        if stored.is_deleted:
            raise NoSuchTopicError(topic, "it is being deleted")
        if partitions < stored.partitions:
            raise InvalidArgumentError(f"topic {topic}: expected at least {stored.partitions}, found {partitions}")
        if stored.partitions == partitions and all(stored.assignment.get(at) == chosen[at] for at in chosen):
            return stored
        wrong = [partition for partition in chosen if not stored.partitions <= partition < partitions]
        if wrong:
            raise InvalidArgumentError(
                f"assignment: expected partitions from {stored.partitions} to {partitions - 1}, found {wrong[0]}"
            )
        after = replace(stored, partitions=partitions, assignment={**stored.assignment, **chosen})
        after.check(InvalidArgumentError)
        return after

    return _change(store, topic, grown)


grow_topic = create_partitions  # its former name


def delete_topic(store: MetadataStore, topic: str, topic_id: str | None = None) -> TopicMetadata:
    """Mark a topic as deleted; controllers delete its states, then its key.

    Args:
        store: metadata store.
        topic: name of the topic.
        topic_id: id that the topic must have: a topic of the same name that was created meanwhile stays; None: any.

    Returns:
        The deleted topic.

    Raises:
        NoSuchTopicError: there is no such topic, or it has another id.
        ReplogError: errors of the store.

    Example:
        ```python
        delete_topic(store, "orders")
        ```
    """

    def deleted(stored: TopicMetadata) -> TopicMetadata:
        if topic_id is not None and stored.topic_id != topic_id:
            raise NoSuchTopicError(topic, f"expected the topic with id {topic_id}, found {stored.topic_id}")
        return replace(stored, is_deleted=True)

    return _change(store, topic, deleted)


def _change(store: MetadataStore, topic: str, change: Callable[[TopicMetadata], TopicMetadata]) -> TopicMetadata:
    """Change a topic by compare-and-set, if its folder of states exists, and return it.

    The version alone is no proof that it is the topic that was read: with ZooKeeper, a topic of the same name that was
    created meanwhile may have this version, too.
    """
    key = topic_key(topic)
    for _ in range(_ATTEMPTS_MAX):
        stored = store.get(key)
        if stored is None:
            raise NoSuchTopicError(topic, "there is no such topic")
        before = TopicMetadata.decode(stored.value)
        after = change(before)
        value, folder = after.encode(), states_key(before.topic_id)
        if value == stored.value:
            return after
        try:
            store.multi([CheckExists(folder), PutValue(key, value, stored.version)])
            return after
        except NoSuchKeyError:
            create_states_folder(store, topic, before.topic_id)
        except (VersionConflictError, OutcomeUnknownError):
            continue
    raise VersionConflictError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row; try again later")


def create_states_folder(store: MetadataStore, topic: str, topic_id: str) -> bool:
    """Create the folder of states of a topic that an earlier build created without it.

    Args:
        store: metadata store.
        topic: name of the topic.
        topic_id: id of the topic.

    Returns:
        Whether the topic exists without being deleted, so that it has the folder now.

    Raises:
        InvalidMetadataError: the topic cannot be decoded.
        ReplogError: errors of the store.
    """
    folder = states_key(topic_id)
    if store.get(folder) is None:  # before the topic is read: a topic of this build is deleted together with its folder
        found = find_topic(store, topic)
        if found is None or found.topic_id != topic_id or found.is_deleted:
            return False
        with suppress(KeyExistsError, OutcomeUnknownError):
            store.create(folder, b"")
    return True


def remove_topic(store: MetadataStore, topic: str, topic_id: str) -> None:
    """Remove the keys of a topic that is marked as deleted. It may be called again after an error.

    The states are removed first, then their folder together with the topic's own key. Another topic of the same name,
    which was created meanwhile, stays.

    Args:
        store: metadata store.
        topic: name of the topic.
        topic_id: id of the topic.

    Raises:
        VersionConflictError: other processes created states at each attempt.
        ReplogError: errors of the store.
    """
    key, folder = topic_key(topic), states_key(topic_id)
    for _ in range(_ATTEMPTS_MAX):
        for child in store.list(folder):
            delete_key(store, f"{folder}/{child}")
        states, stored = store.get(folder), store.get(key)
        operations: list[Operation] = []
        if states is not None:
            operations.append(DeleteKey(folder, states.version))
        if stored is not None and TopicMetadata.decode(stored.value).topic_id == topic_id:
            operations.append(DeleteKey(key, stored.version))
        with suppress(VersionConflictError, NoSuchKeyError, KeyNotEmptyError, OutcomeUnknownError):
            store.multi(operations)
            return
    raise VersionConflictError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row; try again later")


def find_topic(store: MetadataStore, topic: str) -> TopicMetadata | None:
    """Return a topic; None: it does not exist. Raises InvalidMetadataError, and errors of the store."""
    stored = store.get(topic_key(topic))
    return None if stored is None else TopicMetadata.decode(stored.value)


def find_topic_ids(store: MetadataStore, names: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics by name, without those that do not exist or are being deleted.

    Args:
        store: metadata store.
        names: names of topics; those that no topic can have do not exist.

    Raises:
        InvalidMetadataError: a topic cannot be decoded.
        ReplogError: errors of the store.
    """
    keys: dict[str, str] = {}
    for name in names:
        with suppress(InvalidArgumentError):
            keys[name] = topic_key(name)
    stored = zip(keys, store.get_many(list(keys.values())), strict=True)
    topics = {name: TopicMetadata.decode(each.value) for name, each in stored if each is not None}
    return {name: topic.topic_id for name, topic in topics.items() if not topic.is_deleted}


def list_topics(store: MetadataStore) -> list[str]:
    """Return the names of all topics of partitions. Raises errors of the store."""
    return sorted(unquote_name(name) for name in store.list(TOPICS))
