"""Metadata of partitioned topics: the number of partitions, each of which is a topic of its own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchTopicError,
    OutcomeUnknownError,
    VersionConflictError,
)
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number
from pyreplog.topic.model.routing import PARTITIONS_MAX
from pyreplog.topic_names import check_name, quote_name, unquote_name

ROOT = "/partitioned-topics"


@dataclass(frozen=True, kw_only=True)
class PartitionedMetadata(MetadataValue):
    """A partitioned topic in the metadata store.

    Attributes:
        partitions: number of partitions.
        created_us: when it was created.
        token: random, of its creation.
    """

    KIND: ClassVar[str] = "partitioned topic"
    VERSION: ClassVar[int] = 2

    partitions: int
    created_us: int
    token: str

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        partitions, token = number(fields, "partitions"), field(fields, "token", str)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise ValueError(f"partitions: expected 1 to {PARTITIONS_MAX}, found {partitions}")
        return {"partitions": partitions, "created_us": number(fields, "created_us"), "token": token}


def partitioned_key(topic: str) -> str:
    """Return the key of a partitioned topic in the metadata store. Raises the errors of `check_name`."""
    return f"{ROOT}/{quote_name(check_name(topic))}"


def find_partitioned(store: MetadataStore, topic: str) -> PartitionedMetadata | None:
    """Return the metadata of a partitioned topic; None: it does not exist.

    Raises InvalidMetadataError if they are malformed, and errors of the store.
    """
    stored = store.get(partitioned_key(topic))
    return None if stored is None else PartitionedMetadata.decode(stored.value)


def list_partitioned(store: MetadataStore) -> list[str]:
    """Return the names of all partitioned topics. Raises errors of the store."""
    return sorted(unquote_name(name) for name in store.list(ROOT))


def create_partitioned(store: MetadataStore, topic: str, partitions: int, now_us: int) -> PartitionedMetadata:
    """Store a new partitioned topic. If the reply was lost, the token tells whether it was stored.

    Raises KeyExistsError if the topic exists, and errors of the store.
    """
    metadata = PartitionedMetadata(partitions=partitions, created_us=now_us, token=secrets.token_hex(16))
    try:
        store.create(partitioned_key(topic), metadata.encode())
    except (KeyExistsError, OutcomeUnknownError):
        stored = find_partitioned(store, topic)
        if stored is None or stored.token != metadata.token:
            raise
    return metadata


def grow_partitioned(store: MetadataStore, topic: str, partitions: int) -> PartitionedMetadata:
    """Raise the number of partitions to at least `partitions`; return the stored metadata.

    It may be called again after an OutcomeUnknownError. Raises NoSuchTopicError if the topic was deleted,
    InvalidMetadataError if its metadata are malformed, and errors of the store.
    """
    while True:
        stored = store.get(partitioned_key(topic))
        if stored is None:
            raise NoSuchTopicError(topic, "it was deleted")
        metadata = PartitionedMetadata.decode(stored.value)
        if metadata.partitions >= partitions:
            return metadata
        grown = replace(metadata, partitions=partitions)
        try:
            store.put(partitioned_key(topic), grown.encode(), stored.version)
        except (VersionConflictError, NoSuchKeyError):
            continue
        return grown


def delete_partitioned(store: MetadataStore, topic: str) -> None:
    """Delete the metadata of a partitioned topic, if they exist. Raises errors of the store."""
    while True:
        stored = store.get(partitioned_key(topic))
        if stored is None:
            return
        try:
            store.delete(partitioned_key(topic), stored.version)
        except (VersionConflictError, NoSuchKeyError):
            continue


def check_partitions(topic: str, partitions: int) -> int:
    """Return a number of partitions. Raises InvalidArgumentError if a topic cannot have so many."""
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgumentError(f"topic {topic}: partitions: expected 1 to {PARTITIONS_MAX}, found {partitions!r}")
    return partitions
