"""Which attached consumer gets which messages: exclusive, failover and shared subscriptions. Key_shared ones have a
module of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges, Released, Slots


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """One consumer. holder: its number in `Pending`; permits: how many messages it still asked for; is_blocked: it has
    too many without an acknowledgement."""

    id: int
    name: str
    priority: int
    holder: int
    permits: int = 0
    is_blocked: bool = False
    delivered: int = 0
    acknowledged: int = 0


class Consumers:
    """All of one subscription, in the order in which they came. unacked_max: of each, see SubscriptionConfig."""

    def __init__(self, pending: Pending | PendingRanges, unacked_max: int) -> None:
        self._pending, self.unacked_max = pending, unacked_max
        self.by_id: dict[int, AttachedConsumer] = {}
        """The consumers now, to be looked at only."""

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
        """How many messages it may be given now."""
        if attached.is_blocked:
            return 0
        return min(attached.permits, self.unacked_max - self._pending.count(attached.holder))

    def given(self, attached: AttachedConsumer, messages: int) -> None:
        """They were delivered, and are in `Pending`."""
        attached.permits -= messages
        attached.delivered += messages
        attached.is_blocked = self._pending.count(attached.holder) >= self.unacked_max

    def unblock(self) -> bool:
        """Let blocked consumers go on that have only half as much as they may have; whether there is one."""
        has_unblocked = False
        for attached in self.by_id.values():
            if attached.is_blocked and self._pending.count(attached.holder) <= self.unacked_max // 2:
                attached.is_blocked, has_unblocked = False, True
        return has_unblocked


TURN_MAX = 1000
"""The most messages of a shared subscription that one consumer gets before the next has its turn."""


class Assignment(NamedTuple):
    """Messages for one consumer; slots: of their keys, where these matter."""

    consumer: AttachedConsumer
    batch: MessageBatch
    slots: Slots | None = None


class Placement(NamedTuple):
    """rest: what nobody has room for, to be placed again later."""

    shares: list[Assignment]
    rest: MessageBatch | None


class Selector:
    """Base of the selectors of all types. Methods that a type does not override do nothing, or what is usual."""

    delays = False
    """Whether messages wait for their `deliver_at`: only where there is no order to be kept."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    @property
    def active(self) -> AttachedConsumer | None:
        """The consumer that gets all messages; None: several may get some, or there is none."""
        return None

    def admits(self) -> bool:
        """Whether one more consumer may attach."""
        return True

    def joined(self, consumer: AttachedConsumer) -> None:
        """Note that a consumer was attached; it is among the consumers already."""

    def left(self, consumer: AttachedConsumer) -> None:
        """Note that a consumer was detached. Its messages are `returned` next, or all is cleared."""

    def capacity(self) -> int:
        """The most messages that can be placed now."""
        return sum(self._consumers.capacity(consumer) for consumer in self._consumers)

    def has_changed(self) -> None:
        """Note that some consumer may be given more than before."""

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        """Share out a batch, `room` messages of it at most: 1 or more, and no more than `capacity`. is_fresh: none was
        delivered, or put aside, before."""
        raise NotImplementedError

    def released(self, released: Released) -> None:
        """Note that a consumer does not have these messages any more."""

    def returned(self, released: Released) -> bool:
        """Take messages that a consumer left without an acknowledgement, in the order in which it got them; whether
        they are put aside here."""
        return False

    def forget(self, offsets: Offsets) -> None:
        """Note that messages are acknowledged, or not to be delivered."""

    def forget_range(self, start: int, end: int) -> None:
        """The same for all from start up to end."""

    def waiting(self) -> int:
        """How many messages are put aside."""
        return 0

    def has_space(self) -> bool:
        """Whether more can be put aside, so that reading may go on."""
        return True

    def take(self, most: int) -> Offsets:
        """Up to `most` messages put aside that can be delivered now, once they are read again."""
        return NONE

    def clear(self) -> None:
        """Forget what was delivered or put aside: all of it is read anew."""


class SingleActiveSelector(Selector):
    """Exclusive and failover subscriptions: all messages go to one consumer, in order.

    The active consumer is one of those of the lowest priority number, sorted by name, then by arrival: the first,
    which it stays as long as it is one of those. Of partition p, the one at p modulo their number: partitions are
    shared anew as consumers come and go. partition: None, it is none.

    The rule is Pulsar's (AbstractDispatcherSingleActiveConsumer), but for topics that are no partition: there it is
    drawn by a hash of the topic's name, so that a consumer that joins may take the topic from one that is at work. Here
    it does so only if it has a lower priority number.
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
            return Placement([Assignment(active, batch)], None)
        return Placement([Assignment(active, batch.slice(0, room))], batch.slice(room, count))


class RoundRobinSelector(Selector):
    """Shared subscriptions: messages are spread over the consumers that have room, in turn. Those of a lower priority
    number come first, as long as they have room."""

    delays = True

    def __init__(self, consumers: Consumers) -> None:
        super().__init__(consumers)
        self._turn = 0  # of consumers, by number of turns taken by all

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        shares: list[Assignment] = []
        at, stop = 0, min(room, len(batch))
        left = {consumer: self._consumers.capacity(consumer) for consumer in self._consumers}
        fair = -(-stop // max(len(self._takers(left)), 1))
        while at < stop and (takers := self._takers(left)):
            taker = takers[self._turn % len(takers)]
            count = min(left[taker], fair, TURN_MAX, stop - at)
            shares.append(Assignment(taker, batch.slice(at, at + count)))
            left[taker] -= count
            at += count
            self._turn += 1
        return Placement(shares, batch.slice(at, len(batch)) if at < len(batch) else None)

    @staticmethod
    def _takers(left: dict[AttachedConsumer, int]) -> list[AttachedConsumer]:
        """Those with room, of the first priority that has any."""
        able = [consumer for consumer, room in left.items() if room > 0]
        first = min((consumer.priority for consumer in able), default=0)
        return [consumer for consumer in able if consumer.priority == first]
