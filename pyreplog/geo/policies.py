"""Policies and orders to replicators in the metadata store, and the configuration that one process read from it.

A policy belongs to one topic, or to all topics whose names have a prefix. The policy of a topic has precedence over
those of prefixes, and a longer prefix over a shorter one. A partition has the policy of its topic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from pyreplog.errors import InvalidMetadataError
from pyreplog.geo.clusters import RemoteCluster, load_clusters
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.revision import raise_revision
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic_names import check_name, quote_name, unquote_name

TOPICS = "/geo/topics"
PREFIXES = "/geo/policies"
CONTROLS = "/geo/controls"

T = TypeVar("T", bound=MetadataValue)
_KNOWN = {item.name for item in dataclasses.fields(ReplicationPolicy)}
_LISTS = ("targets", "replicated_from")


@dataclass(frozen=True, kw_only=True)
class StoredPolicy(MetadataValue):
    """The policy of a topic or a prefix in the metadata store.

    Attributes:
        settings: the fields of ReplicationPolicy that differ from the defaults. Unknown fields are kept.
    """

    KIND: ClassVar[str] = "replication policy"

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def policy(self) -> ReplicationPolicy:
        """The settings without unknown fields. Raises ConfigError if one is invalid."""
        settings = {name: value for name, value in self.settings.items() if name in _KNOWN}
        return ReplicationPolicy.of(settings)

    def with_policy(self, policy: ReplicationPolicy) -> StoredPolicy:
        """Return a copy with another policy and the same unknown fields."""
        defaults = vars(ReplicationPolicy())
        unknown = {name: value for name, value in self.settings.items() if name not in _KNOWN}
        chosen = {name: value for name, value in vars(policy).items() if value != defaults[name]}
        return replace(self, settings={**unknown, **chosen})

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        stored = cls(settings=field(fields, "settings", dict))
        _ = stored.policy  # raises ConfigError
        for name in _LISTS:
            if stored.settings.get(name) is not None and type(stored.settings[name]) is not list:
                raise TypeError(f"{name}: expected a list, found {stored.settings[name]!r}")
        return fields


@dataclass(frozen=True, kw_only=True)
class TopicControls(MetadataValue):
    """Orders of operators to the replicators of a topic.

    Attributes:
        paused: targets that get no messages until `resume`.
        resync: targets whose `resync` was ordered and has not begun.
    """

    KIND: ClassVar[str] = "controls of replication"

    paused: tuple[str, ...] = ()
    resync: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no order; the key may be deleted then."""
        return self == TopicControls()

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in ("paused", "resync"):
            fields[name] = tuple(_texts(name, field(fields, name, list)))
        return fields


def _texts(name: str, values: list[Any]) -> list[str]:
    if not all(type(value) is str for value in values):
        raise TypeError(f"{name}: expected texts, found {values!r}")
    return values


# ---- single keys -----------------------------------------------------------------------------------------------


def policy_key(name: str, *, prefix: bool) -> str:
    """Return the key of the policy of a topic or a prefix. Raises the errors of `check_name`.

    The key of a prefix ends with "*". The key of the empty prefix, that of all topics, is "*"; a prefix's own "*" is
    quoted.
    """
    if not prefix:
        return f"{TOPICS}/{quote_name(check_name(name))}"
    return f"{PREFIXES}/{quote_name(check_name(name) if name else '')}*"


def change_policy(
    store: MetadataStore, name: str, change: Callable[[ReplicationPolicy], ReplicationPolicy], *, prefix: bool
) -> ReplicationPolicy:
    """Change the policy of a topic or a prefix, or create it.

    Args:
        store: metadata store.
        name: the topic, or the prefix.
        change: gets the policy, or the defaults, and returns the new one; may be called several times.
        prefix: whether `name` is a prefix.

    Raises:
        ConfigError: from `change`.
        InvalidMetadataError: the stored policy cannot be read.
        ReplogError: errors of the store.
    """
    changed = ReplicationPolicy()

    def change_value(value: bytes | None) -> bytes:
        nonlocal changed
        stored = StoredPolicy() if value is None else StoredPolicy.decode(value)
        changed = change(stored.policy)
        encoded = stored.with_policy(changed).encode()
        return value if value is not None and StoredPolicy.decode(encoded) == stored else encoded

    change_key(store, policy_key(name, prefix=prefix), change_value)
    raise_revision(store)
    return changed


def delete_policy(store: MetadataStore, name: str, *, prefix: bool) -> bool:
    """Delete the policy of a topic or a prefix; return whether it existed. Raises errors of the store."""
    key = policy_key(name, prefix=prefix)
    existed = store.get(key) is not None
    if existed:
        change_key(store, key, lambda _: None)
        raise_revision(store)
    return existed


def change_controls(store: MetadataStore, topic: str, change: Callable[[TopicControls], TopicControls]) -> None:
    """Change the controls of a topic.

    Args:
        store: metadata store.
        topic: name of the topic.
        change: gets the controls, and returns the new ones; may be called several times.

    Raises:
        InvalidMetadataError: the stored controls cannot be read.
        ReplogError: errors of the store.
    """

    def change_value(value: bytes | None) -> bytes | None:
        stored = TopicControls() if value is None else TopicControls.decode(value)
        changed = change(stored)
        if changed == stored:
            return value
        return None if changed.is_empty else changed.encode()

    change_key(store, f"{CONTROLS}/{quote_name(check_name(topic))}", change_value)
    raise_revision(store)


