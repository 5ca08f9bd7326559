"""Publishes to one topic: collects single messages, cuts batches into entries, drops messages that were published
before.
"""

from __future__ import annotations

import time
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog._native.topic.message_encoder import Messages
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block, refuse_to_block
from pyreplog.errors import BacklogFullError, InvalidArgumentError, OutcomeUnknownError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout, set_result
from pyreplog.origins.gate import OriginGate, OriginGates
from pyreplog.origins.origin import Gap, OriginEntry
from pyreplog.origins.replicate_to import attribute_of
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.publishing.batcher import SingleMessage
from pyreplog.topic.client.publishing.delivery_times import check_delivery, delivery_time, delivery_times
from pyreplog.topic.client.publishing.forwarded import ForwardedBatch
from pyreplog.topic.client.publishing.outgoing import MessageColumns
from pyreplog.topic.client.publishing.publish_batch import Encoder, SubmittedBatch
from pyreplog.topic.client.publishing.replicated_batch import ReplicatedBatch
from pyreplog.topic.client.publishing.sequencer import PublishCounters, PublisherRuntime, Sequencer, Sink
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers, check_sequence, check_sequences
from pyreplog.topic.model.times import as_time_us, as_times_us
from pyreplog.topic_names import check_name
from pyreplog.waiting_threads import waiting_threads

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Times

WINDOW_BYTES = 16 << 20
WINDOW_MESSAGES = 1 << 20
WINDOW_ENTRIES = 1 << 16

T = TypeVar("T")


