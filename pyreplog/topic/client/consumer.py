"""Consumer: receives messages of a subscription, and acknowledges them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog._native.topic.prefetch_buffer import PrefetchBuffer
from pyreplog.coroutines import check_may_block
from pyreplog.errors import ClosedError, InvalidArgumentError, OutcomeUnknownError, ReplogError
from pyreplog.fair_lock import FairLock
from pyreplog.future import AppendFuture, as_timeout, completed_future, set_exception, set_result
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.topic.model.arguments import as_delay_us, as_offsets, as_reason, check_queue
from pyreplog.topic.model.interfaces import AckedOffsets, DeliveredMessages, SubscriptionLike
from pyreplog.topic.model.positions import Start

FIRST_PERMITS = 1024
"""Permits at first; they double up to the whole queue. Few, because no other consumer gets permitted messages."""

BYTES_MAX = 64 << 20
"""Approximate limit for the values of waiting messages."""

_WEIGHT = 8  # of the average size so far, relative to one delivery


class Permits:
    """Decides how many messages to ask for. queue: most messages that may wait."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        self._most = self._asked = min(queue, FIRST_PERMITS)
        self._size = 0.0  # estimated bytes of a message

    @property
    def first(self) -> int:
        """Number of messages to ask for at the beginning."""
        return min(self._queue, FIRST_PERMITS)

    def delivered(self, messages: int, size: int) -> None:
        """Note that messages with so many bytes of values were delivered."""
        if messages:
            self._size += (size / messages - self._size) / (_WEIGHT if self._size else 1)

    def taken(self, messages: int) -> int:
        """Note that messages were taken; return how many more to ask for, half a queue at a time. 0: none yet."""
        self._asked -= messages
        if 2 * self._asked > self._most:
            return 0
        fits = int(BYTES_MAX / self._size) if self._size else self._queue
        self._most = max(min(2 * self._most, self._queue, fits), 1)
        more = max(self._most - self._asked, 0)
        self._asked += more
        return more


T = TypeVar("T")
ACKS_WAIT_S = 0.1
QUEUE = 1 << 16

What = Message | MessageBatch | int | Iterable[Message | int]
"""A message, a batch, an offset, or several messages or offsets."""


