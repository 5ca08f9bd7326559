"""Metadata of a durable subscription: its settings, the owner of its cursor, and where the cursor is stored.

Every change is a compare-and-set by the owner, a token that a process stores first when it opens the subscription. From
then on the changes of a former owner fail, and it reports nothing as persisted that the new owner does not read. The
token holds the owner's epoch of the topic: a former owner of the topic cannot take a subscription back.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from pyreplog.cursors.subscription_config import SubscriptionConfig, SubscriptionType
from pyreplog.errors import (
    ConfigError,
    InvalidMetadataError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchSubscriptionError,
    OutcomeUnknownError,
    TopicFencedError,
    VersionConflictError,
)
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue
from pyreplog.topic_names import check_name, quote_name, topic_key, unquote_name

SNAPSHOT_BYTES_MAX = 64 << 10
"""Most bytes of a cursor record in the metadata store; larger records stay in a ledger."""

SETTINGS_PROPERTY = "pyreplog.settings"
"""Name of the property that holds the settings, except the type, as JSON.

They are no field of their own, because readers of version 1 refuse unknown fields but keep all properties."""

HOME_PROPERTY = "pyreplog.home"
"""Name of the property with the home of a replicated subscription that a partition added later begins with."""

_TYPES = {"token": str, "owner": str, "type": str, "created_us": int, "cursor_ledger": int, "cursor_from": int}


def subscriptions_key(topic: str) -> str:
    """Return the key below which the subscriptions of a topic are stored."""
    return f"{topic_key(topic)}/subscriptions"


def subscription_key(topic: str, name: str) -> str:
    """Return the key of a subscription's metadata. Raises the errors of `check_name`."""
    return f"{subscriptions_key(topic)}/{quote_name(check_name(name))}"


@dataclass(frozen=True, kw_only=True)
class SubscriptionMetadata(MetadataValue):
    """One durable subscription in the metadata store.

    Attributes:
        token: random, of its creation.
        created_us: when it was created.
        type: its type.
        settings: the fields of SubscriptionConfig, without the type, that differ from the defaults. Fields that this
            version does not know are kept.
        durable: its cursor is stored.
        properties: its properties.
        home: the home of a replicated subscription, see FORMAT.md; in partition 0 for partitions that are added later,
            in such a partition until its journal has it; "": none.
        owner: token of the process that may change it and persist its cursor.
        snapshot: a cursor record; b"": none.
        cursor_ledger: ledger of newer records, which begin with a snapshot in entry `cursor_from`; -1: none.
        cursor_from: see `cursor_ledger`.
        moved_us: when its mark last moved or was set, as known when `cursor_ledger` was last stored; 0: not known.
    """

    KIND: ClassVar[str] = "subscription metadata"
    VERSION: ClassVar[int] = 2
    UNSTORED: ClassVar[frozenset[str]] = frozenset({"settings", "home"})

    token: str
    created_us: int
    type: SubscriptionType = "exclusive"
    settings: Mapping[str, Any] = field(default_factory=dict)
    durable: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    owner: str = ""
    snapshot: bytes = b""
    cursor_ledger: int = -1
    cursor_from: int = 0
    moved_us: int = 0

    def __post_init__(self) -> None:
        _ = self.config  # raises InvalidMetadataError
        self._demand(self.cursor_ledger >= -1, "the id of a ledger, or -1", self.cursor_ledger)
        self._demand(self.cursor_from >= 0, "an entry from 0 on", self.cursor_from)
        self._demand(type(self.moved_us) is int and self.moved_us >= 0, "a time of a move", self.moved_us)
        size = len(self.snapshot)
        self._demand(size <= SNAPSHOT_BYTES_MAX, f"a snapshot of at most {SNAPSHOT_BYTES_MAX} bytes", size)
        words = [*self.properties, *self.properties.values()]
        self._demand(all(isinstance(word, str) for word in words), "properties of text", dict(self.properties))

    def _demand(self, fine: bool, expected: str, found: object) -> None:
        if not fine:
            raise InvalidMetadataError(f"metadata of a subscription: expected {expected}, found {found!r}")

    @property
    def config(self) -> SubscriptionConfig:
        """Its settings, as far as this version knows them. Raises InvalidMetadataError if one is invalid."""
        known = {item.name for item in dataclasses.fields(SubscriptionConfig)} - {"type"}
        settings = {key: value for key, value in self.settings.items() if key in known}
        try:
            return SubscriptionConfig(type=self.type, **settings)
        except ConfigError as error:
            raise InvalidMetadataError(f"metadata of a subscription: {error}") from error

    def with_config(self, config: SubscriptionConfig) -> Self:
        """Return the subscription with other settings."""
        defaults, chosen = vars(SubscriptionConfig()), vars(config)
        unknown = {key: value for key, value in self.settings.items() if key not in chosen}
        changed = {key: value for key, value in chosen.items() if key != "type" and value != defaults[key]}
        return dataclasses.replace(self, type=config.type, settings={**unknown, **changed})

    def _encode_fields(self) -> dict[str, Any]:
        properties = dict(self.properties)
        if self.settings:
            properties[SETTINGS_PROPERTY] = json.dumps(self.settings, separators=(",", ":"))
        if self.home:
            properties[HOME_PROPERTY] = self.home
        snapshot = base64.b64encode(self.snapshot).decode()
        return {**super()._encode_fields(), "properties": properties, "snapshot": snapshot}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name, expected in _TYPES.items():
            if type(fields[name]) is not expected:
                raise TypeError(f"{name}: {fields[name]!r}")
        if type(fields["durable"]) is not bool or type(fields["properties"]) is not dict:
            raise TypeError(f"durable: {fields['durable']!r}, properties: {fields['properties']!r}")
        settings = json.loads(fields["properties"].pop(SETTINGS_PROPERTY, "{}"))
        if type(settings) is not dict:
            raise TypeError(f"settings: {settings!r}")
        home = fields["properties"].pop(HOME_PROPERTY, "")
        if type(home) is not str:
            raise TypeError(f"home: {home!r}")
        snapshot = base64.b64decode(fields["snapshot"], validate=True)
        return {**fields, "snapshot": snapshot, "settings": settings, "home": home}


