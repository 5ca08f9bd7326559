"""A consumer's subscription at another process: attached there, and again when the connection or the owner is lost."""

from __future__ import annotations

import logging
import time
from asyncio import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.machines.turns import in_callback
from pyreplog.ack import Ack
from pyreplog.errors import ClosedError, NotConnectedError, ReplogError
from pyreplog.net.sockets import Address
from pyreplog.topic.consumer import Consumer
from pyreplog.topic.events import Events
from pyreplog.topic.inlet import Inlet
from pyreplog.topic.positions import Start, check_start, then
from pyreplog.topic.remote import protocol
from pyreplog.topic.remote.batches import Delivered, decode_delivered
from pyreplog.topic.remote.fields import OFFSETS_MAX
from pyreplog.topic.remote.link import FOREVER_S, Link, Outcome, is_passing, reads, settle
from pyreplog.topic.remote.protocol import Done, Moved, Reply, Request
from pyreplog.topic.remote.sender import RETRY_MOST_S, RETRY_S
from pyreplog.topic.source import Delivery, Noted

logger = logging.getLogger(__name__)

T = TypeVar("T")
FETCHES, FETCHES_LEAST = 3, 2
"""On their way at most; and how many are enough, so that the next goes with an acknowledgement."""


class Wanted(NamedTuple):
    """What a consumer attaches with. settings: JSON, "": whatever they are."""

    topic: str
    subscription: str
    start: Start
    durable: bool
    priority: int
    settings: str


