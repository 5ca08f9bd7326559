"""The identity of a message in all clusters: the topic that it was published to first, and its offset there."""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

CLUSTER_BYTES = 16
"""Bytes of the id of a cluster."""
TOKEN_BYTES_MAX = 200
"""Most bytes of the token of a topic."""
GAPS_MAX = 64
"""Most gaps before one entry. A source with more gaps sends them before the entry, as trailing gaps."""


class Origin(NamedTuple):
    """A topic that messages are published to first.

    Attributes:
        cluster: the 16 bytes of the id of its cluster, `MetadataLayout.cluster_id`.
        token: token of its creation there, `LedgerChain.token`. A topic that is created again has another token.
    """

    cluster: bytes
    token: str

    @property
    def key(self) -> int:
        """64 bits that stand for the origin in records. Another origin may have the same key."""
        digest = blake2b(self.cluster + self.token.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class GapCause(IntEnum):
    """Why messages of an origin are not stored at a target. The numbers are stored."""

    FOREIGN = 1
    """Messages of other origins have the offsets there."""
    FILTERED = 2
    """The replication policy excludes them."""
    EXPIRED = 3
    """They were older than the policy allows when their turn came."""
    REFUSED = 4
    """The target can never store them."""
    LOST = 5
    """The source has lost or trimmed them."""
    DUPLICATE = 6
    """Copies of the messages are stored under other identities."""


class Gap(NamedTuple):
    """Offsets of an origin whose messages are not stored, from `start` to before `end`."""

    start: int
    end: int
    cause: GapCause


class OriginEntry(NamedTuple):
    """An entry of messages of one origin, in flight to a target.

    Attributes:
        value: the encoded messages, as they are stored.
        messages: their number.
        first: offset at the origin of the first one.
        publish_time_us: when the origin stored the entry, microseconds since 1970.
        gaps: gaps before the entry, ascending; messages between them were sent before.
        replicate_to: its replicate-to attribute, encoded; None: it has none.
    """

    value: bytes
    messages: int
    first: int
    publish_time_us: int
    gaps: tuple[Gap, ...] = ()
    replicate_to: bytes | None = None

    @property
    def end(self) -> int:
        """Offset at the origin behind the last message."""
        return self.first + self.messages


class LastEntry(NamedTuple):
    """The last entry of an origin that a target stores; the origin compares it with its own copy.

    Attributes:
        first: offset at the origin of its first message.
        end: offset behind its last one.
        value_crc: CRC-32C of its value.
        publish_time_us: when the origin stored the entry, microseconds since 1970.
    """

    first: int
    end: int
    value_crc: int
    publish_time_us: int


class OriginState(NamedTuple):
    """A target's position in an origin.

    Attributes:
        stored: every message of the origin below this offset is stored, or in a noted gap.
        last: the last stored entry of the origin; None: no entry is stored yet.
    """

    stored: int
    last: LastEntry | None
