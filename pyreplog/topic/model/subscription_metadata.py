"""What the metadata store keeps of a durable subscription: what it is, who persists its cursor, and where.

Every change is a compare-and-set by its owner, a token that whoever opens the subscription puts there first: from then
on a former owner's changes fail, and nothing that it reports as persisted is newer than what the new owner reads.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

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
from pyreplog.metadata.values import Kept, split_object
from pyreplog.topic.model.config import SubscriptionConfig, SubscriptionType
from pyreplog.topic.model.names import check_name, quote_name, topic_key, unquote_name

VERSION = 2
_NEW = Kept(VERSION, VERSION)
SNAPSHOT_BYTES_MAX = 64 << 10
"""Of a cursor record that is kept in the metadata store; larger ones stay in a ledger."""

SETTINGS_PROPERTY = "pyreplog.settings"
"""Name of the property that has the settings, but for the type, as JSON: readers of version 1 refused a field that they
did not know, and kept all properties."""

_TYPES = {"token": str, "owner": str, "type": str, "created_us": int, "cursor_ledger": int, "cursor_from": int}


def subscriptions_key(topic: str) -> str:
    """Below it are the subscriptions of a topic."""
    return f"{topic_key(topic)}/subscriptions"


def subscription_key(topic: str, name: str) -> str:
    """Where the metadata of a subscription are kept. Errors: as `check_name`."""
    return f"{subscriptions_key(topic)}/{quote_name(check_name(name))}"


@dataclass(frozen=True, kw_only=True)
class SubscriptionMetadata:
    """One durable subscription.

    token: random, of who created it. owner: of who may change it and persist its cursor. snapshot: a cursor record;
    b"", none. cursor_ledger: where newer records are, from a snapshot in entry `cursor_from` on; -1: there are none.
    moved_us: when its mark last moved, or was set, as of when the place of its records was last stored; 0: not known.
    settings: the fields of SubscriptionConfig, without the type, that are not the defaults; those that this build does
    not know are kept. kept: what a newer version stored beside; every change keeps it.
    """

    token: str
    created_us: int
    type: SubscriptionType = "exclusive"
    settings: Mapping[str, Any] = field(default_factory=dict)
    durable: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    snapshot: bytes = b""
    cursor_ledger: int = -1
    cursor_from: int = 0
    moved_us: int = 0
    kept: Kept = _NEW

    def __post_init__(self) -> None:
        _ = self.config  # it raises
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
        """Its settings, as far as this build knows them. InvalidMetadataError: one has no valid value."""
        known = {item.name for item in dataclasses.fields(SubscriptionConfig)} - {"type"}
        settings = {key: value for key, value in self.settings.items() if key in known}
        try:
            return SubscriptionConfig(type=self.type, **settings)
        except ConfigError as error:
            raise InvalidMetadataError(f"metadata of a subscription: {error}") from error

    def with_config(self, config: SubscriptionConfig) -> Self:
        """The same subscription with other settings."""
        defaults, chosen = vars(SubscriptionConfig()), vars(config)
        unknown = {key: value for key, value in self.settings.items() if key not in chosen}
        given = {key: value for key, value in chosen.items() if key != "type" and value != defaults[key]}
        return dataclasses.replace(self, type=config.type, settings={**unknown, **given})

    def encode(self) -> bytes:
        body = {name: getattr(self, name) for name in _FIELDS}
        body["properties"] = dict(self.properties)
        if self.settings:
            body["properties"][SETTINGS_PROPERTY] = json.dumps(self.settings, separators=(",", ":"))
        body["snapshot"] = base64.b64encode(self.snapshot).decode()
        return self.kept.encode(body)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """InvalidMetadataError when it is none, or contradicts itself; MetadataVersionError when it needs a newer
        reader."""
        try:
            body, kept = split_object("subscription metadata", data, _FIELDS, VERSION)
            for name, expected in _TYPES.items():
                if type(body[name]) is not expected:
                    raise TypeError(f"{name}: {body[name]!r}")
            if type(body["durable"]) is not bool or type(body["properties"]) is not dict:
                raise TypeError(f"durable: {body['durable']!r}, properties: {body['properties']!r}")
            body["snapshot"] = base64.b64decode(body["snapshot"], validate=True)
            settings = json.loads(body["properties"].pop(SETTINGS_PROPERTY, "{}"))
            if type(settings) is not dict:
                raise TypeError(f"settings: {settings!r}")
            return cls(**body, settings=settings, kept=kept)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
            raise InvalidMetadataError(f"subscription metadata: {data[:80]!r}: {error}") from error


_FIELDS = [item.name for item in dataclasses.fields(SubscriptionMetadata) if item.name not in ("settings", "kept")]

Change = Callable[[SubscriptionMetadata], SubscriptionMetadata]


def load_subscription(store: MetadataStore, topic: str, name: str) -> SubscriptionMetadata:
    """Errors: NoSuchSubscriptionError; InvalidMetadataError; those of the store."""
    return _load(store, topic, name)[0]


def _load(store: MetadataStore, topic: str, name: str) -> tuple[SubscriptionMetadata, int]:
    there = store.get(subscription_key(topic, name))
    if there is None:
        raise NoSuchSubscriptionError(topic, f"there is no subscription {name}, or it was deleted")
    return SubscriptionMetadata.decode(there.value), there.version


def list_subscriptions(store: MetadataStore, topic: str) -> list[str]:
    """Names of a topic's durable subscriptions. Errors: those of the store."""
    return sorted(unquote_name(name) for name in store.list(subscriptions_key(topic)))


