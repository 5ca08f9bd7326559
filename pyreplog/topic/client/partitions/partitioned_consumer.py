"""PartitionedConsumer: receives the messages of all partitions, and acknowledges them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar, overload

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.coroutines import check_may_block
from pyreplog.errors import ClosedError, InvalidArgumentError, OutcomeUnknownError, ReplogError, WrongTypeError
from pyreplog.future import AppendFuture, all_done, as_timeout, set_exception, set_result
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.net.sockets import weak_callback
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.arguments import as_delay_us, as_reason
from pyreplog.topic.model.interfaces import DeliveredMessages, WaitFunction
from pyreplog.topic.model.positions import PartitionedStart, PartitionedWhat, PartitionOffset, by_partition, is_offset

T = TypeVar("T")
_NOTHING: Any = iter(()).__next__


class PartitionConsumer(Consumer):
    """The Consumer of one partition, which is polled when it has announced messages.

    on_change: called, from any thread, for every delivery, and when no more messages will come.
    """

    waiting = 0
    """Announced deliveries that were not taken yet; counted by the consumer of all partitions."""

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
        self._on_change = weak_callback(on_change)  # weak: the consumer of all partitions holds this one
        super().__init__(topic, subscription, name, queue=queue)

    def deliver(self, delivery: DeliveredMessages) -> None:
        delivery.batch.partition = self.partition
        super().deliver(delivery)
        self._on_change(self)

    def failed(self, error: ReplogError) -> None:
        super().failed(error)
        self._on_change(self)

    def next_message(self) -> Message:
        """Return the next message of the batch that was begun. Raises StopIteration at its end."""
        return self._next()

    def begin(self) -> bool:
        """Begin the next batch; return False if there is none.

        Raises the error that ended the subscription, or ClosedError.
        """
        delivery = self._poll(begin=True)
        return delivery is not None

    def poll(self) -> DeliveredMessages | None:
        """Return the next messages; None: there are none. Raises the errors of `begin`."""
        return self._poll(begin=False)

    def _poll(self, *, begin: bool) -> DeliveredMessages | None:
        with self._lock:
            if not self._inbox:
                if self._failed is not None:
                    raise self._failed
                return None
            delivery = self._inbox.popleft()
            if begin:  # under the lock, so that it cannot be discarded
                self._begin(delivery)
        self._ask(len(delivery.batch))
        return delivery

    def send_acks(self) -> None:
        """Send collected acknowledgements now."""
        self._send_acks()


class PartitionedConsumer(Handle):
    """A consumer of all partitions of a topic; made by `PartitionedHandle.subscribe`. Close it, or use `with`.

    It works like a Consumer, but messages and batches have a `partition`, and offsets are PartitionOffsets. Partitions
    with messages take turns, batch by batch; messages of one key come from one partition, in order. When one partition
    fails, all calls raise its error: open the topic again, and subscribe again.

    Any thread may use it; asyncio code as described for Consumer. See docs/topics.md.
    """

    def __init__(
        self, topic: str, subscription: str, name: str, *, wait: WaitFunction, timeout: float | None = None
    ) -> None:
        self.topic, self.subscription, self.name = topic, subscription, name
        self._wait, self._timeout = wait, timeout
        self._parts: dict[int, PartitionConsumer] = {}
        self._lock = threading.Lock()  # guards what follows; never held while anything waits
        self._ready: deque[PartitionConsumer] = deque()  # partitions with messages, each once
        self._changes = 0  # number of announcements
        self._waiting: list[AppendFuture[None]] = []
        self._failed: ReplogError | None = None
        self._turn = threading.Lock()  # held by the thread that begins the next batch for `receive`
        self._next: Callable[[], Message] = _NOTHING
        super().__init__(f"consumer {name} of {subscription} on {topic}")

    # ---- partitions -----------------------------------------------------------------------------------------

    def add(self, part: PartitionConsumer) -> None:
        """Add the consumer of another partition, which calls `changed`; for `PartitionedHandle`.

        Args:
            part: the consumer of the partition.
        """
        self._parts = {**self._parts, part.partition: part}  # replaced, because other threads may iterate over it

    def changed(self, part: PartitionConsumer) -> None:
        """Take note that a partition has a new delivery, or that its subscription ended.

        Args:
            part: the consumer of the partition.
        """
        with self._lock:
            part.waiting += 1
            if part.waiting == 1:
                self._ready.append(part)
        self._wake()

    @property
    def partitions(self) -> list[int]:
        """The partitions that it receives from."""
        return sorted(self._parts)

    @property
    def active_partitions(self) -> list[int]:
        """The partitions whose messages come here; those of a failover subscription have one active consumer each."""
        return [partition for partition in self.partitions if self._parts[partition].is_active]

    @property
    def is_active(self) -> bool:
        """Whether messages of any partition come here."""
        return bool(self.active_partitions)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._error is not None

    # ---- receiving ------------------------------------------------------------------------------------------

    @overload
    def receive(self, timeout: float | None = None, max_messages: None = None) -> Message | None: ...
    @overload
    def receive(self, timeout: float | None = None, *, max_messages: int) -> list[Message]: ...
    def receive(self, timeout: float | None = None, max_messages: int | None = None) -> Message | list[Message] | None:
        """Wait for the next message, or for a list of 1 to `max_messages`.

        Args:
            timeout: seconds; None: without limit. After them the result is None, or an empty list.
            max_messages: most messages of the list, which are there already; None: one message.

        Raises:
            TopicFencedError: another process owns a partition now.
            ClosedError: the consumer, its topic or its cluster was closed.
            InvalidArgumentError: called in a coroutine, or `max_messages` is less than 1.
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
        """Iterate over batches as they come, each of one partition.

        Args:
            timeout: seconds without a message after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `receive`.
        """
        while (batch := self.receive_batch(timeout)) is not None:
            yield batch

    def receive_batch(self, timeout: float | None = None) -> MessageBatch | None:
        """Wait for the next messages of one partition, as columns.

        Args:
            timeout: seconds; None: without limit. After them the result is None.

        Raises:
            ReplogError: as `receive`.
        """
        if timeout != 0:
            check_may_block("receive_batch")
        return self._await(self._take_batch, timeout)

    async def receive_async(self) -> Message:
        """Wait for the next message, in a coroutine. No message is lost when it is cancelled.

        Raises:
            ReplogError: as `receive`.
        """
        try:
            return self._next()
        except StopIteration:
            return await self._await_async(self._take_message)

    async def receive_batch_async(self) -> MessageBatch:
        """Wait for the next messages, as columns, in a coroutine.

        Raises:
            ReplogError: as `receive`.
        """
        return await self._await_async(self._take_batch)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages, as a Consumer does."""
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
        """Iterate over messages, as a Consumer does."""
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
        messages = [] if first is None else [first]
        while messages and len(messages) < count and (more := self._take_message()) is not None:
            messages.append(more)
        return messages

    # ---- taking, without waiting ----------------------------------------------------------------------------

    def _take_message(self) -> Message | None:
        self._check_open()
        with self._turn:  # the next batch begins only at the end of the last one
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
        """Return the partition whose turn it is; if it has more, it goes behind the others."""
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
        except BaseException:  # Ctrl-C: its delivery is still there
            self.changed(part)
            raise

    # ---- waiting --------------------------------------------------------------------------------------------

    def _await(self, take: Callable[[], T | None], timeout: float | None) -> T | None:
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            changes = self._changes
            result = take()
            if result is not None:
                return result
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
            result = take()
            if result is not None:
                return result
            future = self._expect(changes)
            try:
                await future
            finally:
                self._forget(future)

    def _expect(self, changes: int) -> AppendFuture[None]:
        """Return a future that is done when there were more than `changes` announcements."""
        for part in self._parts.values():
            part.send_acks()  # a waiting caller acknowledges nothing soon
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            self._waiting.append(future)
            is_late = self._changes != changes
        if is_late:
            set_result(future)
        return future

    def _forget(self, future: AppendFuture[None]) -> None:
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)

    def _wake(self) -> None:
        """Wake all waiting calls: one delivery may have messages for all of them."""
        with self._lock:
            self._changes += 1
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            set_result(future)

    # ---- acknowledging --------------------------------------------------------------------------------------

    def acknowledge(self, messages: PartitionedWhat) -> None:
        """Acknowledge messages: they do not come again. It does not wait; `flush` does.

        Args:
            messages: a message, a batch, a PartitionOffset, or several.

        Raises:
            WrongTypeError: `messages` is none of these.
            InvalidArgumentError: a partition is unknown.
            ClosedError: as `receive`.
        """
        if type(messages) is Message:
            self._part(messages.partition).acknowledge(messages)
        else:
            self._each(messages, PartitionConsumer.acknowledge)

    def acknowledge_cumulative(
        self, messages: Message | MessageBatch | PartitionOffset, *, timeout: float | None = None
    ) -> None:
        """Acknowledge a message and all before it in its partition, and wait until the owner has done so.

        Args:
            messages: a message, a PartitionOffset, or a batch, of which the last message counts.
            timeout: seconds, as in `flush`.

        Raises:
            InvalidArgumentError: the subscription is shared.
            OutcomeUnknownError: the time ran out.
        """
        check_may_block("acknowledge_cumulative")
        self._await_all([self.acknowledge_cumulative_async(messages)], timeout)

    def acknowledge_cumulative_async(self, messages: Message | MessageBatch | PartitionOffset) -> AppendFuture[None]:
        """Return a future that is done when a message and all before it in its partition are acknowledged.

        Args:
            messages: as in `acknowledge_cumulative`.

        Raises:
            WrongTypeError: `messages` is no message, batch or PartitionOffset.
            InvalidArgumentError: the subscription is shared.
        """
        if not isinstance(messages, Message | MessageBatch | PartitionOffset):
            raise WrongTypeError(
                f"messages: expected a message, a batch or a PartitionOffset, found {type(messages).__name__}"
            )
        part = self._part(messages.partition)
        return part.acknowledge_cumulative_async(messages.offset if isinstance(messages, PartitionOffset) else messages)

    def nack(self, messages: PartitionedWhat, *, delay: float | None = None, reason: str | None = None) -> None:
        """Refuse messages: they come again.

        Args:
            messages: as in `acknowledge`.
            delay: seconds until they come again; None: the back-off of the subscription.
            reason: text for people, kept with dead letters: its first 1,024 bytes of UTF-8.

        Raises:
            ReplogError: as `acknowledge`.
        """
        as_delay_us(delay)  # checked even if there are no messages
        text = as_reason(reason)
        self._each(messages, lambda part, messages: part.nack(messages, delay=delay, reason=text))

    def _each(self, messages: PartitionedWhat, call: Callable[[PartitionConsumer, Any], None]) -> None:
        """Call each partition's consumer with its messages."""
        if isinstance(messages, Message | MessageBatch):
            call(self._part(messages.partition), messages)
            return
        self._check_usable()
        offsets_by_partition = by_partition([messages] if isinstance(messages, PartitionOffset) else messages)
        parts = [(self._part(partition), offsets) for partition, offsets in offsets_by_partition.items()]
        for part, offsets in parts:
            call(part, offsets)

    def redeliver(self) -> None:
        """Refuse all messages that this consumer has not acknowledged: they come again now.

        Raises:
            ClosedError: as `receive`.
        """
        for part in self._all():
            part.redeliver()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acknowledgements so far are durable.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out, or it is not known whether all of them count.
            ClosedError: as `receive`.
        """
        check_may_block("flush")
        self._await_all([part.flush_async() for part in self._all()], timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when all acknowledgements so far are durable.

        Raises:
            ClosedError: as `receive`.
        """
        return all_done([part.flush_async() for part in self._all()])

    def _await_all(self, futures: Sequence[AppendFuture[T]], timeout: float | None) -> list[T]:
        """Wait for all futures; after a timeout pending requests are not sent any more."""
        seconds = self._timeout if timeout is None else as_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            return [self._wait(future, remaining_s(deadline)) for future in futures]
        except OutcomeUnknownError as error:
            for future in futures:
                set_exception(future, error)
            raise

    def seek(self, start: PartitionedStart, *, timeout: float | None = None) -> list[PartitionOffset]:
        """Move the whole subscription, including its other consumers.

        Messages before the start count as acknowledged, those behind as not.

        Args:
            start: a PartitionOffset moves its partition; a time of publishing, "earliest" or "latest" all.
            timeout: seconds, as in `flush`.

        Returns:
            Where each partition that was moved goes on.

        Raises:
            OutOfRangeError: the offset is beyond the end.
            TrimmedError: the messages at the start were removed.
            OutcomeUnknownError: the time ran out.
        """
        check_may_block("seek")
        moved = self._move(start)
        offsets = self._await_all(list(moved.values()), timeout)
        return [PartitionOffset(partition, offset) for partition, offset in zip(moved, offsets, strict=True)]

    async def seek_async(self, start: PartitionedStart) -> list[PartitionOffset]:
        """Move the whole subscription, in a coroutine; see `seek`.

        Args:
            start: as in `seek`.

        Raises:
            ReplogError: as `seek`.
        """
        return [PartitionOffset(partition, await future) for partition, future in self._move(start).items()]

    def _move(self, start: PartitionedStart) -> dict[int, AppendFuture[int]]:
        """Move partitions; return the futures of where they go on."""
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

    def _do_close(self) -> None:
        self._next = _NOTHING
        with ExitStack() as stack:
            stack.callback(self._wake)
            for part in self._parts.values():
                stack.callback(part.close)

    def _after_fork(self) -> None:
        self._next = _NOTHING

    def __del__(self) -> None:
        """Release the consumers of the partitions, as a Consumer does."""
        if getattr(self, "_error", self) is None and os.getpid() == self._pid:
            self._error = ClosedError(f"the {self._label} was garbage-collected before it was closed")
            warn_of_leak(self._label, self, self._opened_at)
            for part in self._parts.values():
                part.abandon()


def remaining_s(deadline: float | None) -> float | None:
    """Return the seconds until a time of the monotonic clock."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
