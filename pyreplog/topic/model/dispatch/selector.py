"""Selects consumers for messages of exclusive, failover and shared subscriptions; key_shared ones have their own
module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges, Released, Slots


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """One attached consumer.

    Attributes:
        id: its number.
        name: its name.
        priority: its priority; lower numbers are served first.
        holder: its number in `Pending`.
        permits: messages that it may still be sent.
        is_blocked: it has too many unacknowledged messages.
        delivered: messages that were delivered to it.
        acknowledged: messages that it acknowledged.
    """

    id: int
    name: str
    priority: int
    holder: int
    permits: int = 0
    is_blocked: bool = False
    delivered: int = 0
    acknowledged: int = 0


class Consumers:
    """The consumers of a subscription, in the order in which they were attached.

    unacked_max: `max_unacked_consumer` of SubscriptionConfig.
    """

    def __init__(self, pending: Pending | PendingRanges, unacked_max: int) -> None:
        self._pending, self.unacked_max = pending, unacked_max
        self.by_id: dict[int, AttachedConsumer] = {}
        """The consumers by number; do not modify."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[AttachedConsumer]:
        return iter(self.by_id.values())

    def add(self, consumer: int, name: str, priority: int) -> AttachedConsumer:
        taken = {attached.holder for attached in self}
        holder = next(number for number in itertools.count(DEAD_LETTERS + 1) if number not in taken)
        attached = self.by_id[consumer] = AttachedConsumer(consumer, name, priority, holder)
        return attached

    def remove(self, consumer: int) -> AttachedConsumer | None:
        return self.by_id.pop(consumer, None)

    def capacity(self, attached: AttachedConsumer) -> int:
        """Return how many messages a consumer may be given now."""
        if attached.is_blocked:
            return 0
        return min(attached.permits, self.unacked_max - self._pending.count(attached.holder))

    def note_delivered(self, attached: AttachedConsumer, messages: int) -> None:
        """Note that messages, which are in `Pending`, were delivered."""
        attached.permits -= messages
        attached.delivered += messages
        attached.is_blocked = self._pending.count(attached.holder) >= self.unacked_max

    def unblock(self) -> bool:
        """Unblock consumers with at most half of their limit; return whether there was one."""
        has_unblocked = False
        for attached in self.by_id.values():
            if attached.is_blocked and self._pending.count(attached.holder) <= self.unacked_max // 2:
                attached.is_blocked, has_unblocked = False, True
        return has_unblocked


TURN_MAX = 1000
"""The most messages of a shared subscription that one consumer gets before the next one."""


class Assignment(NamedTuple):
    """Messages for one consumer; slots: of their keys, if these matter."""

    consumer: AttachedConsumer
    batch: MessageBatch
    slots: Slots | None = None


class Placement(NamedTuple):
    """The result of placing a batch. rest: messages for which no consumer has room, to be placed again later."""

    shares: list[Assignment]
    rest: MessageBatch | None


