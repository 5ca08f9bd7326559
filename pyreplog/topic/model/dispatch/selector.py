"""Who gets which messages: what the types of subscriptions differ in."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.consumers import AttachedConsumer, Consumers
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import Released, Slots


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
