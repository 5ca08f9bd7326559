"""Exclusive and failover subscriptions: all messages go to one consumer, in order.

Which one is Pulsar's rule (AbstractDispatcherSingleActiveConsumer), but for topics that are no partition: there it is
drawn by a hash of the topic's name, so that whoever joins may take the topic from one that is at work. Here it does so
only if it has a lower priority number.
"""

from __future__ import annotations

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.consumers import AttachedConsumer, Consumers
from pyreplog.topic.model.dispatch.selector import Assignment, Placement, Selector


class SingleActiveSelector(Selector):
    """The active consumer is one of those of the lowest priority number, sorted by name, then by arrival: the first,
    which it stays as long as it is one of those. Of partition p, the one at p modulo their number: partitions are
    shared anew as consumers come and go. partition: None, it is none."""

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
        first = sorted((one for one in self._consumers if one.priority == lowest), key=lambda one: one.name)
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
