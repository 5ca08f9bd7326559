"""Shared subscriptions: messages are spread over the consumers that have room, in turn."""

from __future__ import annotations

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.consumers import AttachedConsumer, Consumers
from pyreplog.topic.model.dispatch.selector import Assignment, Placement, Selector

TURN_MAX = 1000
"""So many messages at most go to one consumer before the next has its turn."""


class RoundRobinSelector(Selector):
    """Consumers of a lower priority number come first, as long as they have room."""

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
