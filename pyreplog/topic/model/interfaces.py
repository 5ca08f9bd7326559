"""The interfaces between a consumer and its subscription, which may be in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.positions import Start

T = TypeVar("T")
AckedOffsets = tuple[int, int] | NDArray[np.int64]
"""Offsets to acknowledge: a half-open range, or ascending distinct offsets."""


class WaitFunction(Protocol):
    """The signature of `ledger.driver.Runtime.wait`."""

    def __call__(self, future: AppendFuture[T], timeout: float | None = None) -> T: ...


class DeliveredMessages(NamedTuple):
    """Messages for one consumer. redelivered: how often each message was delivered before, by offset, if it was."""

    batch: MessageBatch
    redelivered: Mapping[int, int]


class SubscriptionLike(Protocol):
    """The subscription of a consumer, in this process or behind a connection. Any thread may call it; no call waits.

    timeout: seconds that blocking calls of the consumer wait by default; None: without limit.
    """

    @property
    def timeout(self) -> float | None: ...

    @property
    def era(self) -> int:
        """A random number that changes with each seek; 0: not known."""
        ...

    def flow(self, consumer: int, messages: int) -> None:
        """Add a number of messages to a consumer's permits."""
        ...

    def acknowledge(self, consumer: int, offsets: NDArray[np.int64]) -> None: ...
    def acknowledge_range(self, consumer: int, start: int, end: int) -> None: ...

    def acknowledge_noted(self, consumer: int, take: Callable[[], AckedOffsets | None]) -> None:
        """Acknowledge the offsets that `take` returns.

        `take` is called in order with all other calls: another thread's call comes before it, or after the
        acknowledgement.
        """
        ...

    def acknowledge_cumulative(self, consumer: int, end: int) -> AppendFuture[None]: ...

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        """Refuse messages. reason: text of at most `REASON_BYTES_MAX` bytes."""
        ...

    def redeliver(self, consumer: int) -> None: ...
    def seek(self, start: Start) -> AppendFuture[int]: ...
    def flush_async(self) -> AppendFuture[None]: ...

    def detach(self, consumer: int) -> None:
        """Detach a consumer.

        Its place is free on return; in a callback or coroutine, which must not wait, soon after.
        """
        ...

    def abandon(self, consumer: int) -> None:
        """Detach a consumer in another thread; for finalizers, which may run anywhere."""
        ...

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Wait for a future, as `ledger.driver.Runtime.wait` does."""
        ...

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object: ...


class DeliveryTarget(Protocol):
    """The receiver of a subscription's messages: a Consumer, or the proxy of a remote one.

    Calls come one at a time; none waits.
    """

    name: str

    def deliver(self, delivery: DeliveredMessages) -> None: ...

    def discard(self, *, sought: bool = False) -> None:
        """Discard the messages that wait. sought: `forget_acks` was called for the same seek."""
        ...

    def forget_acks(self, era: int) -> None:
        """Discard collected acknowledgements, in the middle of a seek that they precede.

        era: the era of the subscription from now on, see `SubscriptionLike.era`.
        """
        ...

    def set_active(self, active: bool) -> None: ...
    def failed(self, error: ReplogError) -> None: ...
    def close(self) -> None: ...