class Attachment:
    """A Source. Any thread; steps take turns, and none waits. on_detached: called when the consumer is closed."""

    def __init__(
        self, link: Link, wanted: Wanted, consumer: Consumer, on_detached: Callable[[Attachment], object]
    ) -> None:
        self.consumer = Inlet(consumer)
        self.wait = link.wait
        self.wake_after = link.wake_after
        self._link, self._wanted, self._on_detached = link, wanted, on_detached
        self._events = Events()
        self._handle = 0  # as the server knows it, 0: it does not
        self._address: Address = ("", 0)
        self._fetches = 0  # on their way
        self._permits = 0  # given, messages have not come yet
        self._generation = 0
        self._next = -1  # behind the last message that came
        self._failing_since: float | None = None
        self._retry_s = RETRY_S
        self._is_over = False

    # ---- attaching ------------------------------------------------------------------------------------------

    def attach(self) -> Ack[None]:
        """The first time: it fails if the subscription does not take it."""
        done: Ack[None] = Ack()
        self._subscribe(done)
        return done

    def _subscribe(self, done: Ack[None] | None = None) -> None:
        handle, wanted = self._link.next_handle(), self._wanted
        start = wanted.start if wanted.durable or self._next < 0 else self._next
        request = protocol.Subscribe(
            handle, wanted.priority, wanted.durable, start, wanted.topic, wanted.subscription, self.consumer.name,
            wanted.settings,
        )  # fmt: skip

        def came(address: Address, outcome: Outcome) -> None:
            self._events.post(lambda: self._subscribed(handle, address, outcome, done))

        self._link.ask(wanted.topic, request, came)

    def _subscribed(self, handle: int, address: Address, outcome: Outcome, done: Ack[None] | None) -> None:
        if isinstance(outcome, ReplogError):
            if done is not None:
                done.fail(outcome)
            else:
                self._not_attached(outcome)
            return
        if self._is_over:
            self._link.send(address, protocol.Detach(handle), _ignore)
            return
        self._handle, self._address, self._fetches, self._generation = handle, address, 0, 0
        self._retry_s, self._failing_since = RETRY_S, None
        if done is not None:
            done.complete(None)
        if self._permits:
            self._send(protocol.Flow(handle, self._permits))
        self._fetch()

    def _not_attached(self, error: ReplogError) -> None:
        if self._is_over:
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not (is_passing(error) or error.retriable) or now - self._failing_since > self._link.timeout:
            self._end(error)
            return
        logger.info("topic %s, %s: not attached yet: %s", self._wanted.topic, self._wanted.subscription, error)
        self.wake_after(self._retry_s, lambda: self._events.post(self._subscribe_again))
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _subscribe_again(self) -> None:
        if not self._is_over:
            self._subscribe()

    def _lost(self, error: ReplogError) -> None:
        """What it had comes again; of a subscription that has ended with the connection, what comes is what follows."""
        logger.info("topic %s, %s: attached anew: %s", self._wanted.topic, self._wanted.subscription, error)
        self._handle = 0
        if self._wanted.durable:
            self._discard()
        self._subscribe_again()

    def _end(self, error: ReplogError) -> None:
        self._handle = 0
        self._is_over = True
        self.consumer.failed(error)

    # ---- messages -------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        while self._handle and self._fetches < FETCHES:
            self._fetch_by(protocol.Fetch(self._handle))

    def _fetch_by(self, request: protocol.Fetch | protocol.AcknowledgeAndFetch) -> None:
        self._fetches += 1
        handle = request.consumer

        def came(_: Address, outcome: Outcome) -> None:
            told: Ack[Delivered] = Ack()
            settle(told, outcome, decode_delivered)
            self._events.post(lambda: self._fetched(handle, told))

        self._link.send(self._address, request, came)

    def _fetched(self, handle: int, told: Ack[Delivered]) -> None:
        if handle != self._handle:
            return  # it was attached anew since
        self._fetches -= 1
        error = told.exception()
        if error is None:
            self._take(told.result())
            if self._fetches < FETCHES_LEAST:
                self._fetch()
        elif isinstance(error, ReplogError) and is_passing(error):
            self._lost(error)
        elif isinstance(error, ReplogError):
            self._end(error)

    def _take(self, delivered: Delivered) -> None:
        self._moved_to(delivered.generation)
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
        self.consumer.deliver(Delivery(batch, delivered.redelivered))

    def _moved_to(self, generation: int) -> None:
        if generation > self._generation:
            self._generation = generation
            self._discard()

    def _discard(self) -> None:
        self.consumer.forget_acks()
        self.consumer.discard()

    # ---- what a consumer calls ------------------------------------------------------------------------------

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
        """While it is not attached it is in vain: what is not acknowledged comes again."""

        def tell() -> None:
            noted, handle = take(), self._handle
            if noted is None or not handle:
                return
            if isinstance(noted, tuple):
                if self._fetches < FETCHES:
                    self._fetch_by(protocol.AcknowledgeAndFetch(handle, self._generation, *noted))
                else:
                    self._send(protocol.AcknowledgeRange(handle, self._generation, *noted))
                return
            for at in range(0, len(noted), OFFSETS_MAX):
                self._send(protocol.Acknowledge(handle, self._generation, noted[at : at + OFFSETS_MAX]))

        self._events.post(tell)

    def acknowledge_cumulative(self, consumer: int, end: int) -> Ack[None]:
        return self._ask(lambda handle: protocol.AcknowledgeCumulative(handle, self._generation, end), Done, _nothing)

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None) -> None:
        delay = -1 if delay_us is None else max(delay_us, 0)
        for at in range(0, len(offsets), OFFSETS_MAX):
            self._tell(lambda handle, part=offsets[at : at + OFFSETS_MAX]: protocol.Nack(handle, delay, part))  # type: ignore[misc]

    def redeliver(self, consumer: int) -> None:
        self._ask(protocol.Redeliver, Moved, _nothing)

    def seek(self, start: Start) -> Ack[int]:
        check_start(start)
        return self._ask(lambda handle: protocol.Seek(handle, start), Moved, lambda moved: moved.offset)

    def flush(self) -> Ack[None]:
        return self._ask(protocol.Flush, Done, _nothing)

    def detach(self, consumer: int) -> None:
        left = self._leave()
        if not in_callback() and _get_running_loop() is None:
            with suppress(ReplogError):  # its connection is lost, or too slow: it leaves with that
                self.wait(left, self._link.timeout)

    def abandon(self, consumer: int) -> None:
        with suppress(ReplogError):  # the client was closed
            self._link.reactor.call_soon(self._leave)

    def _leave(self) -> Ack[None]:
        """The Ack is done when the server has let it go."""
        left: Ack[None] = Ack()

        def gone(address: Address, outcome: Outcome) -> None:
            _ignore(address, outcome)
            left.complete(None)

        def leave() -> None:
            handle, self._handle = self._handle, 0
            self._is_over = True
            if handle:
                self._link.send(self._address, protocol.Detach(handle), gone)
            else:
                left.complete(None)

        self._events.post(leave)
        self._on_detached(self)
        return left

    # ---- requests -------------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        self._link.send(self._address, request, _ignore)

    def _tell(self, made: Callable[[int], Request]) -> None:
        """Without an answer; while it is not attached it is in vain: what is not acknowledged comes again."""

        def tell() -> None:
            if self._handle:
                self._send(made(self._handle))

        self._events.post(tell)

    def _ask(self, made: Callable[[int], Request], kind: type[Reply], result: Callable[..., T]) -> Ack[T]:
        """result: of the reply; called in turn with all other steps."""
        done: Ack[T] = Ack()

        def came(handle: int, outcome: Outcome) -> None:
            told: Ack[Reply] = Ack()
            settle(told, outcome, reads(kind))
            self._events.post(lambda: then(told, done, lambda reply: answered(handle, reply)))

        def answered(handle: int, reply: Reply) -> None:
            if isinstance(reply, Moved) and handle == self._handle:  # else it was attached anew since
                self._moved_to(reply.generation)
            done.complete(result(reply))

        def ask() -> None:
            handle = self._handle
            if handle:
                self._link.send(self._address, made(handle), lambda _, outcome: came(handle, outcome), FOREVER_S)
            elif self._is_over:
                done.fail(ClosedError(f"consumer {self.consumer.name} was closed"))
            else:
                done.fail(NotConnectedError(f"consumer {self.consumer.name} is not attached now: try again"))

        self._events.post(ask)
        return done


def _nothing(_: Reply) -> None:
    return None


def _ignore(_: Address, outcome: Outcome) -> None:
    if isinstance(outcome, ReplogError) and not is_passing(outcome):
        logger.warning("a request of a consumer failed: %s", outcome)
