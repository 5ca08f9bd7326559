"""A consumer's subscription in another process, attached again when the connection or the owner is lost."""

from __future__ import annotations

import logging
import time
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.machines.serial_executor import in_callback
from pyreplog._native.topic.range_set import RangeSet
from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import (
    ClosedError,
    DamagedMessageError,
    DisconnectedError,
    NotConnectedError,
    OutcomeUnknownError,
    ReplogError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.net.sockets import Address
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.connection_pool import (
    ConnectionPool,
    Outcome,
    StaleError,
    is_transient,
    reads,
    settle,
)
from pyreplog.topic.client.remote.sender import RETRY_MOST_S, RETRY_S
from pyreplog.topic.model.interfaces import AckedOffsets, DeliveredMessages
from pyreplog.topic.model.positions import Start, check_start
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import Delivered, decode_delivered
from pyreplog.topic.model.wire.fields import OFFSETS_MAX
from pyreplog.topic.model.wire.protocol import Done, Moved, MovedTo, Reply, Request, Resumed

logger = logging.getLogger(__name__)


class WeakConsumer:
    """A DeliveryTarget that passes all calls to its consumer, while that exists.

    Messages that arrive while the consumer is forgotten are dropped; others get them when its finalizer has detached
    it.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.name = consumer.name
        self.is_active = consumer.is_active
        self.consumer = weakref.ref(consumer)
        """Returns None after the consumer was forgotten."""

    def deliver(self, delivery: DeliveredMessages) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.deliver(delivery)

    def discard(self, *, sought: bool = False) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.discard(sought=sought)

    def forget_acks(self, era: int) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.forget_acks(era)

    def set_active(self, active: bool) -> None:
        self.is_active = active
        if (consumer := self.consumer()) is not None:
            consumer.set_active(active)

    def failed(self, error: ReplogError) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.failed(error)

    def close(self) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.close()


RANGES_MAX = 1 << 20
"""Most ranges of a RESUME."""


class UnconfirmedAcks:
    """Acknowledged offsets that no flush has confirmed, in layers: a flush confirms the layers before it. No I/O.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._layers: list[RangeSet] = []
        self._first = 0  # number of confirmed layers
        self._is_open = False  # the last layer accepts more offsets
        self._ends: list[tuple[int, int]] = []  # cumulative acknowledgements: (layer, end)

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def count(self) -> int:
        """Number of ranges, approximately."""
        return sum(map(len, self._layers))

    def add(self, noted: AckedOffsets) -> None:
        """Add acknowledged offsets."""
        layer = self._open()
        if isinstance(noted, tuple):
            layer.add(*noted)
        else:
            layer.add_offsets(noted)

    def add_below(self, end: int) -> int:
        """Add a cumulative acknowledgement of everything below `end`; return its layer.

        A `cut` of this number includes it.
        """
        self._open()
        layer = self._first + len(self._layers)
        self._ends.append((layer, end))
        return layer

    def remove_below(self, end: int) -> None:
        """Remove a cumulative acknowledgement that the owner refused."""
        self._ends = [(layer, other) for layer, other in self._ends if other != end]

    def _open(self) -> RangeSet:
        if not self._is_open:
            self._layers.append(RangeSet())
            self._is_open = True
        return self._layers[-1]

    def remove(self, noted: AckedOffsets) -> None:
        """Remove acknowledgements that the owner refused."""
        for layer in self._layers:
            if isinstance(noted, tuple):
                layer.remove(*noted)
            else:
                layer.remove_offsets(noted)

    def cut(self) -> int:
        """Close the last layer before a flush or a repetition; return a number for `confirmed` and `ranges`."""
        self._is_open = False
        return self._first + len(self._layers)

    def confirmed(self, cut: int) -> None:
        """Remove the layers that a successful flush after that cut has confirmed."""
        while self._layers and self._first < cut:
            self._first += 1
            del self._layers[0]
        self._ends = [(layer, end) for layer, end in self._ends if layer > self._first]

    def clear(self) -> None:
        """Remove all acknowledgements, which do not count any more."""
        self.confirmed(self.cut())

    @property
    def below(self) -> int:
        """Everything below it is acknowledged cumulatively; 0: nothing."""
        return max((end for _, end in self._ends), default=0)

    def ranges(self, cut: int = 0) -> NDArray[np.int64]:
        """Return the other acknowledgements after a cut as half-open ranges."""
        merged = RangeSet()
        for layer in self._layers[max(cut - self._first, 0) :]:
            merged.add_ranges(*layer.intersect())
        return np.stack(merged.intersect(), axis=1)


T = TypeVar("T")
FLUSH_AFTER_S = 1.0
"""Seconds after which acknowledgements are flushed, if the application does not flush."""

FETCHES, FETCHES_LEAST = 3, 2
"""Most pending fetches; and as many as suffice, so that the next one goes together with an acknowledgement."""


class RemoteSubscribeOptions(NamedTuple):
    """The options with which a consumer attaches. settings: JSON; "": leave them as they are."""

    topic: str
    subscription: str
    start: Start
    durable: bool
    priority: int
    settings: str


class RemoteSubscription:
    """A SubscriptionLike at another process. Any thread; steps run one at a time, and none waits.

    The consumer's acknowledgements are kept until a flush has confirmed them, and repeated whenever it is attached
    again. Requests with an answer wait while it is not attached. on_detached: called when the consumer is closed.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        options: RemoteSubscribeOptions,
        consumer: Consumer,
        on_detached: Callable[[RemoteSubscription], object],
    ) -> None:
        self.consumer = WeakConsumer(consumer)
        self.wait = pool.wait
        self.wake_after = pool.wake_after
        self._pool, self._options, self._on_detached = pool, options, on_detached
        self._events = EventQueue()
        self._handle = 0  # of the consumer at the server; 0: not attached
        self._address: Address = ("", 0)
        self._fetches = 0  # pending fetches
        self._permits = 0  # permits whose messages have not arrived
        self._generation = 0
        self._has_era = False
        self._era = 0  # of its messages, see `protocol.Resume`; 0: not known
        self._unconfirmed = UnconfirmedAcks()
        self._in_doubt: str | None = None  # why acknowledgements may be lost, until a flush has raised it
        self._flush_scheduled = False  # a flush that the application did not ask for runs, or will
        self._resumed_cut = 0  # cut of the acknowledgements that were repeated
        self._seeking = False  # its own seek is pending
        self._waiting: list[Callable[[], None]] = []  # requests that are sent when it is attached
        self._error: ReplogError | None = None
        self._next_offset = -1  # offset behind the last message that arrived
        self._failing_since: float | None = None
        self._retry_s = RETRY_S
        self._is_over = False

    # ---- attaching ------------------------------------------------------------------------------------------

    def attach(self) -> AppendFuture[None]:
        """Attach the consumer the first time; the future fails if the subscription refuses it."""
        done: AppendFuture[None] = AppendFuture()
        self._subscribe(done)
        return done

    def _subscribe(self, done: AppendFuture[None] | None = None) -> None:
        handle, options = self._pool.next_handle(), self._options
        start = options.start if options.durable or self._next_offset < 0 else self._next_offset
        request = protocol.Subscribe(
            handle, options.priority, options.durable, start, options.topic, options.subscription, self.consumer.name,
            options.settings,
        )  # fmt: skip

        def on_outcome(address: Address, outcome: Outcome) -> None:
            self._events.post(lambda: self._subscribed(handle, address, outcome, done))

        self._pool.ask(options.topic, request, on_outcome)

    def _subscribed(self, handle: int, address: Address, outcome: Outcome, done: AppendFuture[None] | None) -> None:
        if isinstance(outcome, ReplogError):
            if isinstance(outcome, OutcomeUnknownError):
                self._detach_failed(handle, address, outcome)
            self._not_attached(outcome, done)
        elif self._is_over or self._pool.version(address) < 2:
            self._resumed(handle, address, None, done)
        else:
            resume = protocol.Resume(handle, self._era, self._unconfirmed.below, self._unconfirmed.ranges())
            self._resumed_cut = self._unconfirmed.cut()

            def on_outcome(_: Address, outcome: Outcome) -> None:
                reply: AppendFuture[Resumed] = AppendFuture()
                settle(reply, outcome, reads(Resumed))
                self._events.post(lambda: resumed(reply))

            def resumed(reply: AppendFuture[Resumed]) -> None:
                error = reply.exception()
                if isinstance(error, ReplogError):
                    self._detach_failed(handle, address, error)
                    self._not_attached(error, done)
                else:
                    self._resumed(handle, address, reply.result(), done)

            self._pool.send(address, resume, on_outcome, self._pool.timeout)

    def _resumed(self, handle: int, address: Address, reply: Resumed | None, done: AppendFuture[None] | None) -> None:
        """Continue after the subscription knows the earlier acknowledgements, if its era is the same.

        reply: None: the server knows no eras.
        """
        if self._is_over:
            self._pool.send(address, protocol.Detach(handle), _ignore)
            return
        self._handle, self._address, self._fetches = handle, address, 0
        self._has_era = reply is not None
        self._generation, era, counts = (0, 0, False) if reply is None else reply
        if done is None and not counts:
            self._drop_unconfirmed()
            self.consumer.forget_acks(era)
        self._era = era
        for start, end in self._unconfirmed.ranges(self._resumed_cut).tolist():  # acknowledged after that RESUME
            self._send_acks(protocol.AcknowledgeRange(handle, self._generation, start, end), (start, end))
        self._retry_s, self._failing_since = RETRY_S, None
        if done is not None:
            set_result(done, None)
        if self._permits:
            self._send(protocol.Flow(handle, self._permits))
        self._fetch()
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()
        self._flush_soon()

    def _drop_unconfirmed(self) -> None:
        """Note that acknowledgements without a flush do not count, or that this is not known."""
        if self._unconfirmed and self._options.durable and not self._seeking:
            options = self._options
            self._in_doubt = (
                f"topic {options.topic}, subscription {options.subscription}: acknowledgements that no flush had "
                "confirmed were lost with the connection, or a seek moved the subscription: their messages may come "
                "again"
            )
        self._unconfirmed.clear()

    def _detach_failed(self, handle: int, address: Address, error: ReplogError) -> None:
        """Free the place of a consumer that is attached, or may be: the next attempt has another handle."""
        if not isinstance(error, DisconnectedError | StaleError):  # with these the server has detached it
            self._pool.send(address, protocol.Detach(handle), _ignore)

    def _not_attached(self, error: ReplogError, done: AppendFuture[None] | None) -> None:
        if done is not None and (self._is_over or not isinstance(error, DisconnectedError | ClosedError)):
            set_exception(done, error)
            return
        if self._is_over:
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        timer = None
        if (is_transient(error) or error.retriable) and now - self._failing_since < self._pool.timeout:
            timer = self.wake_after(self._retry_s, lambda: self._events.post(lambda: self._subscribe_again(done)))
        if timer is None:
            self._fail(error, done)
            return
        options = self._options
        logger.info("topic %s, subscription %s: not attached yet: %s", options.topic, options.subscription, error)
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _subscribe_again(self, done: AppendFuture[None] | None = None) -> None:
        if not self._is_over:
            self._subscribe(done)
        elif done is not None:
            set_exception(done, ClosedError(f"consumer {self.consumer.name} was closed"))

    def _lost(self, handle: int, error: ReplogError) -> None:
        """Attach again, because the server, or the connection, has lost the consumer.

        Its messages come again; those of a subscription that ended with the connection are skipped.
        """
        if handle != self._handle or self._is_over:
            return  # it was attached again meanwhile
        options = self._options
        logger.info("topic %s, subscription %s: attached again: %s", options.topic, options.subscription, error)
        self._handle = 0
        if self._options.durable:
            self.consumer.discard()
        if isinstance(error, DamagedMessageError):  # the server still has it; the damage may go on for a while
            self._send(protocol.Detach(handle))
            self.wake_after(RETRY_S, lambda: self._events.post(self._subscribe_again))
        else:
            self._subscribe_again()

    def _fail(self, error: ReplogError, done: AppendFuture[None] | None = None) -> None:
        if isinstance(error, StaleError):  # a message for people
            error = NotConnectedError(f"consumer {self.consumer.name} could not be attached again in time: {error}")
        if done is not None:
            set_exception(done, error)
        self._handle = 0
        self._is_over = True
        self._error = error
        self.consumer.failed(error)
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        """Fail the waiting requests."""
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()

    # ---- messages -------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        while self._handle and self._fetches < FETCHES:
            self._fetch_by(protocol.Fetch(self._handle))

    def _fetch_by(self, request: protocol.Fetch | protocol.AcknowledgeAndFetch) -> None:
        self._fetches += 1
        handle, has_era = request.consumer, self._has_era

        def on_outcome(_: Address, outcome: Outcome) -> None:
            delivered: AppendFuture[Delivered] = AppendFuture()
            settle(delivered, outcome, partial(decode_delivered, has_era=has_era))
            self._events.post(lambda: self._fetched(handle, delivered))

        self._pool.send(self._address, request, on_outcome)

    def _fetched(self, handle: int, delivered: AppendFuture[Delivered]) -> None:
        if handle != self._handle:
            return  # it was attached again meanwhile
        self._fetches -= 1
        error = delivered.exception()
        if error is None:
            self._take_delivered(delivered.result())
            if self._fetches < FETCHES_LEAST:
                self._fetch()
        elif isinstance(error, ReplogError) and is_transient(error):
            self._lost(handle, error)
        elif isinstance(error, ReplogError):
            self._fail(error)

    def _take_delivered(self, delivered: Delivered) -> None:
        self._begin_generation(delivered.generation, delivered.era)
        if delivered.active != self.consumer.is_active:
            self.consumer.set_active(delivered.active)
        batch = delivered.batch
        if batch is None:
            return
        if delivered.generation < self._generation:  # the batch comes again
            self._send(protocol.Flow(self._handle, len(batch)))
            return
        self._permits -= len(batch)
        self._next_offset = batch.last + 1
        self.consumer.deliver(make_named(DeliveredMessages, batch, delivered.redelivered))

    def _begin_generation(self, generation: int, era: int | None) -> None:
        """Drop messages after a change of the generation; after a change of the era, drop acknowledgements as well."""
        if generation <= self._generation:
            return
        self._generation = generation
        if era is None or era != self._era:
            self.consumer.forget_acks(era or 0)
        if era is not None and era != self._era:
            self._unconfirmed.clear()
            self._era = era
        self.consumer.discard()

    # ---- calls of the consumer ------------------------------------------------------------------------------

    @property
    def era(self) -> int:
        """The era of the subscription, see `SubscriptionLike.era`; 0: the server does not tell."""
        return self._era

    @property
    def timeout(self) -> float:
        """Seconds that calls wait by default."""
        return self._pool.timeout

    def flow(self, consumer: int, messages: int) -> None:
        def flow() -> None:
            if messages > 0:
                self._permits += messages
                if self._handle:
                    self._send(protocol.Flow(self._handle, messages))

        self._events.post(flow)

    def acknowledge(self, consumer: int, offsets: NDArray[np.int64]) -> None:
        self.acknowledge_noted(consumer, lambda: offsets)

    def acknowledge_range(self, consumer: int, start: int, end: int) -> None:
        self.acknowledge_noted(consumer, lambda: (start, end))

    def acknowledge_noted(self, consumer: int, take: Callable[[], AckedOffsets | None]) -> None:
        """Acknowledge the offsets that `take` returns; they are repeated if the connection is lost before a flush."""

        def acknowledge() -> None:
            noted, handle = take(), self._handle
            if noted is None:
                return
            self._unconfirmed.add(noted)
            self._flush_soon()
            if not handle:
                return
            if isinstance(noted, tuple):
                if self._fetches < FETCHES:
                    self._fetch_by(protocol.AcknowledgeAndFetch(handle, self._generation, *noted))
                else:
                    self._send_acks(protocol.AcknowledgeRange(handle, self._generation, *noted), noted)
                return
            for at in range(0, len(noted), OFFSETS_MAX):
                part = noted[at : at + OFFSETS_MAX]
                self._send_acks(protocol.Acknowledge(handle, self._generation, part), part)

        self._events.post(acknowledge)

    def _send_acks(self, request: Request, noted: AckedOffsets) -> None:
        def on_outcome(_: Address, outcome: Outcome) -> None:
            if isinstance(outcome, ReplogError) and not is_transient(outcome):
                logger.warning("topic %s: the owner refused acknowledgements: %s", self._options.topic, outcome)
                self._events.post(lambda: self._unconfirmed.remove(noted))

        self._pool.send(self._address, request, on_outcome)

    def acknowledge_cumulative(self, consumer: int, end: int) -> AppendFuture[None]:
        era = layer = attempts = 0

        def begin() -> None:
            nonlocal era, layer
            era, layer = self._era, self._unconfirmed.add_below(end)
            self._flush_soon()

        def make_request(handle: int) -> Request | None:
            """Return None if the RESUME had it, or if a seek moved the subscription, so that it does not count."""
            nonlocal attempts
            attempts += 1
            if layer > self._resumed_cut and era == self._era and (self._has_era or attempts == 1):
                return protocol.AcknowledgeCumulative(handle, self._generation, end)
            if self._has_era:
                return None
            raise OutcomeUnknownError(
                f"consumer {self.consumer.name}: the connection was lost before the answer arrived"
            )

        def on_done(future: AppendFuture[None]) -> None:
            if (error := future.exception()) is not None and not is_transient(error):
                self._events.post(lambda: self._unconfirmed.remove_below(end))

        self._events.post(begin)
        done = self._ask(make_request, Done, lambda _: None)
        done.add_done_callback(on_done)
        return done

    # ---- flushing -------------------------------------------------------------------------------------------

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when all acknowledgements so far are durable, including repeated ones.

        It fails with OutcomeUnknownError if some are lost.
        """
        cut = 0

        def make_request(handle: int) -> Request:
            nonlocal cut
            if self._in_doubt is not None:
                doubt, self._in_doubt = self._in_doubt, None
                raise OutcomeUnknownError(doubt)
            cut = self._unconfirmed.cut()
            return protocol.Flush(handle)

        return self._ask(make_request, Done, lambda _: self._unconfirmed.confirmed(cut))

    def _flush_soon(self) -> None:
        """Schedule a flush, so that acknowledgements need not be kept if the application does not flush."""
        if self._unconfirmed.count > RANGES_MAX:
            self._drop_unconfirmed()
        if self._unconfirmed and not self._flush_scheduled:
            self._flush_scheduled = True
            self.wake_after(FLUSH_AFTER_S, lambda: self._events.post(self._flush_now))

    def _flush_now(self) -> None:
        if not self._handle or not self._unconfirmed:
            self._flush_scheduled = False
            return
        handle, cut = self._handle, self._unconfirmed.cut()

        def on_outcome(_: Address, outcome: Outcome) -> None:
            self._events.post(lambda: flushed(outcome))

        def flushed(outcome: Outcome) -> None:
            self._flush_scheduled = False
            if not isinstance(outcome, ReplogError):
                self._unconfirmed.confirmed(cut)
            if handle == self._handle:  # otherwise it was attached again, or will be
                self._flush_soon()

        self._pool.send(self._address, protocol.Flush(handle), on_outcome)

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        """Refuse messages. A server before version 3 does not get the reason."""
        delay = -1 if delay_us is None else max(delay_us, 0)

        def request(handle: int, part: NDArray[np.int64]) -> Request:
            if reason is None or self._pool.version(self._address) < 3:
                return protocol.Nack(handle, delay, part)
            return protocol.NackWithReason(handle, delay, reason, part)

        for at in range(0, len(offsets), OFFSETS_MAX):
            self._send_if_attached(partial(request, part=offsets[at : at + OFFSETS_MAX]))

    def redeliver(self, consumer: int) -> None:
        """Refuse all messages. Without effect while it is not attached, because then all of them come again."""

        def redeliver() -> None:
            if self._handle:
                self._ask(protocol.Redeliver, Moved, lambda _: None, repeat=False)

        self._events.post(redeliver)

    def seek(self, start: Start) -> AppendFuture[int]:
        check_start(start)

        def make_request(handle: int) -> Request:
            self._seeking = True
            return protocol.Seek(handle, start)

        def on_done(_: AppendFuture[int]) -> None:
            self._events.post(lambda: setattr(self, "_seeking", False))

        done = self._ask(make_request, Moved, lambda moved: int(moved.offset))
        done.add_done_callback(on_done)
        return done

    def detach(self, consumer: int) -> None:
        detached = self._leave()
        if not in_callback() and _get_running_loop() is None:
            with suppress(ReplogError):  # the connection is lost, or too slow, and detaches it
                self.wait(detached, self._pool.close_timeout)

    def give_up(self) -> None:
        """Stop attaching, because the caller does not wait any longer."""
        self._leave()

    def abandon(self, consumer: int) -> None:
        with suppress(ReplogError):  # the client was closed
            self._pool.reactor.call_soon(self._leave)

    def _leave(self) -> AppendFuture[None]:
        """Detach; the future is done when the server has done so."""
        detached: AppendFuture[None] = AppendFuture()

        def on_detached(address: Address, outcome: Outcome) -> None:
            _ignore(address, outcome)
            set_result(detached, None)

        def leave() -> None:
            handle, self._handle = self._handle, 0
            self._is_over = True
            self._fail_waiting()
            if handle:
                self._pool.send(self._address, protocol.Detach(handle), on_detached)
            else:
                set_result(detached, None)

        self._events.post(leave)
        self._on_detached(self)
        return detached

    # ---- requests -------------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        self._pool.send(self._address, request, _ignore)

    def _send_if_attached(self, make_request: Callable[[int], Request]) -> None:
        """Send a request without an answer, if it is attached.

        Otherwise all unacknowledged messages come again, whatever the request was.
        """

        def send() -> None:
            if self._handle:
                self._send(make_request(self._handle))

        self._events.post(send)

    def _ask(
        self,
        make_request: Callable[[int], Request | None],
        kind: type[Reply],
        result: Callable[..., T],
        *,
        repeat: bool = True,
    ) -> AppendFuture[T]:
        """Send a request once it is attached, and again if it is detached before the answer, unless the future has
        failed.

        make_request: returns the request; None: it is done already. result: converts the reply. Both are called in
        steps. repeat: False: send it only once.
        """
        done: AppendFuture[T] = AppendFuture()

        def send() -> None:
            handle, moves = self._handle, kind is Moved
            if done.done():
                return
            if self._is_over:
                set_exception(done, self._error or ClosedError(f"consumer {self.consumer.name} was closed"))
            elif not handle:
                self._waiting.append(send)
            else:
                try:
                    request = make_request(handle)
                except ReplogError as error:
                    set_exception(done, error)
                    return
                if request is None:
                    set_result(done)
                    return
                read = reads(MovedTo if moves and self._has_era else kind)
                self._pool.send(self._address, request, partial(on_outcome, handle, read))

        def on_outcome(handle: int, read: Callable[[WireReader], Reply], _: Address, outcome: Outcome) -> None:
            future: AppendFuture[Reply] = AppendFuture()
            settle(future, outcome, read)
            self._events.post(lambda: answered(handle, future))

        def answered(handle: int, future: AppendFuture[Reply]) -> None:
            error = future.exception()
            if isinstance(error, ReplogError) and is_transient(error):
                self._lost(handle, error)
                if repeat:
                    send()
            elif error is not None:
                set_exception(done, error)
            else:
                reply = future.result()
                if isinstance(reply, Moved | MovedTo) and handle == self._handle:  # else it was attached again
                    self._begin_generation(reply.generation, reply.era if isinstance(reply, MovedTo) else None)
                set_result(done, result(reply))

        self._events.post(send)
        return done


def _ignore(_: Address, outcome: Outcome) -> None:
    if isinstance(outcome, ReplogError) and not is_transient(outcome):
        logger.warning("a request of a consumer failed: %s", outcome)
