"""Consumer: what user code receives messages with, and acknowledges them."""

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
from pyreplog.errors import ClosedError, InvalidArgumentError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.topic.model.arguments import as_delay_us, as_offsets, as_reason, check_may_block, check_queue
from pyreplog.topic.model.fair_lock import FairLock
from pyreplog.topic.model.interfaces import DeliveredMessages, Noted, SubscriptionLike
from pyreplog.topic.model.positions import Start, done_ack

FIRST = 1024
"""So many at first, then twice as many each time, up to the whole queue: what one consumer has no other gets."""

BYTES_MAX = 64 << 20
"""Of values that wait, about."""

_WEIGHT = 8  # of what is known of sizes, against one delivery


class Permits:
    """queue: messages that may wait at most."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        self._most = self._asked = min(queue, FIRST)
        self._size = 0.0  # bytes of a message, about

    @property
    def first(self) -> int:
        """What to ask for at the beginning."""
        return min(self._queue, FIRST)

    def came(self, messages: int, size: int) -> None:
        """So many were delivered, their values of so many bytes."""
        if messages:
            self._size += (size / messages - self._size) / (_WEIGHT if self._size else 1)

    def taken(self, messages: int) -> int:
        """So many wait no more; how many to ask for anew, half a queue at a time. 0: none yet."""
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
"""One message, a batch of them, an offset, or several."""


class Consumer(Handle, PrefetchBuffer):
    """One consumer of a subscription; made by `Topic.subscribe`. Close it, or use `with` or `async with`: what it has
    not acknowledged then goes to the others, or comes again to the next. One that is forgotten is closed, with a
    ResourceWarning.

    Any thread may call anything. asyncio code uses `async for`, and awaits `receive_async()` and the other methods of
    that ending; `acknowledge` and `nack` never wait. Messages come at least once: again after a crash, a `nack`, or
    without an acknowledgement.
    """

    def __init__(self, topic: str, subscription: str, name: str, *, queue: int = QUEUE) -> None:
        self.topic, self.subscription, self.name = topic, subscription, name
        self.is_active = True
        """Whether messages come: of a failover subscription, to one consumer at a time."""
        self._permits = Permits(check_queue(queue))
        self._lock = threading.Lock()  # of the inbox and of who waits for it
        self._inbox: deque[DeliveredMessages] = deque()
        self._waiting: deque[AppendFuture[DeliveredMessages]] = deque()
        self._failed: ReplogError | None = None
        self._receive_lock = FairLock()  # of who takes the next batch for `receive`
        self._source: SubscriptionLike
        self._era = 0  # of the subscription, when this was attached
        self._id = -1
        super().__init__(f"consumer {name} of {subscription} on {topic}")

    # ---- what the subscription calls -------------------------------------------------------------------------

    def attached(self, source: SubscriptionLike, consumer: int) -> None:
        """It belongs to a subscription now, under this number; asks for its first messages."""
        self._source, self._id = source, consumer
        self._era = source.era  # no message comes before the next line
        source.flow(consumer, self._permits.first)

    def deliver(self, delivery: DeliveredMessages) -> None:
        """Messages came."""
        with self._lock:
            self._permits.came(len(delivery.batch), delivery.batch.value_bytes)
            self._inbox.append(delivery)
        self._hand_out()

    def discard(self, *, sought: bool = False) -> None:
        """What waits here is not its own any more: it will come again, or not at all."""
        with self._lock:
            dropped, self._inbox = list(self._inbox), deque()
            self._end()
        self._hand_out()
        self._ask(sum(len(delivery.batch) for delivery in dropped))

    def forget_acks(self, era: int) -> None:
        """The position was moved: acknowledgements from before, which nobody was told of yet, do not count."""
        self._take_noted()

    def became(self, active: bool) -> None:
        self.is_active = active

    def failed(self, error: ReplogError) -> None:
        """Nothing will come any more."""
        self._gather(False)
        with self._lock:
            self._failed = self._failed or error
            waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            future.fail(error)

    @property
    def era(self) -> int:
        """A random number of the subscription, another one after each seek; 0: a seek moved it since this consumer was
        attached, or it is not known, of a server before version 2 of the wire."""
        return self._era if self._source.era == self._era else 0

    # ---- receiving ------------------------------------------------------------------------------------------

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        """Messages as they come, many at once, as columns; ends when none came for `timeout` seconds (None: never).
        Errors as receive."""
        while (batch := self.receive_batch(timeout)) is not None:
            yield batch

    def receive_batch(self, timeout: float | None = None) -> MessageBatch | None:
        """The next messages as columns; None when none came within `timeout` seconds. Those that `receive` has begun to
        hand out come first. Errors as receive."""
        if timeout != 0:
            check_may_block("receive_batch")
        begun = self._rest()
        if begun is not None:
            return begun
        delivery = self._take(as_timeout(timeout))
        return None if delivery is None else delivery.batch

    async def receive_async(self) -> Message:
        """The next message, for coroutines: `asyncio.timeout` bounds it, and nothing is lost when it is cancelled.

        Errors as receive.
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
        """The next messages as columns, for coroutines. As receive_batch."""
        return self._rest() or (await self._take_async()).batch

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come; the loop ends when the consumer is closed, or with an error, as receive. ClosedError:
        the consumer was closed before."""
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
        """As `for`."""
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
        acquired = self._receive_lock.enter()
        try:
            if not acquired.done():
                acquired.result(_left(deadline))
        except OutcomeUnknownError:
            self._receive_lock.give_up(acquired)
            return None
        except BaseException:
            self._receive_lock.give_up(acquired)
            raise
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
                if self._inbox:  # else whoever delivers hands out
                    self._hand_out()
                self._send_acks()  # whoever waits has nothing else to acknowledge soon
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
            future.fail(self._failed)
        else:
            self._waiting.append(future)

    def _gave_up(self, future: AppendFuture[DeliveredMessages]) -> bool:
        """Whether nothing was, or will be, handed to it."""
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)
        return future.fail(ClosedError("nobody waits for it any more"))

    def _put_back(self, future: AppendFuture[DeliveredMessages]) -> None:
        """Who waited was interrupted: what it was given is given to the next."""
        if not self._gave_up(future) and future.exception() is None:
            with self._lock:
                self._inbox.appendleft(future.result())
            self._hand_out()

    def _hand_out(self) -> None:
        """Deliveries go to those who wait, in order; when none is left and none will come, the others are told."""
        while True:
            with self._lock:
                if not self._waiting or not (self._inbox or self._failed):
                    return
                future = self._waiting.popleft()
                delivery = self._inbox.popleft() if self._inbox else None
            if delivery is None:
                assert self._failed is not None
                future.fail(self._failed)
            elif not future.complete(delivery):
                with self._lock:
                    self._inbox.appendleft(delivery)

    def _ask(self, messages: int) -> None:
        """So many were taken: ask for more, when it is time."""
        with self._lock:
            more = self._permits.taken(messages)
        if more and self._error is None:
            self._source.flow(self._id, more)

    # ---- acknowledging --------------------------------------------------------------------------------------

    def _acknowledge(self, what: What) -> None:
        """Messages of which none, or too many, were gathered; and all else."""
        self._check_usable()
        self._send_acks()
        if isinstance(what, Message):
            if not self._gathers:
                self._gather(True)
                self._source.wake_after(ACKS_WAIT_S, self._acks_due)
            self.acknowledge(what)
        elif isinstance(what, MessageBatch):
            start, end = what.first, what.last + 1
            if end - start == len(what) > 0:
                self._source.acknowledge_range(self._id, start, end)
            else:
                self._send_offsets(what.offset)
        else:
            self._send_offsets(as_offsets(what))

    def acknowledge_cumulative(self, what: Message | MessageBatch | int, *, timeout: float | None = None) -> None:
        """This one is done with, and all before it, too; not for shared subscriptions. See acknowledge.

        timeout: as of flush. Errors: as flush; InvalidArgumentError, it lies beyond what was published, or messages are
        shared.
        """
        check_may_block("acknowledge_cumulative")
        self._await(self.acknowledge_cumulative_async(what), timeout)

    def acknowledge_cumulative_async(self, what: Message | MessageBatch | int) -> AppendFuture[None]:
        """As acknowledge_cumulative, for coroutines, which await the AppendFuture."""
        self._check_usable()
        self._send_acks()
        offsets = what.offset if isinstance(what, MessageBatch) else as_offsets(what)
        if not len(offsets):
            return done_ack()
        end = int(offsets[-1]) + 1  # a batch's `end` is that of what was read, of which it may be a part
        return self._source.acknowledge_cumulative(self._id, end)

    def nack(self, what: What, *, delay: float | None = None, reason: str | None = None) -> None:
        """These are to come again: in `delay` seconds, or after the subscription's back-off.

        reason: why, for people; a dead letter carries the last one that it was refused with. Of a longer text the first
        1,024 bytes of UTF-8 are kept. Errors: as acknowledge.
        """
        self._check_usable()
        self._send_acks()
        offsets, delay_us = what.offset if isinstance(what, MessageBatch) else as_offsets(what), as_delay_us(delay)
        text = as_reason(reason)
        if len(offsets):
            self._source.nack(self._id, offsets, delay_us, text)

    def redeliver(self) -> None:
        """All that this consumer has not acknowledged is to come again, now. Errors as acknowledge."""
        self._check_usable()
        self._send_acks()
        self._source.redeliver(self._id)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acknowledgements so far are durable: none of their messages comes again.

        timeout: seconds; None: those of the client, where the topic is another process'; else as long as it takes. When
        the connection is lost meanwhile, acknowledgements that no flush has confirmed are said again over the next one.
        Errors: as acknowledge; OutcomeUnknownError: the time ran out, or nobody can tell whether some of them count,
        because a seek moved the subscription, or it was deleted and made anew, while there was no connection;
        InvalidArgumentError, in a coroutine or a callback: use `flush_async`.
        """
        check_may_block("flush")
        self._await(self.flush_async(), timeout)

    def flush_async(self) -> AppendFuture[None]:
        """As flush, for coroutines, which await the AppendFuture: `asyncio.timeout` bounds it. Errors: as flush."""
        self._check_usable()
        self._send_acks()
        return self._source.flush_async()

    def seek(self, start: Start, *, timeout: float | None = None) -> int:
        """Go on from there: what lies before counts as acknowledged, what lies behind as not; returns the offset.

        start: an offset, a moment of publishing, "earliest" or "latest". Of the whole subscription, also its other
        consumers. timeout: as of flush. Errors: as flush; OutOfRangeError, TrimmedError.
        """
        check_may_block("seek")
        return self._await(self.seek_async(start), timeout)

    def seek_async(self, start: Start) -> AppendFuture[int]:
        """As seek, for coroutines, which await the AppendFuture."""
        self._check_usable()
        self._send_acks()
        return self._source.seek(start)

    def _await(self, future: AppendFuture[T], timeout: float | None) -> T:
        """What is not asked for until the time is over is not asked for later."""
        seconds = as_timeout(timeout)
        try:
            return self._source.wait(future, self._source.timeout if seconds is None else seconds)
        except OutcomeUnknownError as error:
            future.fail(error)
            raise

    def _check_usable(self) -> None:
        self._check_open()
        if self._failed is not None:
            raise self._failed

    def _acks_due(self) -> None:
        if self._failed is None:
            self._source.acknowledge_noted(self._id, self._take_last)

    def _send_acks(self) -> None:
        if self._gathers and self._failed is None:
            self._source.acknowledge_noted(self._id, self._take_noted)

    def _take_noted(self) -> Noted | None:
        run: Noted | None = self._take_run()
        return self._take_acked() if run is None else run

    def _take_last(self) -> Noted | None:
        self._gather(False)  # not before: who flushes meanwhile has to come behind this
        return self._take_noted()

    def _send_offsets(self, offsets: NDArray[np.int64]) -> None:
        """Ascending, each once."""
        if len(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1:
            self._source.acknowledge_range(self._id, int(offsets[0]), int(offsets[-1]) + 1)
        elif len(offsets):
            self._source.acknowledge(self._id, offsets)

    # ---- the end --------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self._end()
        self._send_acks()
        if self._id >= 0 and self._failed is None:
            self._source.detach(self._id)
        self.failed(ClosedError(f"the {self._what} was closed"))

    def _forked(self) -> None:
        self._end()
        self._gather(False)

    def abandon(self) -> None:
        """What it has goes to others, as when it is closed, done by another thread; for finalizers."""
        if self._error is None:
            self._error = ClosedError(f"the {self._what} was forgotten")
            if self._id >= 0 and self._failed is None:
                self._source.abandon(self._id)

    def __del__(self) -> None:
        """May run anywhere: nothing is waited for, no lock is taken."""
        if getattr(self, "_error", self) is None and os.getpid() == self._pid:
            warn_of_leak(self._what, self, self._opened_at)
            self.abandon()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
