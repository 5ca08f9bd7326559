"""What is between a consumer and its subscription, which may be in another process."""

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
Noted = tuple[int, int] | NDArray[np.int64]
"""Offsets: from and up to, or one by one, ascending, each once."""


class WaitFunction(Protocol):
    """`ledger.driver.Runtime.wait`."""

    def __call__(self, future: AppendFuture[T], timeout: float | None = None) -> T: ...


class DeliveredMessages(NamedTuple):
    """Messages for one consumer. redelivered: by offset, how often those that were delivered before were."""

    batch: MessageBatch
    redelivered: Mapping[int, int]


class SubscriptionLike(Protocol):
    """The subscription of a consumer, here or behind a connection. Calls come from any thread; none waits.

    timeout: seconds that calls wait which do not say how long; None: as long as it takes.
    """

    @property
    def timeout(self) -> float | None: ...

    @property
    def era(self) -> int:
        """A random number from its beginning, or from a seek, up to the next seek; 0: not known."""
        ...

    def flow(self, consumer: int, messages: int) -> None:
        """It has room for so many more."""
        ...

    def acknowledge(self, consumer: int, offsets: NDArray[np.int64]) -> None: ...
    def acknowledge_range(self, consumer: int, start: int, end: int) -> None: ...

    def acknowledge_noted(self, consumer: int, take: Callable[[], Noted | None]) -> None:
        """What `take` gives. It is called in turn with all other calls: those that another thread makes meanwhile come
        before it, or behind what it took."""
        ...

    def acknowledge_cumulative(self, consumer: int, end: int) -> AppendFuture[None]: ...

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        """reason: text of at most `REASON_BYTES_MAX` bytes."""
        ...

    def redeliver(self, consumer: int) -> None: ...
    def seek(self, start: Start) -> AppendFuture[int]: ...
    def flush_async(self) -> AppendFuture[None]: ...

    def detach(self, consumer: int) -> None:
        """Its place is free when this returns; in a callback or coroutine, which does not wait for that: soon."""
        ...

    def abandon(self, consumer: int) -> None:
        """As detach, for finalizers, which may run anywhere: another thread does it."""
        ...

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """As `ledger.driver.Runtime.wait`."""
        ...

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object: ...


class DeliveryTarget(Protocol):
    """What a subscription delivers to: a Consumer, or what stands for one of another process. Calls come one at a time;
    none waits."""

    name: str

    def deliver(self, delivery: DeliveredMessages) -> None: ...

    def discard(self, *, sought: bool = False) -> None:
        """What waits is not its own any more. sought: it was told to `forget_acks` for the same seek."""
        ...

    def forget_acks(self, era: int) -> None:
        """Those that it has gathered came before a seek, which is being done: in the middle of that step. era: the
        subscription's from now on, see `Subscription.era`."""
        ...

    def became(self, active: bool) -> None: ...
    def failed(self, error: ReplogError) -> None: ...
    def close(self) -> None: ...
