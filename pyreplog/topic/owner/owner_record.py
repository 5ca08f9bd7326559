"""Who serves a topic, as the metadata store says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.names import check_name, quote_name

_ROOT = "/topic-owners"


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """Who serves a topic. address: "host:port", "" when it is reached from within its process only. incarnation: of its
    lease, no two have the same. since_us: when it claimed the topic."""

    address: str
    pid: int
    host: str
    incarnation: str
    since_us: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicOwner:
        """InvalidMetadataError."""
        try:
            body: dict[str, Any] = json.loads(data)
            found = cls(**body)
            texts, numbers = (found.address, found.host, found.incarnation), (found.pid, found.since_us)
            if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
                raise TypeError("a field is of another type")
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidMetadataError(f"owner of a topic: {data[:80]!r}: {error}") from error
        return found

    def __str__(self) -> str:
        where = f"at {self.address}" if self.address else "without an address"
        return f"process {self.pid} of {self.host}, {where}"


def owner_of(store: MetadataStore, topic: str) -> TopicOwner | None:
    """Who serves a topic now, or None. Errors: InvalidMetadataError; those of `owner_key` and of the
    store."""
    found = store.get(owner_key(topic))
    return None if found is None else TopicOwner.decode(found.value)


def owner_key(topic: str) -> str:
    """The key that says who serves a topic. Errors: as `names.check_name`."""
    return f"{_ROOT}/{quote_name(check_name(topic))}"
