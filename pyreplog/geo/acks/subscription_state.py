"""The acknowledgements of one replicated subscription, as all clusters merge them.

For each generation there are two sets, kept apart: the *bases* of all births (the messages before the start of the
subscription in each cluster that created it), of which the intersection counts, and the acknowledgements of consumers
and operators, of which the union counts. Together they are the state. Both halves are semilattices: merging is
commutative, associative and idempotent. A seek begins another generation; the higher one wins as a whole.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.origin_ranges import OriginRanges, Ranges, copy_ranges, ranges_of
from pyreplog.origins.origin import CLUSTER_BYTES, Origin

NO_CLUSTER = bytes(CLUSTER_BYTES)
_HOME: Final = re.compile(rf"([1-9]\d{{0,18}})/([0-9a-f]{{{2 * CLUSTER_BYTES}}})", re.ASCII)
_HOME_NUMBER_MAX: Final = 1 << 62


class Generation(NamedTuple):
    """The seek that a state follows. The higher one wins.

    Attributes:
        counter: 0: no seek; else one more than the counter of the generation before.
        cluster: the id of the cluster that sought.
    """

    counter: int
    cluster: bytes


class Home(NamedTuple):
    """The cluster whose consumers receive the messages of a subscription. The higher number wins.

    Attributes:
        number: number of changes of the home.
        cluster: id of the cluster; `NO_CLUSTER`: any cluster.
    """

    number: int
    cluster: bytes

    def admits(self, cluster: bytes) -> bool:
        """Return whether consumers of `cluster` may receive messages."""
        return self.cluster in (NO_CLUSTER, cluster)

    def text(self) -> str:
        """Return it as text for the metadata of a subscription; "": it never changed."""
        return f"{self.number}/{self.cluster.hex()}" if self.number else ""

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the home of a text. Raises InvalidArgumentError if the text is malformed."""
        if not text:
            return cls(0, NO_CLUSTER)
        match = _HOME.fullmatch(text)
        if match is None or int(match[1]) > _HOME_NUMBER_MAX:
            raise InvalidArgumentError(
                f"home of a subscription: expected a number from 1 to {_HOME_NUMBER_MAX}, '/' and the id of a cluster "
                f"in {2 * CLUSTER_BYTES} hexadecimal digits, found {text[:80]!r}"
            )
        return cls(int(match[1]), bytes.fromhex(match[2]))


FIRST_GENERATION = Generation(0, NO_CLUSTER)
FIRST_HOME = Home(0, NO_CLUSTER)


@dataclass
class Merge:
    """The changes of a merge.

    Attributes:
        added: the new acknowledgements.
        is_replaced: whether the state of a higher generation replaced the former one.
        is_widened: whether messages that were passed over are to be delivered, because a birth started before them.
        is_changed: whether tokens, generation, home or bases changed.
    """

    added: OriginRanges = field(default_factory=OriginRanges)
    is_replaced: bool = False
    is_widened: bool = False
    is_changed: bool = False


@dataclass
class SubscriptionState:
    """The state of a subscription in one cluster.

    Attributes:
        tokens: tokens of its births: one, or several if clusters created it at the same time.
        generation: the seek that it follows.
        home: the cluster whose consumers receive messages.
        bases: the messages before the starts of all its births.
        acks: the acknowledgements in this generation.
    """

    tokens: frozenset[str]
    generation: Generation = FIRST_GENERATION
    home: Home = FIRST_HOME
    bases: OriginRanges = field(default_factory=OriginRanges)
    acks: OriginRanges = field(default_factory=OriginRanges)

    def copy(self) -> SubscriptionState:
        """Return an equal state of its own."""
        return SubscriptionState(self.tokens, self.generation, self.home, self.bases.copy(), self.acks.copy())

    def merge(self, other: SubscriptionState) -> Merge:
        """Merge the state of the same subscription in another cluster; `other` does not change."""
        merge = Merge()
        if not other.tokens <= self.tokens:
            self.tokens |= other.tokens
            merge.is_changed = True
        if other.home > self.home:
            self.home = other.home
            merge.is_changed = True
        if other.generation > self.generation:
            self.generation = other.generation
            self.bases, self.acks = other.bases.copy(), other.acks.copy()
            merge.added = other.acks.copy()
            merge.is_replaced = merge.is_changed = True
        elif other.generation == self.generation:
            merge.is_widened = self.bases.intersect_all(other.bases)
            merge.is_changed |= merge.is_widened
            merge.added = self.acks.add_all(other.acks)
        return merge

    def is_passed(self, origin: Origin, offset: int) -> bool:
        """Return whether a message is acknowledged, or lies in the base."""
        return self.acks.contains(origin, offset) or self.bases.contains(origin, offset)

    def passed(self, origin: Origin, start: int = 0, end: int = OFFSET_END) -> Ranges:
        """Return the ranges of an origin, from `start` to `end`, that are acknowledged or lie in the base."""
        ranges = ranges_of(*self.acks.between(origin, start, end))
        ranges.add_ranges(*self.bases.between(origin, start, end))
        return ranges.intersect()

    def passed_set(self, origin: Origin) -> RangeSet:
        """Return the offsets of an origin that are acknowledged or lie in the base."""
        ranges = copy_ranges(self.acks.of(origin))
        ranges.add_ranges(*self.bases.between(origin))
        return ranges

    def origins(self) -> set[Origin]:
        """Return the origins with messages that are acknowledged, or lie in the base."""
        return {*self.bases, *self.acks}

    def header_digest(self) -> bytes:
        """Return an 8-byte digest of the state without its acknowledgements."""
        digest = blake2b(struct.pack("<Q16sQ16s", *self.generation, *self.home), digest_size=8)
        for token in sorted(self.tokens):
            digest.update(token.encode() + b"\0")
        for origin, ranges in sorted(self.bases.dump().items()):
            digest.update(origin.cluster + origin.token.encode() + b"\0" + struct.pack("<Q", len(ranges)) + ranges)
        return digest.digest()

    def acks_identity(self) -> bytes:
        """Return an 8-byte digest of the generation and births that the acknowledgements belong to."""
        digest = blake2b(struct.pack("<Q16s", *self.generation), digest_size=8)
        for token in sorted(self.tokens):
            digest.update(token.encode() + b"\0")
        return digest.digest()