class Publisher:
    """Publishes to a topic.

    Any thread may use it; asyncio code awaits the futures of `submit`, `submit_batch` and `room`.

    Calls wait while about `window_bytes`, or WINDOW_MESSAGES messages, have no outcome; while the sink holds so many
    bytes, or WINDOW_ENTRIES entries; and while a quota holds publishers. In a coroutine, or a callback of a future,
    they never wait: await `room()` before. There they accept up to twice the window, and raise WindowFullError beyond.

    Args:
        topic: name of the topic.
        sink: stores the entries.
        runtime: waits and timers.
        clock: source of time.
        config: settings of the topic.
        entry_bytes_max: most bytes of an entry with its record.
        producers: producers of a topic that deduplicates.
        end: offset up to which `producers` and `gates` are known: the end of the topic when it was opened.
        gates: admit what other clusters replicate into the topic.
        window_bytes: most bytes without an outcome, approximately.
        timeout: seconds that calls wait by default; None: without limit.
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
        gates: OriginGates | None = None,
        window_bytes: int = WINDOW_BYTES,
        timeout: float | None = None,
    ) -> None:
        """Create a publisher. Raises MissingExtraError if the topic's codec is not installed."""
        self.topic, self.timeout = topic, timeout
        self._sink, self._runtime, self._clock = sink, runtime, clock
        self._encoder = Encoder.of(config, entry_bytes_max)
        self._is_global = config.global_producers
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
            gates=gates,
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publish one message, and wait until it is confirmed.

        Args:
            value: bytes, or anything with a buffer.
            key: likewise; messages of one key have an order, also in a topic with partitions.
            properties: names and values.
            event_time: when it happened: a datetime with a time zone, or microseconds since 1970-01-01 UTC. Integers
                that can only be seconds, milliseconds or nanoseconds are refused.
            deliver_at: when shared subscriptions get it, likewise, from 2001 on; None or 0: at once. Other
                subscriptions get it at once.
            delay: seconds from now, by the clock of this process, instead of `deliver_at`; less than 0 counts as 0.
            sequence: number of the message, if the topic deduplicates: the numbers of a producer ascend, and a message
                whose number was published before is dropped. None: the next number.
            producer: name of the producer.
            replicate_to: names of the only other clusters to which it is replicated, at most 16; none: it stays in this
                one. None: it goes wherever the replication policy of the topic sends it. See docs/geo.md.
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Returns:
            The offset of the message; DUPLICATE (-1) if its number was published before.

        Raises:
            WindowFullError: there was no room all the time; nothing was published.
            BacklogFullError: a quota is exceeded; nothing was published.
            TopicFullError: the topic has too many ledgers; nothing was published.
            EntryRefusedError: bookies refused the entry; nothing was published.
            RecordTooLargeError: the message is too large; nothing was published.
            WrongTypeError: an argument has the wrong type; nothing was published.
            InvalidArgumentError: an argument is invalid, or this is a coroutine or a callback; nothing was published.
            OutcomeUnknownError: the time ran out, or the connection was lost: the message is published, will be, or
                not.
            TopicFencedError: another process owns the topic; the outcome is unknown. After an unknown outcome a topic
                that deduplicates accepts no more messages until it is opened again.
            ClosedError: the topic was closed.
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
        attribute = None if replicate_to is None else attribute_of(replicate_to)
        single = SingleMessage.of(value, key, properties, event_time, deliver_at, number, name, attribute)
        deadline = self._deadline(timeout)
        if deadline is not None:
            return self._await(self._enter(single, deadline, is_awaited=True), deadline)
        thread = get_ident()
        waiting_threads.add(thread)
        try:
            return self._runtime.wait(self._enter(single, None, is_awaited=True))
        finally:
            waiting_threads.discard(thread)

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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[int]:
        """Publish one message without waiting; return the future of its offset.

        The arguments are those of `publish`.

        Raises:
            WindowFullError: there is no room; threads wait `timeout` seconds for it, coroutines await `room()` before.
            ReplogError: as `publish`, for the arguments; other errors are those of the future.
        """
        name = b"" if producer is None else _name(producer)
        number = -1 if sequence is None else check_sequence(sequence)
        if event_time is not None:
            event_time = as_time_us("event_time", event_time)
        if deliver_at is not None or delay is not None:
            deliver_at = delivery_time(deliver_at, delay, self._clock)
        attribute = None if replicate_to is None else attribute_of(replicate_to)
        single = SingleMessage.of(value, key, properties, event_time, deliver_at, number, name, attribute)
        return self._enter(single, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float | None:
        """Return when the time of a call is over, on the monotonic clock; None: never."""
        seconds = self.timeout if timeout is None else as_timeout(timeout)
        return None if seconds is None else time.monotonic() + seconds

    def _await(self, future: AppendFuture[T], deadline: float | None) -> T:
        if deadline is None:
            return self._runtime.wait(future)
        try:
            return self._runtime.wait(future, max(deadline - time.monotonic(), 0.0))
        except OutcomeUnknownError:
            if future.done():  # this is its outcome
                raise
            raise OutcomeUnknownError(
                f"topic {self.topic}: no outcome in time (timeout): the message is published, or may be later, or not"
            ) from None

    def _enter(self, single: SingleMessage, deadline: float | None, *, is_awaited: bool = False) -> AppendFuture[int]:
        self._encoder.check_size(single.size)
        if self._is_global and single.producer and single.sequence < 0:
            raise self._unnumbered(single.producer)
        self._make_room(deadline)
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> range:
        """Publish several messages, and wait until all are confirmed.

        Arguments that are not listed are those of `publish`.

        Args:
            values: bytes-like objects, or columns: (offsets, data), numpy or Arrow arrays. They must not change before
                this returns.
            keys: likewise; None: no keys.
            properties: one mapping, or None, for each value.
            event_times: one time, or None, for each value.
            deliver_at: one time, or None, for each value.
            delay: seconds from now, for all of them.
            sequences: ascending numbers, one for each value.
            replicate_to: names of the clusters, for all of them.

        Returns:
            Their offsets, which are consecutive, without messages that were published before.

        Raises:
            SequenceError: the sequences do not ascend.
            ReplogError: as `publish`; after an unknown outcome a part may be stored.
        """
        check_may_block("publish_batch")
        name = b"" if producer is None else _name(producer)
        batch = self._messages(name, values, keys, properties, event_times, deliver_at, delay)
        deadline = self._deadline(timeout)
        return self._await(
            self._enter_batch(name, batch, sequences, attribute_of(replicate_to), deadline, is_awaited=True), deadline
        )

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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[range]:
        """Publish several messages without waiting; return the future of their offsets.

        The offsets follow those of the messages that the same producer submitted before.

        The arguments are those of `publish_batch`.

        Raises:
            ReplogError: as `submit`.
        """
        name = b"" if producer is None else _name(producer)
        batch = self._messages(name, values, keys, properties, event_times, deliver_at, delay)
        return self._enter_batch(name, batch, sequences, attribute_of(replicate_to), self._deadline(timeout))

    async def _awaited(self, producer: str | None) -> Publisher:
        return self

    publish_async = publishing(submit, _awaited)
    """Do what `publish` does, in a coroutine: wait for room, then for the outcome."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """Do what `publish_batch` does, in a coroutine."""

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
            values = MessageColumns.of(values).values  # so that an iterator can be counted
            times = np.full(MessageColumns(values).messages, delivery_time(None, delay, self._clock), np.int64)
        return Messages(
            values, keys, properties=properties, event_times=as_times_us("event_times", event_times), deliver_at=times,
            producer=producer,
        )  # fmt: skip

    def _enter_batch(
        self,
        producer: bytes,
        batch: Messages,
        sequences: ArrayLike | None,
        attribute: bytes | None,
        deadline: float | None,
        *,
        is_awaited: bool = False,
    ) -> AppendFuture[range]:
        numbers = None if sequences is None else check_sequences(self.topic, sequences, batch.count)
        if self._is_global and producer and numbers is None:
            raise self._unnumbered(producer)
        future: AppendFuture[range] = AppendFuture()
        if not batch.count:
            set_result(future, range(0))
            return future
        self._make_room(deadline)
        submitted = SubmittedBatch(producer, batch, numbers, future, attribute)
        self._sequencer.enter(submitted, is_awaited=is_awaited)
        if submitted.failure is not None:  # encoding failed
            raise submitted.failure
        return future

    def _unnumbered(self, producer: bytes) -> InvalidArgumentError:
        """Return the error for messages without numbers: another cluster may have given the next one already."""
        return InvalidArgumentError(
            f"topic {self.topic}: expected a sequence for each message of producer {producer.decode()}, because the "
            "topic has global_producers, found none: pass numbers that you would also pass in the other clusters"
        )

    def forward(self, forwarded: ForwardedBatch) -> AppendFuture[range]:
        """Publish a batch that another process has encoded, in the order of the calls. Does not wait: see `room`.

        Raises the errors of `submit_batch`.
        """
        self._sequencer.enter(forwarded)
        return forwarded.future

    def replicate(
        self, gate: OriginGate, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap]
    ) -> AppendFuture[int]:
        """Store entries and gaps of an origin, see `Origins.replicate`. Does not wait: see `room`."""
        batch = ReplicatedBatch(gate, session, entries, gaps, self._encoder, is_numbered=self._is_global)
        self._sequencer.enter(batch)
        return batch.future

    def with_gates(self, call: Callable[[int], T], *, admits: bool = False) -> T:
        """Return the result of a call that uses the gates, see `Sequencer.with_gates`."""
        return self._sequencer.with_gates(call, admits=admits)

    def on_news(self, call: Callable[[], object]) -> None:
        """Have a function called when the gates have to be stored before a caller gets its result."""
        self._sequencer.on_news = call

    def last_assigned(self, producer: str) -> int:
        """Return the highest number of a producer that is stored or in flight; -1: none."""
        return self._sequencer.last_assigned(_name(producer))

    def last_sequence(self, producer: str) -> int:
        """Return the highest number of a producer that is stored; -1: none, or the topic does not deduplicate."""
        return self._sequencer.last_sequence(_name(producer))

    # ---- room and the end ------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether there is room, or no messages are accepted any more. Raises the errors of the sink."""
        if not self._window.is_over:
            self._sink.check_open()
        return self._window.has_room()

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room, or no messages are accepted any more."""
        return self._window.room()

    def _make_room(self, deadline: float | None) -> None:
        """Wait until there is room, if this caller may wait. Raises the errors of the sink, or WindowFullError."""
        window = self._window
        while True:
            if not window.is_over:
                self._sink.check_open()
            if window.has_room():
                return
            if not in_callback() and _get_running_loop() is None:
                room = window.room()
                try:
                    self._runtime.wait(room, None if deadline is None else max(deadline - time.monotonic(), 0.0))
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
                raise WindowFullError(f"topic {self.topic}: twice the window has no outcome: await room() before")

    @property
    def waiting(self) -> int:
        """Number of callers that wait for room."""
        return self._window.waiting

    @property
    def quota(self) -> Publishing:
        """State of the backlog quota: "open"; "held": callers wait; "refused": they get BacklogFullError."""
        return self._sequencer.quota

    def set_quota(self, state: Publishing, reason: str) -> None:
        """Set the state of the backlog quota, and the reason in its errors.

        Messages that were submitted before go on.
        """
        self._sequencer.set_quota(state, reason)

    def lift_quota(self) -> None:
        """Ignore quotas from now on."""
        self._sequencer.lift_quota()

    def quota_error(self) -> BacklogFullError | None:
        """Return the error for a caller that does not wait for a quota; None: no quota holds publishers."""
        return self._sequencer.quota_error()

    @property
    def pending_messages(self) -> int:
        """Messages without an outcome."""
        return self._window.messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes, approximately."""
        return self._window.bytes

    @property
    def counts(self) -> PublishCounters:
        """Counters of the outcomes so far."""
        return self._sequencer.counts

    def flush(self, timeout: float | None = None) -> None:
        """Send lingering messages, and wait until every message submitted so far has an outcome, which its own future
        has.

        Args:
            timeout: as in `publish`.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: the time ran out; the messages go on by themselves.
        """
        check_may_block("flush")
        deadline = self._deadline(timeout)
        self._await(self.flush_async(), deadline)

    def flush_async(self) -> AppendFuture[None]:
        """Send lingering messages at once; return a future that is done when every message submitted so far has an
        outcome.
        """
        return self._sequencer.flush()

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Return the result of a future. timeout: as in `publish`.

        Raises InvalidArgumentError in a callback; OutcomeUnknownError if the time ran out; the errors of the future.
        """
        check_may_wait()
        return self._await(future, self._deadline(timeout))

    def snapshot(self) -> tuple[int, bytes] | None:
        """Return an offset, and the producers as of the messages before it; None: the topic does not deduplicate.

        The state is for `Producers.restore`, followed by `replay` from the offset on.
        """
        return self._sequencer.snapshot()

    @property
    def has_new_failures(self) -> bool:
        """Whether a snapshot should be stored soon: see `Producers`."""
        return self._sequencer.has_new_failures

    def purge(self, before_us: int) -> int:
        """Forget producers that published nothing since a time; return their number."""
        return self._sequencer.purge(before_us)

    def stop(self, error: BaseException) -> None:
        """Accept no more messages: calls raise `error`, and messages that were not sent yet fail with it."""
        self._sequencer.stop(error)


def _name(producer: str) -> bytes:
    return _encoded(producer) if type(producer) is str else check_name(producer).encode()


@lru_cache(maxsize=1024)
def _encoded(producer: str) -> bytes:
    """Return a name as bytes; each name is checked once, not for every message."""
    return check_name(producer).encode()
