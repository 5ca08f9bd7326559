"""What a remote subscription holds of its consumer: not the consumer itself, so that it may be forgotten."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pyreplog.errors import ReplogError
from pyreplog.topic.model.interfaces import DeliveredMessages

if TYPE_CHECKING:
    from pyreplog.topic.client.consumer import Consumer


class WeakConsumer:
    """A DeliveryTarget: passes all on to its consumer, while somebody has that. What comes in the moment in which the
    consumer is forgotten is nobody's: it comes again to others when the consumer is detached, which its finalizer asks
    for."""

    def __init__(self, consumer: Consumer) -> None:
        self.name = consumer.name
        self.is_active = consumer.is_active
        self.consumer = weakref.ref(consumer)
        """None: it was forgotten."""

    def deliver(self, delivery: DeliveredMessages) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.deliver(delivery)

    def discard(self, *, sought: bool = False) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.discard(sought=sought)

    def forget_acks(self, era: int) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.forget_acks(era)

    def became(self, active: bool) -> None:
        self.is_active = active
        if (consumer := self.consumer()) is not None:
            consumer.became(active)

    def failed(self, error: ReplogError) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.failed(error)

    def close(self) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.close()
