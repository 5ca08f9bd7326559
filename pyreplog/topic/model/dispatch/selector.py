"""Which consumer gets which messages: the difference between the types of subscriptions. Key_shared has a module of its
own."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.consumers import AttachedConsumer, Consumers
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import Released, Slots

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
    """What all types have in common; each says here what it does differently."""

    delays = False
    """Whether messages wait for their `deliver_at`: only where there is no order to be kept."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    @property
    def active(self) -> AttachedConsumer | None:
        """The one that gets all messages, if that is how it is."""
        return None

    def admits(self) -> bool:
        """Whether there is a place for one more consumer."""
        return True

    def joined(self, consumer: AttachedConsumer) -> None:
        """It is among the consumers now."""

    def left(self, consumer: AttachedConsumer) -> None:
        """It is not among them any more; what it has is `returned` next, or all is `cleared`."""

    def capacity(self) -> int:
        """How many messages can be placed now, at most."""
        return sum(self._consumers.capacity(consumer) for consumer in self._consumers)

    def has_changed(self) -> None:
        """Some consumer may be given more than before."""

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        """Share out a batch, `room` messages of it at most: 1 or more, and no more than `capacity`. is_fresh: nobody
        had, or was to have, any of it before."""
        raise NotImplementedError

    def released(self, released: Released) -> None:
        """A consumer does not have these any more."""

    def returned(self, released: Released) -> bool:
        """A consumer left these undone, in the order in which it got them; whether they are kept aside here."""
        return False

    def forget(self, offsets: Offsets) -> None:
        """They are acknowledged, or nobody is to have them."""

    def forget_range(self, start: int, end: int) -> None:
        """The same."""

    def waiting(self) -> int:
        """How many messages were put aside because their time has not come."""
        return 0

    def has_space(self) -> bool:
        """Whether more can be put aside, so that reading may go on."""
        return True

    def take(self, most: int) -> Offsets:
        """Some of those put aside that could be delivered now, if they were read again."""
        return NONE

    def clear(self) -> None:
        """All that was delivered or put aside is read anew."""


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
