"""Publishes to one topic: gathers single messages, cuts batches into entries, drops what was published before."""

from __future__ import annotations

import time
from asyncio import _get_running_loop
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog._native.topic.messageencoder import Messages
from pyreplog.clock import Clock
from pyreplog.errors import BacklogFullError, OutcomeUnknownError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.publishing.batcher import SingleMessage
from pyreplog.topic.client.publishing.delivery_times import check_delivery, delivery_time, delivery_times
from pyreplog.topic.client.publishing.forwarded import Forwarded
from pyreplog.topic.client.publishing.outgoing import Outgoing
from pyreplog.topic.client.publishing.publish_batch import Encoder, Whole
from pyreplog.topic.client.publishing.sequencer import PublishCounters, PublisherRuntime, Sequencer, Sink
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.arguments import check_may_block, refuse_to_block
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers, check_sequence, check_sequences
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.times import as_time_us, as_times_us

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Time, Times

WINDOW_BYTES = 16 << 20
WINDOW_MESSAGES = 1 << 20
WINDOW_ENTRIES = 1 << 16

T = TypeVar("T")


class Publisher:
    """What a topic is published with. Any thread may call anything; asyncio code awaits what `submit`, `submit_batch`
    and `room` give.

    producers: of a topic that deduplicates; end: the offset up to which they know it, its end when it is opened.
    entry_bytes_max: what an entry may have, with its record. Calls wait while
    `window_bytes`, about, or WINDOW_MESSAGES have no outcome, or the sink holds so many bytes or WINDOW_ENTRIES, or a
    quota holds them. In a coroutine, or a callback of
    an AppendFuture, they never wait: await `room()` before. There they go on up to twice the window, and raise
    WindowFullError beyond. timeout: seconds that calls wait at most which do not say how long; None: as long as it
    takes.
    """

    def __init__(
        self,
        topic: str,
        sink: Sink,
        runtime: PublisherRuntime,
        clock: Clock,
        config: TopicConfig,
        *,
        entry_bytes_max: int,
        producers: Producers | None = None,
        end: int = 0,
        window_bytes: int = WINDOW_BYTES,
        timeout: float | None = None,
    ) -> None:
        """MissingExtraError: what the topic's compression needs is not installed."""
        self.topic, self.timeout = topic, timeout
        self._sink, self._runtime, self._clock = sink, runtime, clock
        self._encoder = Encoder.of(config, entry_bytes_max)
        self._window = Window(window_bytes, WINDOW_MESSAGES, entries_max=WINDOW_ENTRIES, beyond=sink.pending)
        sink.on_room = self._window.give_room
        self._sequencer = Sequencer(
            topic,
            sink,
            runtime,
            clock,
            self._encoder,
            linger_us=config.linger_ms * 1000,
            window=self._window,
            producers=producers,
            end=end,
        )

    # ---- publishing -----------------------------------------------------------------------------------------

    def publish(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        producer: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publish one message; returns its offset once it is confirmed.

        event_time: when it happened. deliver_at: shared subscriptions get it then, others at once; a moment before 2001
        is refused, but for 0, which is no delay. A time is a datetime with a time zone, or microseconds since 1970;
        integers that can only be seconds, milliseconds or nanoseconds are refused. delay: in place of deliver_at,
        seconds from now, by the clock of this process; less than 0 is 0. producer: who publishes;
        sequence: its number for the message. Where the topic deduplicates, a producer's numbers ascend: a message whose
        number was published before is dropped, and DUPLICATE (-1) returned; None is the next number.
        timeout: seconds; None: those of the client, where the topic is another process'; else as long as it takes.
        Errors: OutcomeUnknownError, the time ran out: it is published, or will be, or not; WindowFullError, there was
        no room all that time, BacklogFullError, TopicFullError, EntryRefusedError, RecordTooLargeError, WrongTypeError
        and InvalidArgumentError, nothing was published; TopicFencedError, OutcomeUnknownError and others of the topic,
        the outcome is unknown: a topic that deduplicates takes nothing then until it is opened again. ClosedError.
        """
        if _get_running_loop() is not None:
            refuse_to_block("publish")
        check_may_wait()
        name = b"" if producer is None else _name(producer)
        number = -1 if sequence is None else check_sequence(sequence)
        if event_time is not None:
            event_time = as_time_us("event_time", event_time)
        if deliver_at is not None or delay is not None:
            deliver_at = delivery_time(deliver_at, delay, self._clock)
        single = SingleMessage.of(value, key, properties, event_time, deliver_at, number, name)
        until = self._until(timeout)
        return self._await(self._enter(single, until, is_awaited=True), until)

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        producer: str | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[int]:
        """As publish, without waiting: the AppendFuture gives the offset. timeout: as of publish, for room in the
        window, which threads wait for. Errors of the arguments, and WindowFullError, are raised here; the others are
        the AppendFuture's."""
        name = b"" if producer is None else _name(producer)
        number = -1 if sequence is None else check_sequence(sequence)
        if event_time is not None:
            event_time = as_time_us("event_time", event_time)
        if deliver_at is not None or delay is not None:
            deliver_at = delivery_time(deliver_at, delay, self._clock)
        single = SingleMessage.of(value, key, properties, event_time, deliver_at, number, name)
        return self._enter(single, self._until(timeout))

    def _until(self, timeout: float | None) -> float | None:
        """When the time of a call is over, on the monotonic clock; None: never."""
        seconds = self.timeout if timeout is None else as_timeout(timeout)
        return None if seconds is None else time.monotonic() + seconds

    def _await(self, future: AppendFuture[T], until: float | None) -> T:
        if until is None:
            return self._runtime.wait(future)
        try:
            return self._runtime.wait(future, max(until - time.monotonic(), 0.0))
        except OutcomeUnknownError:
            if future.done():  # it is what became of it
                raise
            raise OutcomeUnknownError(
                f"topic {self.topic}: no outcome in time (timeout): it is published, or may be later, or not"
            ) from None

    def _enter(self, single: SingleMessage, until: float | None, *, is_awaited: bool = False) -> AppendFuture[int]:
        self._encoder.check_size(single.size)
        self._make_room(until)
        self._sequencer.enter(single, is_awaited=is_awaited)
        return single.future

    def publish_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        producer: str | None = None,
        timeout: float | None = None,
    ) -> range:
        """Publish several; returns their offsets, which are consecutive, once all are confirmed.

        values, keys: bytes-like objects, or columns: (offsets, data), numpy or Arrow arrays; they must not change
        before this returns. delay: of all of them. The others: as publish, one per value. Those that were published
        before are dropped: the offsets are those of the others. Errors: as publish, a part may be stored when
        the outcome is unknown; SequenceError, `sequences` do not ascend.
        """
        check_may_block("publish_batch")
        name = b"" if producer is None else _name(producer)
        batch = self._messages(name, values, keys, properties, event_times, deliver_at, delay)
        until = self._until(timeout)
        return self._await(self._enter_batch(name, batch, sequences, until, is_awaited=True), until)

    def submit_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        producer: str | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[range]:
        """As publish_batch, without waiting: the AppendFuture gives the offsets. They follow those of what the same
        producer submitted before. Errors: as publish; all that are known now are raised here."""
        name = b"" if producer is None else _name(producer)
        batch = self._messages(name, values, keys, properties, event_times, deliver_at, delay)
        return self._enter_batch(name, batch, sequences, self._until(timeout))

    async def _awaited(self, producer: str | None) -> Publisher:
        return self

    publish_async = publishing(submit, _awaited)
    """As `publish`, for coroutines: waits for room, and then for the outcome."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """As `publish_batch`, for coroutines."""

    def _messages(
        self,
        producer: bytes,
        values: Values,
        keys: Keys | None,
        properties: Properties | None,
        event_times: Times | None,
        deliver_at: Times | None,
        delay: float | None,
    ) -> Messages:
        times: Any = None
        if deliver_at is not None:
            check_delivery(deliver_at, delay)
            times = delivery_times(deliver_at)
        elif delay is not None:
            values = Outgoing.of(values).values  # an iterator is counted first
            times = np.full(Outgoing(values).messages, delivery_time(None, delay, self._clock), np.int64)
        return Messages(
            values, keys, properties=properties, event_times=as_times_us("event_times", event_times), deliver_at=times,
            producer=producer,
        )  # fmt: skip

    def _enter_batch(
        self,
        producer: bytes,
        batch: Messages,
        sequences: ArrayLike | None,
        until: float | None,
        *,
        is_awaited: bool = False,
    ) -> AppendFuture[range]:
        numbers = None if sequences is None else check_sequences(self.topic, sequences, batch.count)
        future: AppendFuture[range] = AppendFuture()
        if not batch.count:
            future.complete(range(0))
            return future
        self._make_room(until)
        whole = Whole(producer, batch, numbers, future)
        self._sequencer.enter(whole, is_awaited=is_awaited)
        if whole.failure is not None:  # it could not be encoded
            raise whole.failure
        return future

    def forward(self, forwarded: Forwarded) -> AppendFuture[range]:
        """Publish what another process has encoded, in the order of the calls; it does not wait: see `room`. Errors: as
        submit_batch."""
        self._sequencer.enter(forwarded)
        return forwarded.future

    def last_given(self, producer: str) -> int:
        """As last_sequence, with those that are on their way."""
        return self._sequencer.last_given(_name(producer))

    def last_sequence(self, producer: str) -> int:
        """The highest number of a producer that is stored; -1: none, or the topic does not deduplicate."""
        return self._sequencer.last_sequence(_name(producer))

    # ---- room and the end ------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether there is room, or nothing is taken any more. Errors: those of the sink."""
        if not self._window.is_over:
            self._sink.check_open()
        return self._window.has_room()

    def room(self) -> AppendFuture[None]:
        """An AppendFuture that is done as soon as there is room, or nothing is taken any more."""
        return self._window.room()

    def _make_room(self, until: float | None) -> None:
        """Wait until there is some, if this caller can. Errors: those of the sink; WindowFullError."""
        window = self._window
        while True:
            if not window.is_over:
                self._sink.check_open()
            if window.has_room():
                return
            if not in_callback() and _get_running_loop() is None:
                room = window.room()
                try:
                    self._runtime.wait(room, None if until is None else max(until - time.monotonic(), 0.0))
                except OutcomeUnknownError:
                    if room.done():
                        raise
                    raise WindowFullError(
                        f"topic {self.topic}: no room in time (timeout), {window.bytes} bytes and "
                        f"{window.messages} messages have no outcome: nothing was published, try again later"
                    ) from None
            elif window.has_room(windows=2):
                return
            else:
                raise WindowFullError(f"topic {self.topic}: twice its window is on its way: await room() before")

    @property
    def waiting(self) -> int:
        """Callers that wait for room."""
        return self._window.waiting

    @property
    def quota(self) -> Publishing:
        """What a backlog quota says: "open"; "held", callers wait; "refused", they get BacklogFullError."""
        return self._sequencer.quota

    def set_quota(self, state: Publishing, reason: str) -> None:
        """A quota says so from now on, for a reason that publishers are told. What was submitted before goes on."""
        self._sequencer.set_quota(state, reason)

    def lift_quota(self) -> None:
        """No quota says anything any more."""
        self._sequencer.lift_quota()

    def held(self) -> BacklogFullError | None:
        """For who does not wait until a quota has room again; None: none holds publishers."""
        return self._sequencer.held()

    @property
    def pending_messages(self) -> int:
        """Published, without an outcome yet."""
        return self._window.messages

    @property
    def pending_bytes(self) -> int:
        """Of these, about."""
        return self._window.bytes

    @property
    def counts(self) -> PublishCounters:
        """What has become of messages so far."""
        return self._sequencer.counts

    def flush(self, timeout: float | None = None) -> None:
        """Send what lingers, and wait until every message submitted so far has an outcome, which its own future tells.

        timeout: as of publish. Raises: InvalidArgumentError, in a coroutine or a callback: use `flush_async`;
        OutcomeUnknownError, the time ran out: messages go on by themselves.
        """
        check_may_block("flush")
        until = self._until(timeout)
        self._await(self.flush_async(), until)

    def flush_async(self) -> AppendFuture[None]:
        """As flush, for coroutines, which await the AppendFuture; sends at once, also if nobody does."""
        return self._sequencer.flush()

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """The result of an AppendFuture, waited for. timeout: as of publish. Errors: InvalidArgumentError, in a
        callback; OutcomeUnknownError, the time ran out; those of the AppendFuture."""
        check_may_wait()
        return self._await(future, self._until(timeout))

    def snapshot(self) -> tuple[int, bytes] | None:
        """An offset, and the producers as of what is stored before it: for `Producers.restore`, and `replay` from that
        offset on. None: the topic does not deduplicate."""
        return self._sequencer.snapshot()

    @property
    def has_new_failures(self) -> bool:
        """A snapshot should be stored soon: see `Producers`."""
        return self._sequencer.has_new_failures

    def purge(self, before_us: int) -> int:
        """Forget producers that published nothing since; returns how many."""
        return self._sequencer.purge(before_us)

    def stop(self, error: BaseException) -> None:
        """Nothing is taken any more: calls raise `error`, and what was not sent yet fails with it."""
        self._sequencer.stop(error)


def _name(producer: str) -> bytes:
    return _encoded(producer) if type(producer) is str else check_name(producer).encode()


@lru_cache(maxsize=1024)
def _encoded(producer: str) -> bytes:
    """A name is checked once, not for every message."""
    return check_name(producer).encode()
