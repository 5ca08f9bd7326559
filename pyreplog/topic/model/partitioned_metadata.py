"""What the metadata store keeps of a partitioned topic: how many partitions it has. These are topics of their own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Self

from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMetadataError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchTopicError,
    OutcomeUnknownError,
    VersionConflictError,
)
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import Kept, split_object
from pyreplog.topic.model.names import check_name, quote_name, unquote_name
from pyreplog.topic.model.routing import PARTITIONS_MAX

VERSION = 2
_NEW = Kept(VERSION, VERSION)
ROOT = "/partitioned-topics"


@dataclass(frozen=True, kw_only=True)
class PartitionedMetadata:
    """One partitioned topic. token: random, of its creation. kept: what a newer version stored, and this one does not
    know; every change keeps it."""

    partitions: int
    created_us: int
    token: str
    kept: Kept = _NEW

    def encode(self) -> bytes:
        return self.kept.encode({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """InvalidMetadataError when it is none; MetadataVersionError when it needs a newer reader."""
        try:
            body, kept = split_object("partitioned topic", data, _FIELDS, VERSION)
            found = cls(**body, kept=kept)
            if type(found.partitions) is not int or not 1 <= found.partitions <= PARTITIONS_MAX:
                raise ValueError(f"partitions: expected 1 to {PARTITIONS_MAX}, found {found.partitions!r}")
            if type(found.created_us) is not int or type(found.token) is not str:
                raise TypeError("a field is of another type")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidMetadataError(f"partitioned topic: {data[:80]!r}: {error}") from error
        return found


_FIELDS = ("partitions", "created_us", "token")


def partitioned_key(topic: str) -> str:
    """Where the metadata store keeps it. Errors: as `check_name`."""
    return f"{ROOT}/{quote_name(check_name(topic))}"


def find_partitioned(store: MetadataStore, topic: str) -> PartitionedMetadata | None:
    """None: there is no partitioned topic of that name. Errors: InvalidMetadataError; those of the store."""
    there = store.get(partitioned_key(topic))
    return None if there is None else PartitionedMetadata.decode(there.value)


def list_partitioned(store: MetadataStore) -> list[str]:
    """Names of all partitioned topics. Errors: those of the store."""
    return sorted(unquote_name(name) for name in store.list(ROOT))


def create_partitioned(store: MetadataStore, topic: str, partitions: int, now_us: int) -> PartitionedMetadata:
    """Store a new one; when the reply was lost, its token tells whether it is there.

    Errors: KeyExistsError; those of the store.
    """
    made = PartitionedMetadata(partitions=partitions, created_us=now_us, token=secrets.token_hex(16))
    try:
        store.create(partitioned_key(topic), made.encode())
    except (KeyExistsError, OutcomeUnknownError):
        found = find_partitioned(store, topic)
        if found is None or found.token != made.token:
            raise
    return made


def grow_partitioned(store: MetadataStore, topic: str, partitions: int) -> PartitionedMetadata:
    """Give it at least so many partitions; what is stored then. It may be called again after an OutcomeUnknownError.

    Errors: NoSuchTopicError; InvalidMetadataError; those of the store.
    """
    while True:
        there = store.get(partitioned_key(topic))
        if there is None:
            raise NoSuchTopicError(topic, "it was deleted")
        found = PartitionedMetadata.decode(there.value)
        if found.partitions >= partitions:
            return found
        grown = replace(found, partitions=partitions)
        try:
            store.put(partitioned_key(topic), grown.encode(), there.version)
        except (VersionConflictError, NoSuchKeyError):
            continue
        return grown


def delete_partitioned(store: MetadataStore, topic: str) -> None:
    """Does nothing when it is gone. Errors: those of the store."""
    while True:
        there = store.get(partitioned_key(topic))
        if there is None:
            return
        try:
            store.delete(partitioned_key(topic), there.version)
        except (VersionConflictError, NoSuchKeyError):
            continue


def check_partitions(topic: str, partitions: int) -> int:
    """`partitions`, if a topic can have so many. Errors: InvalidArgumentError."""
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgumentError(f"topic {topic}: partitions: expected 1 to {PARTITIONS_MAX}, found {partitions!r}")
    return partitions