# ---- the configuration -----------------------------------------------------------------------------------------


class ReplicationConfig:
    """All clusters, policies and controls of one read. An error stands for a value that cannot be read.

    Args:
        clusters: remote clusters by name.
        topics: policies of topics.
        prefixes: policies of prefixes.
        controls: controls by topic.
    """

    def __init__(
        self,
        clusters: Mapping[str, RemoteCluster | InvalidMetadataError] | None = None,
        topics: Mapping[str, StoredPolicy | InvalidMetadataError] | None = None,
        prefixes: Mapping[str, StoredPolicy | InvalidMetadataError] | None = None,
        controls: Mapping[str, TopicControls | InvalidMetadataError] | None = None,
    ) -> None:
        self.clusters, self.controls = clusters or {}, controls or {}
        self.topics = {name: _policy(stored) for name, stored in (topics or {}).items()}
        self.prefixes = {name: _policy(stored) for name, stored in (prefixes or {}).items()}
        self._lengths = sorted({len(prefix) for prefix in self.prefixes}, reverse=True)

    @property
    def cluster_ids(self) -> dict[str, str]:
        """The ids of the remote clusters that can be read, 32 hexadecimal digits, by name."""
        return {name: known.id.hex() for name, known in self.clusters.items() if isinstance(known, RemoteCluster)}

    def policy_of(self, topic: str) -> ReplicationPolicy | None:
        """Return the policy that holds for a topic or a partition; None: no policy does.

        Raises:
            InvalidMetadataError: the policy cannot be read: it is unknown whether the topic is replicated.
        """
        policy = self._policy_of(topic)
        if isinstance(policy, InvalidMetadataError):
            raise policy
        return policy

    def targets_of(self, topic: str) -> tuple[str, ...]:
        """Return the names of the clusters to which a topic or a partition is sent, known or unknown ones.

        Raises:
            InvalidMetadataError: the policy cannot be read: it is unknown whether the topic is replicated.
        """
        policy = self.policy_of(topic)
        return () if policy is None or policy.direction != "send" else policy.targets

    def subscription_targets_of(self, topic: str) -> tuple[str, ...]:
        """Return the names of the clusters with which the subscriptions of a topic are replicated, in any direction.

        Raises:
            InvalidMetadataError: the policy cannot be read: it is unknown whether they are replicated.
        """
        policy = self.policy_of(topic)
        return policy.targets if policy is not None and policy.replicated_subscriptions else ()

    def _policy_of(self, topic: str) -> ReplicationPolicy | InvalidMetadataError | None:
        for name in names_of(topic):
            if name in self.topics:
                return self.topics[name]
        whole = names_of(topic)[-1]
        for length in self._lengths:
            if length <= len(whole) and whole[:length] in self.prefixes:
                return self.prefixes[whole[:length]]
        return None

    def controls_of(self, topic: str) -> TopicControls:
        """Return the controls of a topic; a partition has its own and those of its topic together.

        Raises:
            InvalidMetadataError: the controls cannot be read.
        """
        combined = TopicControls()
        for name in names_of(topic):
            controls = self.controls.get(name)
            if isinstance(controls, InvalidMetadataError):
                raise controls
            if controls is not None:
                combined = TopicControls(
                    paused=(*combined.paused, *controls.paused), resync=(*combined.resync, *controls.resync)
                )  # fmt: skip
        return combined


def names_of(topic: str) -> tuple[str, ...]:
    """Return the names whose policies and controls apply: the topic's own and, for a partition, that of its topic."""
    partition = partition_of(topic)
    return (topic,) if partition is None else (topic, partition[0])


def _policy(stored: StoredPolicy | InvalidMetadataError) -> ReplicationPolicy | InvalidMetadataError:
    return stored if isinstance(stored, InvalidMetadataError) else stored.policy


def load_config(store: MetadataStore) -> ReplicationConfig:
    """Read all clusters, policies and controls: four lists, and their values in batches.

    Raises:
        ReplogError: errors of the store.
    """
    prefixes = {name.removesuffix("*"): stored for name, stored in _load(store, PREFIXES, StoredPolicy).items()}
    topics, controls = _load(store, TOPICS, StoredPolicy), _load(store, CONTROLS, TopicControls)
    return ReplicationConfig(load_clusters(store), topics, prefixes, controls)


def _load(store: MetadataStore, folder: str, kind: type[T]) -> dict[str, T | InvalidMetadataError]:
    names = store.list(folder)
    values: dict[str, T | InvalidMetadataError] = {}
    for name, stored in zip(names, store.get_many([f"{folder}/{name}" for name in names]), strict=True):
        if stored is not None:
            try:
                values[unquote_name(name)] = kind.decode(stored.value)
            except InvalidMetadataError as error:
                values[unquote_name(name)] = InvalidMetadataError(f"{folder}/{name}: {error}")
    return values
