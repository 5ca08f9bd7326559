"""A consumer's subscription at another process: attached there, and again when the connection or the owner is lost."""

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

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.errors import (
    ClosedError,
    DamagedMessageError,
    DisconnectedError,
    NotConnectedError,
    OutcomeUnknownError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.net.sockets import Address
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, Outcome, StaleError, is_passing, reads, settle
from pyreplog.topic.client.remote.sender import RETRY_MOST_S, RETRY_S
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.interfaces import DeliveredMessages, Noted
from pyreplog.topic.model.positions import Start, check_start
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import Delivered, decode_delivered
from pyreplog.topic.model.wire.fields import OFFSETS_MAX, WireReader
from pyreplog.topic.model.wire.protocol import Done, Moved, MovedTo, Reply, Request, Resumed


class WeakConsumer:
    """A DeliveryTarget: passes all on to its consumer, while somebody has that. What comes in the moment in which the
    consumer is forgotten is nobody's: it comes again to others when the consumer is detached, which its finalizer asks
    for."""

    def __init__(self, consumer: Consumer) -> None:
        self.name = consumer.name
        self.is_active = consumer.is_active
        self.consumer = weakref.ref(consumer)
        """None: it was forgotten."""

    def deliver(self, delivery: DeliveredMessages) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.deliver(delivery)

    def discard(self, *, sought: bool = False) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.discard(sought=sought)

    def forget_acks(self, era: int) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.forget_acks(era)

    def became(self, active: bool) -> None:
        self.is_active = active
        if (consumer := self.consumer()) is not None:
            consumer.became(active)

    def failed(self, error: ReplogError) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.failed(error)

    def close(self) -> None:
        if (consumer := self.consumer()) is not None:
            consumer.close()


RANGES_MAX = 1 << 20
"""As many as a RESUME may have."""


class UnconfirmedAcks:
    """Offsets, in layers: a flush confirms those that were there when it was asked for. Pure; not for several threads
    at once."""

    def __init__(self) -> None:
        self._layers: list[RangeSet] = []
        self._first = 0  # how many were confirmed
        self._is_open = False  # the last layer takes more
        self._ends: list[tuple[int, int]] = []  # of cumulative acknowledgements: layer, and where they end

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def count(self) -> int:
        """Ranges, about."""
        return sum(map(len, self._layers))

    def add(self, noted: Noted) -> None:
        """These were acknowledged."""
        layer = self._open()
        if isinstance(noted, tuple):
            layer.add(*noted)
        else:
            layer.add_offsets(noted)

    def add_below(self, end: int) -> int:
        """All below it were acknowledged; a cut from this number on has it."""
        self._open()
        layer = self._first + len(self._layers)
        self._ends.append((layer, end))
        return layer

    def remove_below(self, end: int) -> None:
        """They are not: the owner refused it."""
        self._ends = [(layer, other) for layer, other in self._ends if other != end]

    def _open(self) -> RangeSet:
        if not self._is_open:
            self._layers.append(RangeSet())
            self._is_open = True
        return self._layers[-1]

    def remove(self, noted: Noted) -> None:
        """These are none: the owner refused them."""
        for layer in self._layers:
            if isinstance(noted, tuple):
                layer.remove(*noted)
            else:
                layer.remove_offsets(noted)

    def cut(self) -> int:
        """What is there is about to be flushed, or said again; for `confirmed`, and `ranges`."""
        self._is_open = False
        return self._first + len(self._layers)

    def confirmed(self, cut: int) -> None:
        """A flush that was asked for behind that cut has succeeded."""
        while self._layers and self._first < cut:
            self._first += 1
            del self._layers[0]
        self._ends = [(layer, end) for layer, end in self._ends if layer > self._first]

    def clear(self) -> None:
        """Nothing of it counts any more."""
        self.confirmed(self.cut())

    @property
    def below(self) -> int:
        """All that lies before it is acknowledged; 0: nothing."""
        return max((end for _, end in self._ends), default=0)

    def ranges(self, cut: int = 0) -> NDArray[np.int64]:
        """From and up to, of what was acknowledged besides, behind a cut."""
        merged = RangeSet()
        for layer in self._layers[max(cut - self._first, 0) :]:
            merged.add_ranges(*layer.intersect())
        return np.stack(merged.intersect(), axis=1)


logger = logging.getLogger(__name__)

T = TypeVar("T")
FLUSH_AFTER_S = 1.0
"""What was acknowledged is confirmed by then, whether somebody flushes or not."""

FETCHES, FETCHES_LEAST = 3, 2
"""On their way at most; and how many are enough, so that the next goes with an acknowledgement."""


class RemoteSubscribeOptions(NamedTuple):
    """What a consumer attaches with. settings: JSON, "": whatever they are."""

    topic: str
    subscription: str
    start: Start
    durable: bool
    priority: int
    settings: str


class RemoteSubscription:
    """A Source. Any thread; steps take turns, and none waits. on_detached: called when the consumer is closed.

    What the consumer acknowledges is kept until a flush has confirmed it, and said again whenever it is attached anew;
    requests that have an answer wait for that.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        wanted: RemoteSubscribeOptions,
        consumer: Consumer,
        on_detached: Callable[[RemoteSubscription], object],
    ) -> None:
        self.consumer = WeakConsumer(consumer)
        self.wait = pool.wait
        self.wake_after = pool.wake_after
        self._pool, self._wanted, self._on_detached = pool, wanted, on_detached
        self._events = EventQueue()
        self._handle = 0  # as the server knows it, 0: it does not
        self._address: Address = ("", 0)
        self._fetches = 0  # on their way
        self._permits = 0  # given, messages have not come yet
        self._generation = 0
        self._tells_era = False
        self._era = 0  # of what it has, see `protocol.Resume`; 0: not known
        self._unconfirmed = UnconfirmedAcks()
        self._in_doubt: str | None = None  # why some of it may be lost, until a flush has said so
        self._flushes = False  # or will: nobody asked for it
        self._resumed_cut = 0  # what was said again
        self._seeking = False  # it moves the subscription itself
        self._waiting: list[Callable[[], None]] = []  # what is sent as soon as it is attached
        self._error: ReplogError | None = None
        self._next = -1  # behind the last message that came
        self._failing_since: float | None = None
        self._retry_s = RETRY_S
        self._is_over = False

    # ---- attaching ------------------------------------------------------------------------------------------

    def attach(self) -> AppendFuture[None]:
        """The first time: it fails if the subscription does not take it."""
        done: AppendFuture[None] = AppendFuture()
        self._subscribe(done)
        return done

    def _subscribe(self, done: AppendFuture[None] | None = None) -> None:
        handle, wanted = self._pool.next_handle(), self._wanted
        start = wanted.start if wanted.durable or self._next < 0 else self._next
        request = protocol.Subscribe(
            handle, wanted.priority, wanted.durable, start, wanted.topic, wanted.subscription, self.consumer.name,
            wanted.settings,
        )  # fmt: skip

        def came(address: Address, outcome: Outcome) -> None:
            self._events.post(lambda: self._subscribed(handle, address, outcome, done))

        self._pool.ask(wanted.topic, request, came)

    def _subscribed(self, handle: int, address: Address, outcome: Outcome, done: AppendFuture[None] | None) -> None:
        if isinstance(outcome, ReplogError):
            self._not_attached(outcome, done)
        elif self._is_over or self._pool.version(address) < 2:
            self._resumed(handle, address, None, done)
        else:
            again = protocol.Resume(handle, self._era, self._unconfirmed.below, self._unconfirmed.ranges())
            self._resumed_cut = self._unconfirmed.cut()

            def came(_: Address, outcome: Outcome) -> None:
                told: AppendFuture[Resumed] = AppendFuture()
                settle(told, outcome, reads(Resumed))
                self._events.post(lambda: resumed(told))

            def resumed(told: AppendFuture[Resumed]) -> None:
                error = told.exception()
                if isinstance(error, ReplogError):
                    self._not_attached(error, done)
                else:
                    self._resumed(handle, address, told.result(), done)

            self._pool.send(address, again, came, self._pool.timeout)

    def _resumed(self, handle: int, address: Address, told: Resumed | None, done: AppendFuture[None] | None) -> None:
        """The subscription knows what was acknowledged before, if it is still in that era. told: None, of a server that
        knows of no eras."""
        if self._is_over:
            self._pool.send(address, protocol.Detach(handle), _ignore)
            return
        self._handle, self._address, self._fetches = handle, address, 0
        self._tells_era = told is not None
        self._generation, era, counts = (0, 0, False) if told is None else told
        if done is None and not counts:
            self._consumer_forgets()
            self.consumer.forget_acks(era)
        self._era = era
        for start, end in self._unconfirmed.ranges(self._resumed_cut).tolist():  # acknowledged since that was sent
            self._send_acks(protocol.AcknowledgeRange(handle, self._generation, start, end), (start, end))
        self._retry_s, self._failing_since = RETRY_S, None
        if done is not None:
            done.complete(None)
        if self._permits:
            self._send(protocol.Flow(handle, self._permits))
        self._fetch()
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()
        self._flush_soon()

    def _consumer_forgets(self) -> None:
        """What was acknowledged, and not flushed, does not count, or nobody can tell."""
        if self._unconfirmed and self._wanted.durable and not self._seeking:
            self._in_doubt = (
                f"topic {self._wanted.topic}, subscription {self._wanted.subscription}: acknowledgements that no flush "
                "had confirmed were lost with the connection, or the subscription was moved by a seek: their messages "
                "may come again"
            )
        self._unconfirmed.clear()

    def _not_attached(self, error: ReplogError, done: AppendFuture[None] | None) -> None:
        if done is not None and (self._is_over or not isinstance(error, DisconnectedError | ClosedError)):
            done.fail(error)
            return
        if self._is_over:
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        timer = None
        if (is_passing(error) or error.retriable) and now - self._failing_since < self._pool.timeout:
            timer = self.wake_after(self._retry_s, lambda: self._events.post(lambda: self._subscribe_again(done)))
        if timer is None:
            self._end(error, done)
            return
        logger.info("topic %s, %s: not attached yet: %s", self._wanted.topic, self._wanted.subscription, error)
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _subscribe_again(self, done: AppendFuture[None] | None = None) -> None:
        if not self._is_over:
            self._subscribe(done)
        elif done is not None:
            done.fail(ClosedError(f"consumer {self.consumer.name} was closed"))

    def _lost(self, handle: int, error: ReplogError) -> None:
        """The server, or the connection, does not have it any more. What it had comes again; of a subscription that has
        ended with the connection, what comes is what follows."""
        if handle != self._handle or self._is_over:
            return  # it was attached anew since
        logger.info("topic %s, %s: attached anew: %s", self._wanted.topic, self._wanted.subscription, error)
        self._handle = 0
        if self._wanted.durable:
            self.consumer.discard()
        if isinstance(error, DamagedMessageError):  # the server has it still; whatever damages may go on for a while
            self._send(protocol.Detach(handle))
            self.wake_after(RETRY_S, lambda: self._events.post(self._subscribe_again))
        else:
            self._subscribe_again()

    def _end(self, error: ReplogError, done: AppendFuture[None] | None = None) -> None:
        if isinstance(error, StaleError):  # for people
            error = NotConnectedError(f"consumer {self.consumer.name} could not be attached again in time: {error}")
        if done is not None:
            done.fail(error)
        self._handle = 0
        self._is_over = True
        self._error = error
        self.consumer.failed(error)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Nothing is sent any more."""
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()

    # ---- messages -------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        while self._handle and self._fetches < FETCHES:
            self._fetch_by(protocol.Fetch(self._handle))

    def _fetch_by(self, request: protocol.Fetch | protocol.AcknowledgeAndFetch) -> None:
        self._fetches += 1
        handle, tells_era = request.consumer, self._tells_era

        def came(_: Address, outcome: Outcome) -> None:
            told: AppendFuture[Delivered] = AppendFuture()
            settle(told, outcome, partial(decode_delivered, tells_era=tells_era))
            self._events.post(lambda: self._fetched(handle, told))

        self._pool.send(self._address, request, came)

    def _fetched(self, handle: int, told: AppendFuture[Delivered]) -> None:
        if handle != self._handle:
            return  # it was attached anew since
        self._fetches -= 1
        error = told.exception()
        if error is None:
            self._take(told.result())
            if self._fetches < FETCHES_LEAST:
                self._fetch()
        elif isinstance(error, ReplogError) and is_passing(error):
            self._lost(handle, error)
        elif isinstance(error, ReplogError):
            self._end(error)

    def _take(self, delivered: Delivered) -> None:
        self._moved_to(delivered.generation, delivered.era)
        if delivered.active != self.consumer.is_active:
            self.consumer.became(delivered.active)
        batch = delivered.batch
        if batch is None:
            return
        if delivered.generation < self._generation:  # it comes again
            self._send(protocol.Flow(self._handle, len(batch)))
            return
        self._permits -= len(batch)
        self._next = batch.last + 1
        self.consumer.deliver(DeliveredMessages(batch, delivered.redelivered))

    def _moved_to(self, generation: int, era: int | None) -> None:
        """What it has is not its own any more; in another era, what it acknowledged of that does not count."""
        if generation <= self._generation:
            return
        self._generation = generation
        if era is None or era != self._era:
            self.consumer.forget_acks(era or 0)
        if era is not None and era != self._era:
            self._unconfirmed.clear()
            self._era = era
        self.consumer.discard()

    # ---- what a consumer calls ------------------------------------------------------------------------------

    @property
    def era(self) -> int:
        """As of `Subscription`; 0: the server does not tell."""
        return self._era

    @property
    def timeout(self) -> float:
        """Seconds for what is asked, unless it says otherwise."""
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

    def acknowledge_noted(self, consumer: int, take: Callable[[], Noted | None]) -> None:
        """It is said again when the connection is lost before a flush has confirmed it."""

        def tell() -> None:
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

        self._events.post(tell)

    def _send_acks(self, request: Request, noted: Noted) -> None:
        def came(_: Address, outcome: Outcome) -> None:
            if isinstance(outcome, ReplogError) and not is_passing(outcome):
                logger.warning("topic %s: acknowledgements are refused: %s", self._wanted.topic, outcome)
                self._events.post(lambda: self._unconfirmed.remove(noted))

        self._pool.send(self._address, request, came)

    def acknowledge_cumulative(self, consumer: int, end: int) -> AppendFuture[None]:
        era = layer = asked = 0

        def begin() -> None:
            nonlocal era, layer
            era, layer = self._era, self._unconfirmed.add_below(end)
            self._flush_soon()

        def made(handle: int) -> Request | None:
            """None: it was said again already; or the subscription was moved since, so it does not count."""
            nonlocal asked
            asked += 1
            if layer > self._resumed_cut and era == self._era and (self._tells_era or asked == 1):
                return protocol.AcknowledgeCumulative(handle, self._generation, end)
            if self._tells_era:
                return None
            raise OutcomeUnknownError(f"consumer {self.consumer.name}: the connection was lost before an answer came")

        def told(future: AppendFuture[None]) -> None:
            if (error := future.exception()) is not None and not is_passing(error):
                self._events.post(lambda: self._unconfirmed.remove_below(end))

        self._events.post(begin)
        done = self._ask(made, Done, lambda _: None)
        done.add_done_callback(told)
        return done

    # ---- flushing -------------------------------------------------------------------------------------------

    def flush_async(self) -> AppendFuture[None]:
        """Of all acknowledgements so far, also those that are said again. OutcomeUnknownError: some are lost."""
        cut = 0

        def made(handle: int) -> Request:
            nonlocal cut
            if self._in_doubt is not None:
                doubt, self._in_doubt = self._in_doubt, None
                raise OutcomeUnknownError(doubt)
            cut = self._unconfirmed.cut()
            return protocol.Flush(handle)

        return self._ask(made, Done, lambda _: self._unconfirmed.confirmed(cut))

    def _flush_soon(self) -> None:
        """What nobody flushes is confirmed after a while, so that it need not be kept."""
        if self._unconfirmed.count > RANGES_MAX:
            self._consumer_forgets()
        if self._unconfirmed and not self._flushes:
            self._flushes = True
            self.wake_after(FLUSH_AFTER_S, lambda: self._events.post(self._flush_now))

    def _flush_now(self) -> None:
        if not self._handle or not self._unconfirmed:
            self._flushes = False
            return
        handle, cut = self._handle, self._unconfirmed.cut()

        def came(_: Address, outcome: Outcome) -> None:
            self._events.post(lambda: flushed(outcome))

        def flushed(outcome: Outcome) -> None:
            self._flushes = False
            if not isinstance(outcome, ReplogError):
                self._unconfirmed.confirmed(cut)
            if handle == self._handle:  # else it was attached anew since, or will be
                self._flush_soon()

        self._pool.send(self._address, protocol.Flush(handle), came)

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        """A server before version 3 is not told the reason."""
        delay = -1 if delay_us is None else max(delay_us, 0)

        def request(handle: int, part: NDArray[np.int64]) -> Request:
            if reason is None or self._pool.version(self._address) < 3:
                return protocol.Nack(handle, delay, part)
            return protocol.NackWithReason(handle, delay, reason, part)

        for at in range(0, len(offsets), OFFSETS_MAX):
            self._tell(partial(request, part=offsets[at : at + OFFSETS_MAX]))

    def redeliver(self, consumer: int) -> None:
        """While it is not attached it is in vain: all of it comes again."""

        def redeliver() -> None:
            if self._handle:
                self._ask(protocol.Redeliver, Moved, lambda _: None, again=False)

        self._events.post(redeliver)

    def seek(self, start: Start) -> AppendFuture[int]:
        check_start(start)

        def made(handle: int) -> Request:
            self._seeking = True
            return protocol.Seek(handle, start)

        def over(_: AppendFuture[int]) -> None:
            self._events.post(lambda: setattr(self, "_seeking", False))

        done = self._ask(made, Moved, lambda moved: int(moved.offset))
        done.add_done_callback(over)
        return done

    def detach(self, consumer: int) -> None:
        left = self._leave()
        if not in_callback() and _get_running_loop() is None:
            with suppress(ReplogError):  # its connection is lost, or too slow: it leaves with that
                self.wait(left, self._pool.patience)

    def give_up(self) -> None:
        """Nobody waits for it to be attached any more."""
        self._leave()

    def abandon(self, consumer: int) -> None:
        with suppress(ReplogError):  # the client was closed
            self._pool.reactor.call_soon(self._leave)

    def _leave(self) -> AppendFuture[None]:
        """The AppendFuture is done when the server has let it go."""
        left: AppendFuture[None] = AppendFuture()

        def gone(address: Address, outcome: Outcome) -> None:
            _ignore(address, outcome)
            left.complete(None)

        def leave() -> None:
            handle, self._handle = self._handle, 0
            self._is_over = True
            self._tell_waiting()
            if handle:
                self._pool.send(self._address, protocol.Detach(handle), gone)
            else:
                left.complete(None)

        self._events.post(leave)
        self._on_detached(self)
        return left

    # ---- requests -------------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        self._pool.send(self._address, request, _ignore)

    def _tell(self, made: Callable[[int], Request]) -> None:
        """Without an answer; while it is not attached it is in vain: what is not acknowledged comes again."""

        def tell() -> None:
            if self._handle:
                self._send(made(self._handle))

        self._events.post(tell)

    def _ask(
        self, made: Callable[[int], Request | None], kind: type[Reply], result: Callable[..., T], *, again: bool = True
    ) -> AppendFuture[T]:
        """Ask as soon as it is attached, and again if it is not any more before the answer; unless the AppendFuture has
        failed meanwhile: whoever waited has given up. made: the request, None: that is done. result: of the reply;
        called in turn with all other steps, as `made` is. again: False, once is enough."""
        done: AppendFuture[T] = AppendFuture()

        def send() -> None:
            handle, moves = self._handle, kind is Moved
            if done.done():
                return
            if self._is_over:
                done.fail(self._error or ClosedError(f"consumer {self.consumer.name} was closed"))
            elif not handle:
                self._waiting.append(send)
            else:
                try:
                    request = made(handle)
                except ReplogError as error:
                    done.fail(error)
                    return
                if request is None:
                    done.complete()
                    return
                read = reads(MovedTo if moves and self._tells_era else kind)
                self._pool.send(self._address, request, partial(came, handle, read))

        def came(handle: int, read: Callable[[WireReader], Reply], _: Address, outcome: Outcome) -> None:
            told: AppendFuture[Reply] = AppendFuture()
            settle(told, outcome, read)
            self._events.post(lambda: answered(handle, told))

        def answered(handle: int, told: AppendFuture[Reply]) -> None:
            error = told.exception()
            if isinstance(error, ReplogError) and is_passing(error):
                self._lost(handle, error)
                if again:
                    send()
            elif error is not None:
                done.fail(error)
            else:
                reply = told.result()
                if isinstance(reply, Moved | MovedTo) and handle == self._handle:  # else it was attached anew since
                    self._moved_to(reply.generation, reply.era if isinstance(reply, MovedTo) else None)
                done.complete(result(reply))

        self._events.post(send)
        return done


def _ignore(_: Address, outcome: Outcome) -> None:
    if isinstance(outcome, ReplogError) and not is_passing(outcome):
        logger.warning("a request of a consumer failed: %s", outcome)