def create_subscription(store: MetadataStore, topic: str, name: str, made: SubscriptionMetadata) -> None:
    """Store a new subscription; when the reply was lost, its token tells whether it is there.

    Errors: KeyExistsError; those of the store.
    """
    try:
        store.create(subscription_key(topic, name), made.encode())
    except (KeyExistsError, OutcomeUnknownError):
        there = store.get(subscription_key(topic, name))
        if there is None or SubscriptionMetadata.decode(there.value).token != made.token:
            raise


def change_subscription(
    store: MetadataStore, topic: str, name: str, owner: str, change: Change
) -> SubscriptionMetadata:
    """`change` what is there, if it is `owner`'s; what is there then. `change` may be called several times, and again
    when this is called again after an OutcomeUnknownError.

    Errors: TopicFencedError, it is somebody else's; as load_subscription.
    """
    while True:
        found, version = _load(store, topic, name)
        if found.owner != owner:
            raise TopicFencedError(topic, f"subscription {name} was taken over by {found.owner}")
        wanted = change(found)
        if _put(store, topic, name, found, version, wanted):
            return wanted


def take_over(store: MetadataStore, topic: str, name: str, owner: str) -> SubscriptionMetadata:
    """Make `owner`, which nobody ever was, its owner; what is there then. Errors: as load_subscription."""
    while True:
        found, version = _load(store, topic, name)
        wanted = dataclasses.replace(found, owner=owner)
        try:
            if _put(store, topic, name, found, version, wanted):
                return wanted
        except OutcomeUnknownError:
            continue


def delete_subscription(store: MetadataStore, topic: str, name: str, owner: str | None = None) -> None:
    """Delete it, if it is `owner`'s; None: whoever's it is. Errors: as change_subscription."""
    while True:
        there = store.get(subscription_key(topic, name))
        if there is None:
            raise NoSuchSubscriptionError(topic, f"there is no subscription {name}, or it was deleted")
        if owner is not None and (found := SubscriptionMetadata.decode(there.value).owner) != owner:
            raise TopicFencedError(topic, f"subscription {name} was taken over by {found}")
        try:
            store.delete(subscription_key(topic, name), there.version)
        except (VersionConflictError, NoSuchKeyError):
            continue
        return


def _put(
    store: MetadataStore, topic: str, name: str, found: SubscriptionMetadata, version: int, wanted: SubscriptionMetadata
) -> bool:
    """False: it has been changed meanwhile."""
    if wanted == found:
        return True
    try:
        store.put(subscription_key(topic, name), wanted.encode(), version)
    except (VersionConflictError, NoSuchKeyError):
        return False
    return True