class Consumer(Handle, PrefetchBuffer):
    """A consumer of a subscription; made by `Topic.subscribe`. Close it, or use `with` or `async with`.

    When it is closed, messages that it has not acknowledged go to the other consumers, or come again to the next one. A
    consumer that is forgotten is closed, with a ResourceWarning. Messages come at least once: again after a crash, a
    `nack`, or without an acknowledgement.

    Any thread may use it. asyncio code uses `async for`, and awaits `receive_async()` and the other methods of that
    ending; `acknowledge` and `nack` never wait. See docs/topics.md.
    """

    def __init__(self, topic: str, subscription: str, name: str, *, queue: int = QUEUE) -> None:
        self.topic, self.subscription, self.name = topic, subscription, name
        self.is_active = True
        """Whether messages come here; a failover subscription has one active consumer at a time."""
        self._permits = Permits(check_queue(queue))
        self._lock = threading.Lock()  # guards the inbox and its waiters
        self._inbox: deque[DeliveredMessages] = deque()
        self._waiting: deque[AppendFuture[DeliveredMessages]] = deque()
        self._failed: ReplogError | None = None
        self._receive_lock = FairLock()  # held by the caller that takes the next batch for `receive`
        self._source: SubscriptionLike
        self._era = 0  # era of the subscription when this was attached
        self._id = -1
        super().__init__(f"consumer {name} of {subscription} on {topic}")

    # ---- calls of the subscription -------------------------------------------------------------------------

    def attached(self, source: SubscriptionLike, consumer: int) -> None:
        """Note the subscription that it was attached to, and its number there; ask for the first messages.

        Args:
            source: the subscription.
            consumer: number of this consumer.
        """
        self._source, self._id = source, consumer
        self._era = source.era  # no message comes before the next line asks for some
        source.flow(consumer, self._permits.first)

    def deliver(self, delivery: DeliveredMessages) -> None:
        """Take messages; called by the subscription.

        Args:
            delivery: the messages.
        """
        with self._lock:
            self._permits.delivered(len(delivery.batch), delivery.batch.value_bytes)
            self._inbox.append(delivery)
        self._hand_out()

    def discard(self, *, sought: bool = False) -> None:
        """Discard the messages that wait: they come again, or not at all. Called by the subscription.

        Args:
            sought: a seek was the reason.
        """
        with self._lock:
            dropped, self._inbox = list(self._inbox), deque()
            self._end()
        self._hand_out()
        self._ask(sum(len(delivery.batch) for delivery in dropped))

    def forget_acks(self, era: int) -> None:
        """Discard collected acknowledgements, because a seek precedes them. Called by the subscription.

        Args:
            era: the era of the subscription from now on.
        """
        self._take_noted()

    def set_active(self, active: bool) -> None:
        """Set `is_active`; called by the subscription.

        Args:
            active: whether messages come here.
        """
        self.is_active = active

    def failed(self, error: ReplogError) -> None:
        """End the consumer with an error; called by the subscription.

        Args:
            error: why no more messages come.
        """
        self._collect(False)
        with self._lock:
            self._failed = self._failed or error
            waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            set_exception(future, error)

    @property
    def era(self) -> int:
        """A random number of the subscription that changes with each seek.

        0: a seek moved the subscription since this consumer was attached, or the server does not tell it (before
        version 2 of the wire).
        """
        return self._era if self._source.era == self._era else 0

    # ---- receiving ------------------------------------------------------------------------------------------

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        """Iterate over batches as they come.

        Args:
            timeout: seconds without a message after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `receive`.
        """
        while (batch := self.receive_batch(timeout)) is not None:
            yield batch

    def receive_batch(self, timeout: float | None = None) -> MessageBatch | None:
        """Wait for the next messages, as columns. Messages of a batch that `receive` has begun come first.

        Args:
            timeout: seconds; None: without limit. After them the result is None.

        Raises:
            ReplogError: as `receive`.
        """
        if timeout != 0:
            check_may_block("receive_batch")
        begun = self._rest()
        if begun is not None:
            return begun
        delivery = self._take(as_timeout(timeout))
        return None if delivery is None else delivery.batch

    async def receive_async(self) -> Message:
        """Wait for the next message, in a coroutine. No message is lost when it is cancelled.

        Raises:
            ReplogError: as `receive`.
        """
        acquired = self._receive_lock.enter()
        try:
            await acquired
        except BaseException:
            self._receive_lock.give_up(acquired)
            raise
        try:
            while True:
                try:
                    return self._next()
                except StopIteration:
                    self._begin(await self._take_async())
        finally:
            self._receive_lock.leave()

    async def receive_batch_async(self) -> MessageBatch:
        """Wait for the next messages, as columns, in a coroutine.

        Raises:
            ReplogError: as `receive`.
        """
        return self._rest() or (await self._take_async()).batch

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages as they come; ends when the consumer is closed, or with an error of `receive`.

        Raises:
            ClosedError: the consumer was closed before.
        """
        self._check_open()
        while True:
            try:
                message = self.receive()
            except ClosedError:
                if self.is_closed:
                    return
                raise
            assert message is not None
            yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages as they come, as `for` does."""
        self._check_open()
        while True:
            try:
                message = await self.receive_async()
            except ClosedError:
                if self.is_closed:
                    return
                raise
            yield message

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._error is not None

    def _receive(self, max_messages: int | None, timeout: float | None) -> Message | list[Message] | None:
        if max_messages is not None:
            return self._receive_many(max_messages, timeout)
        if timeout != 0:
            check_may_block("receive")
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self._receive_lock.try_enter() and not self._await_turn(deadline):
            return None
        try:
            while True:
                try:
                    return self._next()
                except StopIteration:
                    delivery = self._take(_left(deadline))
                    if delivery is None:
                        return None
                    self._begin(delivery)
        finally:
            self._receive_lock.leave()

    def _await_turn(self, deadline: float | None) -> bool:
        """Wait for the other callers of `receive`; return False if the time ran out."""
        acquired = self._receive_lock.enter()
        try:
            if not acquired.done():
                acquired.result(_left(deadline))
        except OutcomeUnknownError:
            self._receive_lock.give_up(acquired)
            return False
        except BaseException:
            self._receive_lock.give_up(acquired)
            raise
        return True

    def _receive_many(self, count: int, timeout: float | None) -> list[Message]:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(f"max_messages: expected 1 or more, found {count!r}")
        first = self.receive(timeout=timeout)
        if first is None:
            return []
        messages = [first]
        while len(messages) < count:
            more = self.receive(timeout=0)
            if more is None:
                break
            messages.append(more)
        return messages

    # ---- the inbox ------------------------------------------------------------------------------------------

    def _take(self, timeout: float | None) -> DeliveredMessages | None:
        self._check_open()
        with self._lock:
            delivery = self._inbox.popleft() if self._inbox and not self._waiting else None
        if delivery is None:
            future: AppendFuture[DeliveredMessages] = AppendFuture()
            try:  # Ctrl-C may come as soon as it waits
                with self._lock:
                    self._expect(future)
                if self._inbox:  # otherwise the next delivery is handed out
                    self._hand_out()
                self._send_acks()  # a waiting caller acknowledges nothing soon
                delivery = self._source.wait(future, timeout)
            except OutcomeUnknownError:
                if self._gave_up(future):
                    return None
                delivery = future.result()
            except BaseException:
                self._put_back(future)
                raise
        self._ask(len(delivery.batch))
        return delivery

    async def _take_async(self) -> DeliveredMessages:
        self._check_open()
        future: AppendFuture[DeliveredMessages] = AppendFuture()
        with self._lock:
            self._expect(future)
        self._hand_out()
        try:
            delivery = await future
        except BaseException:
            self._put_back(future)
            raise
        self._ask(len(delivery.batch))
        return delivery

    def _expect(self, future: AppendFuture[DeliveredMessages]) -> None:
        if self._failed is not None and not self._inbox:
            set_exception(future, self._failed)
        else:
            self._waiting.append(future)

    def _gave_up(self, future: AppendFuture[DeliveredMessages]) -> bool:
        """Stop waiting; return whether nothing was, or will be, handed to the future."""
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)
        return set_exception(future, ClosedError("the caller does not wait for it any more"))

    def _put_back(self, future: AppendFuture[DeliveredMessages]) -> None:
        """Give the delivery of an interrupted call to the next one."""
        if not self._gave_up(future) and future.exception() is None:
            with self._lock:
                self._inbox.appendleft(future.result())
            self._hand_out()

    def _hand_out(self) -> None:
        """Hand deliveries to waiting calls, in order; if none is left and none will come, fail the others."""
        while True:
            with self._lock:
                if not self._waiting or not (self._inbox or self._failed):
                    return
                future = self._waiting.popleft()
                delivery = self._inbox.popleft() if self._inbox else None
            if delivery is None:
                assert self._failed is not None
                set_exception(future, self._failed)
            elif not set_result(future, delivery):
                with self._lock:
                    self._inbox.appendleft(delivery)

    def _ask(self, messages: int) -> None:
        """Note that messages were taken, and ask for more when it is time."""
        with self._lock:
            more = self._permits.taken(messages)
        if more and self._error is None:
            self._source.flow(self._id, more)

    # ---- acknowledging --------------------------------------------------------------------------------------

    def _acknowledge(self, messages: What) -> None:
        """Acknowledge messages that PrefetchBuffer does not collect."""
        self._check_usable()
        self._send_acks()
        if isinstance(messages, Message):
            if not self._collects:
                self._collect(True)
                self._source.wake_after(ACKS_WAIT_S, self._acks_due)
            self.acknowledge(messages)
        elif isinstance(messages, MessageBatch):
            start, end = messages.first, messages.last + 1
            if end - start == len(messages) > 0:
                self._source.acknowledge_range(self._id, start, end)
            else:
                self._send_offsets(messages.offset)
        else:
            self._send_offsets(as_offsets(messages))

    def acknowledge_cumulative(self, messages: Message | MessageBatch | int, *, timeout: float | None = None) -> None:
        """Acknowledge a message and all before it, and wait until the owner has done so. Not for shared subscriptions.

        Args:
            messages: a message, an offset, or a batch, of which the last message counts.
            timeout: seconds, as in `flush`.

        Raises:
            InvalidArgumentError: the subscription is shared, or everything below the message is acknowledged already.
            OutOfRangeError: the offset is beyond the end of the topic.
            ReplogError: as `flush`.
        """
        check_may_block("acknowledge_cumulative")
        self._await(self.acknowledge_cumulative_async(messages), timeout)

    def acknowledge_cumulative_async(self, messages: Message | MessageBatch | int) -> AppendFuture[None]:
        """Return a future that is done when a message and all before it are acknowledged.

        Args:
            messages: as in `acknowledge_cumulative`.

        Raises:
            ReplogError: as `acknowledge_cumulative`.
        """
        self._check_usable()
        self._send_acks()
        offsets = messages.offset if isinstance(messages, MessageBatch) else as_offsets(messages)
        if not len(offsets):
            return completed_future()
        end = int(offsets[-1]) + 1  # not `messages.end`, which is the end of the read that the batch may be a part of
        return self._source.acknowledge_cumulative(self._id, end)

    def nack(self, messages: What, *, delay: float | None = None, reason: str | None = None) -> None:
        """Refuse messages: they come again.

        Args:
            messages: as in `acknowledge`.
            delay: seconds until they come again; None: the back-off of the subscription.
            reason: text for people; a dead letter has the last one. Its first 1,024 bytes of UTF-8 are kept.

        Raises:
            ReplogError: as `acknowledge`.
        """
        self._check_usable()
        self._send_acks()
        offsets, delay_us = (
            messages.offset if isinstance(messages, MessageBatch) else as_offsets(messages),
            as_delay_us(delay),
        )
        text = as_reason(reason)
        if len(offsets):
            self._source.nack(self._id, offsets, delay_us, text)

    def redeliver(self) -> None:
        """Refuse all messages that this consumer has not acknowledged: they come again now.

        Raises:
            ReplogError: as `acknowledge`.
        """
        self._check_usable()
        self._send_acks()
        self._source.redeliver(self._id)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acknowledgements so far are durable, so that none of their messages comes again.

        If the connection is lost meanwhile, acknowledgements that no flush has confirmed are sent again over the next
        one.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out, or it is not known whether some of them count, because a seek moved
                the subscription, or it was deleted and created again, while there was no connection.
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            ReplogError: as `acknowledge`.
        """
        check_may_block("flush")
        self._await(self.flush_async(), timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when all acknowledgements so far are durable.

        Raises:
            ReplogError: as `flush`.
        """
        self._check_usable()
        self._send_acks()
        return self._source.flush_async()

    def seek(self, start: Start, *, timeout: float | None = None) -> int:
        """Move the whole subscription, including its other consumers.

        Messages before the start count as acknowledged, those behind as not.

        Args:
            start: an offset, a time of publishing, "earliest" or "latest".
            timeout: seconds, as in `flush`.

        Returns:
            The offset at which the subscription goes on.

        Raises:
            OutOfRangeError: the start is beyond the end.
            TrimmedError: the messages at the start were removed.
            ReplogError: as `flush`.
        """
        check_may_block("seek")
        return self._await(self.seek_async(start), timeout)

    def seek_async(self, start: Start) -> AppendFuture[int]:
        """Return a future of the offset at which the moved subscription goes on; see `seek`.

        Args:
            start: as in `seek`.

        Raises:
            ReplogError: as `seek`.
        """
        self._check_usable()
        self._send_acks()
        return self._source.seek(start)

    def _await(self, future: AppendFuture[T], timeout: float | None) -> T:
        """Wait for a future; after a timeout a pending request is not sent any more."""
        seconds = as_timeout(timeout)
        try:
            return self._source.wait(future, self._source.timeout if seconds is None else seconds)
        except OutcomeUnknownError as error:
            set_exception(future, error)
            raise

    def _check_usable(self) -> None:
        self._check_open()
        if self._failed is not None:
            raise self._failed

    def _acks_due(self) -> None:
        if self._failed is None:
            self._source.acknowledge_noted(self._id, self._take_last)

    def _send_acks(self) -> None:
        if self._collects and self._failed is None:
            self._source.acknowledge_noted(self._id, self._take_noted)

    def _take_noted(self) -> AckedOffsets | None:
        run: AckedOffsets | None = self._take_run()
        return self._take_acked() if run is None else run

    def _take_last(self) -> AckedOffsets | None:
        self._collect(False)  # not earlier: a concurrent flush has to come behind this
        return self._take_noted()

    def _send_offsets(self, offsets: NDArray[np.int64]) -> None:
        """Send ascending, distinct offsets."""
        if len(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1:
            self._source.acknowledge_range(self._id, int(offsets[0]), int(offsets[-1]) + 1)
        elif len(offsets):
            self._source.acknowledge(self._id, offsets)

    # ---- the end --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        self._end()
        self._send_acks()
        if self._id >= 0 and self._failed is None:
            self._source.detach(self._id)
        self.failed(ClosedError(f"the {self._label} was closed"))

    def _after_fork(self) -> None:
        self._end()
        self._collect(False)

    def abandon(self) -> None:
        """Release its messages in another thread, as closing does; for finalizers."""
        if self._error is None:
            self._error = ClosedError(f"the {self._label} was garbage-collected before it was closed")
            if self._id >= 0 and self._failed is None:
                self._source.abandon(self._id)

    def __del__(self) -> None:
        """Close the consumer without waiting and without locks, because a finalizer may run anywhere."""
        if getattr(self, "_error", self) is None and os.getpid() == self._pid:
            warn_of_leak(self._label, self, self._opened_at)
            self.abandon()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
