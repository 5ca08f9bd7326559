"""PartitionedConsumer: what user code receives the messages of all partitions with, and acknowledges them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar, overload

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.errors import ClosedError, InvalidArgumentError, OutcomeUnknownError, ReplogError, WrongTypeError
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.net.sockets import weak_callback
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.arguments import as_delay_us, as_reason, check_may_block
from pyreplog.topic.model.interfaces import DeliveredMessages, WaitFunction
from pyreplog.topic.model.positions import (
    PartitionedStart,
    PartitionedWhat,
    PartitionOffset,
    all_done,
    by_partition,
    is_offset,
)

T = TypeVar("T")
_NOTHING: Any = iter(()).__next__


class PartitionConsumer(Consumer):
    """A Consumer that tells when something came, and is asked then: nobody waits for one partition alone.

    on_change: called, from any thread, for every delivery, and when nothing will come any more.
    """

    waiting = 0
    """Deliveries that `on_change` has announced and no call has taken; the consumer of all partitions counts."""

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


class PartitionedConsumer(Handle):
    """One consumer of a subscription of a partitioned topic; made by `PartitionedHandle.subscribe`. As a Consumer, but
    that messages and batches have a `partition`, and that offsets are PartitionOffsets. Partitions that have messages
    take turns, batch by batch; what has one key comes from one partition, in order.

    Any thread may call anything, asyncio code as of Consumer. When one partition fails, all calls raise its error: open
    the topic again, and subscribe anew.
    """

    def __init__(
        self, topic: str, subscription: str, name: str, *, wait: WaitFunction, timeout: float | None = None
    ) -> None:
        self.topic, self.subscription, self.name = topic, subscription, name
        self._wait, self._timeout = wait, timeout
        self._parts: dict[int, PartitionConsumer] = {}
        self._lock = threading.Lock()  # of what follows; never while anything waits
        self._ready: deque[PartitionConsumer] = deque()  # those that have something, each once
        self._changes = 0  # how often there was something new
        self._waiting: list[AppendFuture[None]] = []
        self._failed: ReplogError | None = None
        self._turn = threading.Lock()  # of who begins the next batch for `receive`
        self._next: Callable[[], Message] = _NOTHING
        super().__init__(f"consumer {name} of {subscription} on {topic}")

    # ---- partitions -----------------------------------------------------------------------------------------

    def add(self, part: PartitionConsumer) -> None:
        """A partition is received from; for who makes this. It calls `changed`."""
        self._parts = {**self._parts, part.partition: part}  # others may go through them

    def changed(self, part: PartitionConsumer) -> None:
        """Of a partition came something, or nothing will any more."""
        with self._lock:
            part.waiting += 1
            if part.waiting == 1:
                self._ready.append(part)
        self._wake()

    @property
    def partitions(self) -> list[int]:
        """Those that are received from."""
        return sorted(self._parts)

    @property
    def active_partitions(self) -> list[int]:
        """Those whose messages come here: of a failover subscription, each has one consumer at a time."""
        return [partition for partition in self.partitions if self._parts[partition].is_active]

    @property
    def is_active(self) -> bool:
        """Whether there is one."""
        return bool(self.active_partitions)

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    # ---- receiving ------------------------------------------------------------------------------------------

    @overload
    def receive(self, max_messages: None = None, timeout: float | None = None) -> Message | None: ...
    @overload
    def receive(self, max_messages: int, timeout: float | None = None) -> list[Message]: ...
    def receive(self, max_messages: int | None = None, timeout: float | None = None) -> Message | list[Message] | None:
        """The next message; None when none came within `timeout` seconds (None: waits for ever).

        With `max_messages`, a list of 1 to so many of those that are there; empty when the time ran out.
        Errors: as `Consumer.receive`, of any partition.
        """
        if max_messages is not None:
            return self._receive_many(max_messages, timeout)
        try:
            return self._next()
        except StopIteration:
            if timeout != 0:
                check_may_block("receive")
            return self._await(self._take_message, timeout)

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        """Messages as they come, many at once, as columns, each batch of one partition; ends when none came for
        `timeout` seconds (None: never). Errors: as receive."""
        while (batch := self.receive_batch(timeout)) is not None:
            yield batch

    def receive_batch(self, timeout: float | None = None) -> MessageBatch | None:
        """The next messages as columns; None when none came within `timeout` seconds. Errors: as receive."""
        if timeout != 0:
            check_may_block("receive_batch")
        return self._await(self._take_batch, timeout)

    async def receive_async(self) -> Message:
        """The next message, for coroutines: `asyncio.timeout` bounds it, and nothing is lost when it is cancelled.

        Errors: as receive.
        """
        try:
            return self._next()
        except StopIteration:
            return await self._await_async(self._take_message)

    async def receive_batch_async(self) -> MessageBatch:
        """The next messages as columns, for coroutines. Errors: as receive."""
        return await self._await_async(self._take_batch)

    def __iter__(self) -> Iterator[Message]:
        """As of Consumer."""
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
        """As of Consumer."""
        self._check_open()
        while True:
            try:
                message = await self.receive_async()
            except ClosedError:
                if self.is_closed:
                    return
                raise
            yield message

    def _receive_many(self, count: int, timeout: float | None) -> list[Message]:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(f"max_messages: expected 1 or more, found {count!r}")
        first = self.receive(timeout=timeout)
        found = [] if first is None else [first]
        while found and len(found) < count and (more := self._take_message()) is not None:
            found.append(more)
        return found

    # ---- taking, without waiting ----------------------------------------------------------------------------

    def _take_message(self) -> Message | None:
        self._check_open()
        with self._turn:  # a batch is begun when the one before is at its end, whoever else asks
            while True:
                try:
                    return self._next()
                except StopIteration:
                    part = self._take_ready()
                if part is None:
                    return None
                if self._ask(part, PartitionConsumer.begin):
                    self._next = part.next_message

    def _take_batch(self) -> MessageBatch | None:
        while (part := self._take_ready()) is not None:
            delivery = self._ask(part, PartitionConsumer.poll)
            if delivery is not None:
                return delivery.batch
        return None

    def _take_ready(self) -> PartitionConsumer | None:
        """Whose turn it is; one that has more is behind the others then."""
        self._check_usable()
        with self._lock:
            if not self._ready:
                return None
            part = self._ready.popleft()
            part.waiting -= 1
            if part.waiting:
                self._ready.append(part)
        return part

    def _ask(self, part: PartitionConsumer, call: Callable[[PartitionConsumer], T]) -> T:
        try:
            return call(part)
        except ReplogError as error:
            self._failed = error
            self._wake()
            raise
        except BaseException:  # Ctrl-C: what it has is still there
            self.changed(part)
            raise

    # ---- waiting --------------------------------------------------------------------------------------------

    def _await(self, take: Callable[[], T | None], timeout: float | None) -> T | None:
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            changes = self._changes
            found = take()
            if found is not None:
                return found
            future = self._expect(changes)
            try:
                self._wait(future, None if deadline is None else max(0.0, deadline - time.monotonic()))
            except OutcomeUnknownError:
                return None
            finally:
                self._forget(future)

    async def _await_async(self, take: Callable[[], T | None]) -> T:
        while True:
            changes = self._changes
            found = take()
            if found is not None:
                return found
            future = self._expect(changes)
            try:
                await future
            finally:
                self._forget(future)

    def _expect(self, changes: int) -> AppendFuture[None]:
        """Done when there is something that was not there when so many changes had been."""
        for part in self._parts.values():
            part.send_acks()  # whoever waits has nothing else to acknowledge soon
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            self._waiting.append(future)
            is_late = self._changes != changes
        if is_late:
            future.complete()
        return future

    def _forget(self, future: AppendFuture[None]) -> None:
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)

    def _wake(self) -> None:
        """All that wait look again: one delivery may have messages for all of them."""
        with self._lock:
            self._changes += 1
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.complete()

    # ---- acknowledging --------------------------------------------------------------------------------------

    def acknowledge(self, what: PartitionedWhat) -> None:
        """These are done with: they do not come again. As `Consumer.acknowledge`.

        what: a message, a batch, a PartitionOffset, or several.
        """
        if type(what) is Message:
            self._part(what.partition).acknowledge(what)
        else:
            self._each(what, PartitionConsumer.acknowledge)

    def acknowledge_cumulative(
        self, what: Message | MessageBatch | PartitionOffset, *, timeout: float | None = None
    ) -> None:
        """This one is done with, and all before it of its partition, too. As `Consumer.acknowledge_cumulative`."""
        check_may_block("acknowledge_cumulative")
        self._await_all([self.acknowledge_cumulative_async(what)], timeout)

    def acknowledge_cumulative_async(self, what: Message | MessageBatch | PartitionOffset) -> AppendFuture[None]:
        """As acknowledge_cumulative, for coroutines, which await the AppendFuture."""
        if not isinstance(what, Message | MessageBatch | PartitionOffset):
            raise WrongTypeError(f"what: expected a message, a batch or a PartitionOffset, found {type(what).__name__}")
        part = self._part(what.partition)
        return part.acknowledge_cumulative_async(what.offset if isinstance(what, PartitionOffset) else what)

    def nack(self, what: PartitionedWhat, *, delay: float | None = None, reason: str | None = None) -> None:
        """These are to come again: in `delay` seconds, or after the subscription's back-off. As `Consumer.nack`."""
        as_delay_us(delay)  # also of what is empty
        text = as_reason(reason)
        self._each(what, lambda part, of_it: part.nack(of_it, delay=delay, reason=text))

    def _each(self, what: PartitionedWhat, call: Callable[[PartitionConsumer, Any], None]) -> None:
        """With what is of each partition."""
        if isinstance(what, Message | MessageBatch):
            call(self._part(what.partition), what)
            return
        self._check_usable()
        several = by_partition([what] if isinstance(what, PartitionOffset) else what)
        parts = [(self._part(partition), offsets) for partition, offsets in several.items()]
        for part, offsets in parts:
            call(part, offsets)

    def redeliver(self) -> None:
        """All that this consumer has not acknowledged is to come again, now. Errors: as acknowledge."""
        for part in self._all():
            part.redeliver()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acknowledgements so far are durable. As `Consumer.flush`."""
        check_may_block("flush")
        self._await_all([part.flush_async() for part in self._all()], timeout)

    def flush_async(self) -> AppendFuture[None]:
        """As flush, for coroutines, which await the AppendFuture. As `Consumer.flush_async`."""
        return all_done([part.flush_async() for part in self._all()])

    def _await_all(self, futures: Sequence[AppendFuture[T]], timeout: float | None) -> list[T]:
        """What is not asked for until the time is over is not asked for later."""
        seconds = self._timeout if timeout is None else as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            return [self._wait(future, left(deadline)) for future in futures]
        except OutcomeUnknownError as error:
            for future in futures:
                future.fail(error)
            raise

    def seek(self, start: PartitionedStart, *, timeout: float | None = None) -> list[PartitionOffset]:
        """Go on from there: what lies before counts as acknowledged, what lies behind as not; returns where that is.

        start: a PartitionOffset moves its partition; a moment of publishing, "earliest" and "latest" all. Of the whole
        subscription, also its other consumers. timeout: as of flush. Errors: as flush; OutOfRangeError, TrimmedError.
        """
        check_may_block("seek")
        moved = self._move(start)
        offsets = self._await_all(list(moved.values()), timeout)
        return [PartitionOffset(partition, offset) for partition, offset in zip(moved, offsets, strict=True)]

    async def seek_async(self, start: PartitionedStart) -> list[PartitionOffset]:
        """As seek, for coroutines."""
        return [PartitionOffset(partition, await future) for partition, future in self._move(start).items()]

    def _move(self, start: PartitionedStart) -> dict[int, AppendFuture[int]]:
        """Where each partition goes on that is moved."""
        if isinstance(start, PartitionOffset):
            return {start.partition: self._part(start.partition).seek_async(start.offset)}
        if is_offset(start):
            raise WrongTypeError("start: an offset is of one partition, expected a PartitionOffset")
        return {part.partition: part.seek_async(start) for part in self._all()}

    def _part(self, partition: int) -> PartitionConsumer:
        part = self._parts.get(partition)
        if part is None:
            self._check_open()
            raise InvalidArgumentError(f"partition: expected one of {self.partitions}, found {partition}")
        return part

    def _all(self) -> list[PartitionConsumer]:
        self._check_usable()
        return list(self._parts.values())

    # ---- the end --------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._check_open()
        if self._failed is not None:
            raise self._failed

    def _let_go(self) -> None:
        self._next = _NOTHING
        with ExitStack() as rest:
            rest.callback(self._wake)
            for part in self._parts.values():
                rest.callback(part.close)

    def _forked(self) -> None:
        self._next = _NOTHING

    def __del__(self) -> None:
        """As of Consumer; its partitions have nobody else."""
        if getattr(self, "_error", self) is None and os.getpid() == self._pid:
            self._error = ClosedError(f"the {self._what} was forgotten")
            warn_of_leak(self._what, self, self._opened_at)
            for part in self._parts.values():
                part.abandon()


def left(until: float | None) -> float | None:
    """Seconds up to a moment of the monotonic clock."""
    return None if until is None else max(0.0, until - time.monotonic())