class Selector:
    """Base of the selectors of all types. Its methods have the usual behaviour, or none."""

    delays = False
    """Whether messages wait for their `deliver_at`; only types that keep no order do that."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    @property
    def active(self) -> AttachedConsumer | None:
        """The consumer that gets all messages; None: several get messages, or there is none."""
        return None

    def admits(self) -> bool:
        """Return whether another consumer may attach."""
        return True

    def joined(self, consumer: AttachedConsumer) -> None:
        """Note that a consumer was attached; it is one of the consumers already."""

    def left(self, consumer: AttachedConsumer) -> None:
        """Note that a consumer was detached. Next, its messages are `returned`, or all messages are cleared."""

    def capacity(self) -> int:
        """Return the most messages that can be placed now."""
        return sum(self._consumers.capacity(consumer) for consumer in self._consumers)

    def has_changed(self) -> None:
        """Note that a consumer may be given more messages than before."""

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        """Distribute a batch, at most `room` messages of it: 1 or more, and at most `capacity`.

        is_fresh: no message of it was delivered, or blocked, before.
        """
        raise NotImplementedError

    def released(self, released: Released) -> None:
        """Note that a consumer does not have these messages any longer."""

    def returned(self, released: Released) -> bool:
        """Take messages that a detached consumer did not acknowledge, in their order; return whether the selector keeps
        them.
        """
        return False

    def forget(self, offsets: Offsets) -> None:
        """Note that messages are acknowledged, or not to be delivered."""

    def forget_range(self, start: int, end: int) -> None:
        """Note that all messages of [start, end) are acknowledged."""

    def waiting(self) -> int:
        """Return the number of blocked messages."""
        return 0

    def has_space(self) -> bool:
        """Return whether more messages can be blocked, so that reading may go on."""
        return True

    def take(self, most: int) -> Offsets:
        """Return up to `most` blocked messages that can be delivered now, after they are read again."""
        return NONE

    def clear(self) -> None:
        """Forget delivered and blocked messages: all of them are read again."""


class SingleActiveSelector(Selector):
    """Selector of exclusive and failover subscriptions: all messages go to one consumer, in order.

    The candidates are the consumers of the lowest priority number, sorted by name, then by arrival. The first one
    becomes active, and stays active as long as it is a candidate. In partition p it is the candidate at p modulo their
    number, so consumers that come and go redistribute the partitions. partition: None for a topic that is no partition.

    The rule is Pulsar's (AbstractDispatcherSingleActiveConsumer), except for topics that are no partition. There Pulsar
    picks one by a hash of the topic's name, so that a new consumer may take the topic from a working one. Here it does
    so only with a lower priority number.
    """

    def __init__(self, consumers: Consumers, partition: int | None, *, is_exclusive: bool) -> None:
        super().__init__(consumers)
        self._partition, self._is_exclusive = partition, is_exclusive
        self._active: AttachedConsumer | None = None

    @property
    def active(self) -> AttachedConsumer | None:
        return self._active

    def joined(self, consumer: AttachedConsumer) -> None:
        self._choose()

    def left(self, consumer: AttachedConsumer) -> None:
        self._choose()

    def _choose(self) -> None:
        lowest = min((consumer.priority for consumer in self._consumers), default=0)
        first = sorted(
            (consumer for consumer in self._consumers if consumer.priority == lowest),
            key=lambda consumer: consumer.name,
        )
        if not first:
            self._active = None
        elif self._partition is not None:
            self._active = first[self._partition % len(first)]
        elif self._active not in first:
            self._active = first[0]

    def admits(self) -> bool:
        return not (self._is_exclusive and len(self._consumers))

    def capacity(self) -> int:
        active = self._active
        return 0 if active is None else self._consumers.capacity(active)

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        active, count = self._active, len(batch)
        if active is None:
            return Placement([], batch)
        if room >= count:
            return make_named(Placement, [make_named(Assignment, active, batch, None)], None)
        return Placement([Assignment(active, batch.slice(0, room))], batch.slice(room, count))


class RoundRobinSelector(Selector):
    """Selector of shared subscriptions: messages are distributed to the consumers that have room, in turn.

    Consumers of a lower priority number come first, as long as they have room.
    """

    delays = True

    def __init__(self, consumers: Consumers) -> None:
        super().__init__(consumers)
        self._turn = 0  # total number of turns

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        shares: list[Assignment] = []
        at, stop = 0, min(room, len(batch))
        left = {consumer: self._consumers.capacity(consumer) for consumer in self._consumers}
        fair = -(-stop // max(len(self._candidates(left)), 1))
        while at < stop and (candidates := self._candidates(left)):
            candidate = candidates[self._turn % len(candidates)]
            count = min(left[candidate], fair, TURN_MAX, stop - at)
            shares.append(Assignment(candidate, batch.slice(at, at + count)))
            left[candidate] -= count
            at += count
            self._turn += 1
        return Placement(shares, batch.slice(at, len(batch)) if at < len(batch) else None)

    @staticmethod
    def _candidates(left: dict[AttachedConsumer, int]) -> list[AttachedConsumer]:
        """Return the consumers with room, of the first priority that has any."""
        able = [consumer for consumer, room in left.items() if room > 0]
        first = min((consumer.priority for consumer in able), default=0)
        return [consumer for consumer in able if consumer.priority == first]
