"""The life of a subscription under one name: births in several clusters, deletion, and creation of the name again.

Each creation has a token of its own. Creations that clusters make before they know of each other are births of one
subscription as soon as a cluster sees both. A deletion kills the births that its cluster knew of, and the births that
they were joined with. It leaves a tombstone for each token until every cluster has it durably, so that no delayed state
brings the subscription back. A later creation of the name has another token, and inherits no state.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.subscription_state import (
    FIRST_GENERATION,
    FIRST_HOME,
    Generation,
    Home,
    Merge,
    SubscriptionState,
)


@dataclass
class Change:
    """The changes of an event in a lifecycle.

    Attributes:
        merge: the changes of the living state.
        is_born: whether the event created the subscription.
        is_deleted: whether the event deleted the subscription.
        changed_tombstones: tokens whose tombstones are new, or name more clusters than before.
    """

    merge: Merge = field(default_factory=Merge)
    is_born: bool = False
    is_deleted: bool = False
    changed_tombstones: set[str] = field(default_factory=set)


class SubscriptionLifecycle:
    """The subscription of one name: its living state, if it exists, and the tombstones of former ones.

    Attributes:
        state: the living state; None: the subscription does not exist.
        tombstones: for each dead token, the clusters that have the tombstone durably.
    """

    __slots__ = ("state", "tombstones")

    def __init__(self) -> None:
        self.state: SubscriptionState | None = None
        self.tombstones: dict[str, set[bytes]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the name has no state and no tombstones."""
        return self.state is None and not self.tombstones

    def create(self, token: str, bases: OriginRanges, home: Home = FIRST_HOME) -> bool:
        """Create the subscription; return False if it exists.

        Args:
            token: random token of this creation alone.
            bases: the messages before the start of the subscription, of those that its cluster holds.
            home: its home at birth.
        """
        if self.state is not None:
            return False
        self.state = SubscriptionState(frozenset({token}), FIRST_GENERATION, home, bases.copy())
        return True

    def merge(self, other: SubscriptionState) -> Change:
        """Merge the state of another cluster under the name."""
        change = Change()
        if self.tombstones.keys() & other.tokens:
            self._add_tombstones(other.tokens, change)
        elif self.state is None:
            self.state = other.copy()
            change.merge = Merge(other.acks.copy(), is_replaced=True, is_changed=True)
            change.is_born = True
        else:
            change.merge = self.state.merge(other)
        return change

    def add_tombstone(self, token: str, confirmed: Collection[bytes] = ()) -> Change:
        """Add the tombstone of a token, which ends its birth, and the clusters that have the tombstone durably."""
        change = Change()
        self._add_tombstones([token], change)
        if not self.tombstones[token].issuperset(confirmed):
            self.tombstones[token].update(confirmed)
            change.changed_tombstones.add(token)
        return change

    def delete(self) -> Change:
        """Delete the subscription, with all births that are known here."""
        change = Change()
        if self.state is not None:
            self._add_tombstones(self.state.tokens, change)
        return change

    def _add_tombstones(self, tokens: Iterable[str], change: Change) -> None:
        dead = {*tokens}
        if self.state is not None and self.state.tokens & dead:
            dead |= self.state.tokens
            self.state = None
            change.is_deleted = True
        for token in sorted(dead - self.tombstones.keys()):
            self.tombstones[token] = set()
            change.changed_tombstones.add(token)

    def confirm(self, token: str, cluster: bytes) -> bool:
        """Note that `cluster` has a tombstone durably; return whether it was unknown before."""
        confirmed = self.tombstones.get(token)
        if confirmed is None or cluster in confirmed:
            return False
        confirmed.add(cluster)
        return True

    def is_settled(self, token: str, participants: Collection[bytes]) -> bool:
        """Return whether all of the clusters have a tombstone durably."""
        return token in self.tombstones and self.tombstones[token].issuperset(participants)

    def forget(self, token: str) -> None:
        """Remove a tombstone."""
        self.tombstones.pop(token, None)

    def seek(self, cluster: bytes, bases: OriginRanges) -> Generation | None:
        """Begin another generation, in which only `bases` are acknowledged; return None if there is no subscription.

        Args:
            cluster: id of the cluster that seeks.
            bases: the messages before the new position, of those that this cluster holds.
        """
        state = self.state
        if state is None:
            return None
        state.generation = Generation(state.generation.counter + 1, cluster)
        state.bases, state.acks = bases.copy(), OriginRanges()
        return state.generation

    def move(self, cluster: bytes) -> Home | None:
        """Give the subscription another home; return None if there is no subscription."""
        if self.state is None:
            return None
        self.state.home = Home(self.state.home.number + 1, cluster)
        return self.state.home

    def counts(self, token: str, generation: Generation) -> bool:
        """Return whether acknowledgements of a birth and a generation count for the living state."""
        return self.state is not None and token in self.state.tokens and generation == self.state.generation

    def digest(self) -> bytes:
        """Return an 8-byte digest of the state without its acknowledgements, and of the tombstones."""
        digest = blake2b(self.state.header_digest() if self.state is not None else b"", digest_size=8)
        for token, confirmed in sorted(self.tombstones.items()):
            digest.update(struct.pack("<H", len(token.encode())) + token.encode() + b"".join(sorted(confirmed)) + b"\0")
        return digest.digest()