Change = Callable[[SubscriptionMetadata], SubscriptionMetadata]

_EPOCH_DIGITS_MAX = 19


class TopicEpoch(NamedTuple):
    """An epoch of a topic. token: of the topic's creation; one that is created again begins with epoch 1."""

    token: str
    epoch: int


def owner_token(process: str, number: int, epoch: TopicEpoch | None) -> str:
    """Return a token for `take_over`: number `number` of a process, in an epoch of the topic; None: not known."""
    return f"{process}/{number}" if epoch is None else f"{process}/{number}/{epoch.epoch}/{epoch.token}"


def _epoch_of(owner: str) -> TopicEpoch | None:
    """Return the epoch in an owner's token; None: earlier versions stored none."""
    parts = owner.split("/")
    if len(parts) != 4 or not parts[2].isdecimal() or len(parts[2]) > _EPOCH_DIGITS_MAX:
        return None
    return TopicEpoch(parts[3], int(parts[2]))


def _is_earlier(owner: str, current: str) -> bool:
    """Return whether `owner` is a former owner of the topic, and `current` a later one."""
    ours, theirs = _epoch_of(owner), _epoch_of(current)
    return ours is not None and theirs is not None and ours.token == theirs.token and ours.epoch < theirs.epoch


def load_subscription(store: MetadataStore, topic: str, name: str) -> SubscriptionMetadata:
    """Return the metadata of a subscription.

    Raises NoSuchSubscriptionError, InvalidMetadataError, and errors of the store.
    """
    return _load(store, topic, name)[0]


def _load(store: MetadataStore, topic: str, name: str) -> tuple[SubscriptionMetadata, int]:
    stored = store.get(subscription_key(topic, name))
    if stored is None:
        raise NoSuchSubscriptionError(topic, f"there is no subscription {name}, or it was deleted")
    return SubscriptionMetadata.decode(stored.value), stored.version


def list_subscriptions(store: MetadataStore, topic: str) -> list[str]:
    """Return the names of a topic's durable subscriptions. Raises errors of the store."""
    return sorted(unquote_name(name) for name in store.list(subscriptions_key(topic)))


def create_subscription(store: MetadataStore, topic: str, name: str, metadata: SubscriptionMetadata) -> None:
    """Store a new subscription. If the reply was lost, the token tells whether it was stored.

    Raises KeyExistsError, and errors of the store.
    """
    try:
        store.create(subscription_key(topic, name), metadata.encode())
    except (KeyExistsError, OutcomeUnknownError):
        stored = store.get(subscription_key(topic, name))
        if stored is None or SubscriptionMetadata.decode(stored.value).token != metadata.token:
            raise


def change_subscription(
    store: MetadataStore, topic: str, name: str, owner: str, change: Change
) -> SubscriptionMetadata:
    """Apply `change` to the metadata of a subscription that `owner` owns; return the stored metadata.

    `change` may be called several times, and again if this is called again after an OutcomeUnknownError. Raises
    TopicFencedError if another process owns it, and the errors of `load_subscription`.
    """
    while True:
        current, version = _load(store, topic, name)
        if current.owner != owner:
            raise TopicFencedError(topic, f"subscription {name} was taken over by {current.owner}")
        changed = change(current)
        if _put(store, topic, name, current, version, changed):
            return changed


def take_over(store: MetadataStore, topic: str, name: str, owner: str) -> SubscriptionMetadata:
    """Make `owner`, a new token, the owner; return the stored metadata.

    Raises TopicFencedError if a later owner of the topic has it, and the errors of `load_subscription`.
    """
    while True:
        current, version = _load(store, topic, name)
        if _is_earlier(owner, current.owner):
            raise TopicFencedError(topic, f"subscription {name} was taken over by a later owner, {current.owner}")
        changed = dataclasses.replace(current, owner=owner)
        try:
            if _put(store, topic, name, current, version, changed):
                return changed
        except OutcomeUnknownError:
            continue


def delete_subscription(store: MetadataStore, topic: str, name: str, owner: str | None = None) -> None:
    """Delete a subscription that `owner` owns; None: any owner. Raises the errors of `change_subscription`."""
    while True:
        stored = store.get(subscription_key(topic, name))
        if stored is None:
            raise NoSuchSubscriptionError(topic, f"there is no subscription {name}, or it was deleted")
        if owner is not None and (current := SubscriptionMetadata.decode(stored.value).owner) != owner:
            raise TopicFencedError(topic, f"subscription {name} was taken over by {current}")
        try:
            store.delete(subscription_key(topic, name), stored.version)
        except (VersionConflictError, NoSuchKeyError):
            continue
        return


def _put(
    store: MetadataStore,
    topic: str,
    name: str,
    current: SubscriptionMetadata,
    version: int,
    changed: SubscriptionMetadata,
) -> bool:
    """Store changed metadata; return False if they were changed by another process meanwhile."""
    if changed == current:
        return True
    try:
        store.put(subscription_key(topic, name), changed.encode(), version)
    except (VersionConflictError, NoSuchKeyError):
        return False
    return True
