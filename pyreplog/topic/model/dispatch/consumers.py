"""The consumers that are attached, and how much each may be given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges


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
