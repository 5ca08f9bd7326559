"""PartitionConsumer: receives from one partition, for a PartitionedConsumer."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog._native.topic.messages import Message
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.net.sockets import weak_callback
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.interfaces import DeliveredMessages
from pyreplog.topic.model.positions import Start


class PartitionConsumer(Consumer):
    """A Consumer that tells when something came, and is asked then: nobody waits for one partition alone.

    on_change: called, from any thread, for every delivery, and when nothing will come any more.
    """

    waiting = 0
    """Deliveries that `on_change` was called for, and that nobody has asked for; kept by whoever it tells."""

    def __init__(
        self,
        partition: int,
        topic: str,
        subscription: str,
        name: str,
        *,
        queue: int,
        on_change: Callable[[PartitionConsumer], None],
    ) -> None:
        self.partition = partition
        self._on_change = weak_callback(on_change)  # who forgets the whole forgets this
        super().__init__(topic, subscription, name, queue=queue)

    def deliver(self, delivery: DeliveredMessages) -> None:
        delivery.batch.partition = self.partition
        super().deliver(delivery)
        self._on_change(self)

    def failed(self, error: ReplogError) -> None:
        super().failed(error)
        self._on_change(self)

    def next_message(self) -> Message:
        """Of the batch that was begun. StopIteration: there are no more."""
        return self._next()

    def begin(self) -> bool:
        """Begin the next batch; False: there is none. Errors: what ended the subscription; ClosedError."""
        delivery = self._poll(begin=True)
        return delivery is not None

    def poll(self) -> DeliveredMessages | None:
        """The next messages, None: there are none. Errors: as begin."""
        return self._poll(begin=False)

    def _poll(self, *, begin: bool) -> DeliveredMessages | None:
        with self._lock:
            if not self._inbox:
                if self._failed is not None:
                    raise self._failed
                return None
            delivery = self._inbox.popleft()
            if begin:  # while nobody can discard it
                self._begin(delivery)
        self._ask(len(delivery.batch))
        return delivery

    def send_acks(self) -> None:
        """Do not gather acknowledgements any longer."""
        self._send_acks()

    def sought(self, start: Start) -> AppendFuture[int]:
        """As `seek`, without waiting. Errors: as `acknowledge`."""
        self._check_usable()
        self._send_acks()
        return self._source.seek(start)
