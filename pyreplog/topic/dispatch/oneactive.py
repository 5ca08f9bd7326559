"""Exclusive and failover subscriptions: all messages go to one consumer, in order."""

from __future__ import annotations

from pyreplog._native.messages import MessageBatch
from pyreplog.topic.dispatch.consumers import Attached, Consumers
from pyreplog.topic.dispatch.selector import Placement, Selector, Share


class OneActive(Selector):
    """The active consumer is the one of the lowest priority number; of several, the first by name, then by arrival."""

    def __init__(self, consumers: Consumers, *, is_exclusive: bool) -> None:
        super().__init__(consumers)
        self._is_exclusive = is_exclusive

    @property
    def active(self) -> Attached | None:
        return min(self._consumers, key=lambda consumer: (consumer.priority, consumer.name), default=None)

    def admits(self) -> bool:
        return not (self._is_exclusive and len(self._consumers))

    def capacity(self) -> int:
        active = self.active
        return 0 if active is None else self._consumers.capacity(active)

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        active = self.active
        fits = 0 if active is None else min(self._consumers.capacity(active), room, len(batch))
        if active is None or fits <= 0:
            return Placement([], batch)
        if fits == len(batch):
            return Placement([Share(active, batch)], None)
        return Placement([Share(active, batch.slice(0, fits))], batch.slice(fits, len(batch)))
