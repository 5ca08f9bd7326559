"""Drives a dispatcher: brings it events, one at a time, and carries out the effects it answers with, in their order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import NamedTuple, Protocol

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError, TopicFencedError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime, TimerLike
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.dispatcher import Dispatcher
from pyreplog.topic.model.dispatch.effects import (
    ActiveConsumerChanged,
    DeadLetter,
    Deliver,
    Dirty,
    Effect,
    Locate,
    ReadEntries,
    WakeAt,
)
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.interfaces import ConsumerLike
from pyreplog.topic.model.topic_position import TopicPosition
from pyreplog.topic.owner.locator import LocatedEntries, Locator, offsets_in
from pyreplog.topic.owner.managed.managedledger import ManagedLedger

logger = logging.getLogger(__name__)


class Discard(NamedTuple):
    """These consumers drop what they have not handed out: it comes again, or not at all. sought: for a seek."""

    consumers: tuple[int, ...]
    sought: bool = False


Step = Callable[[int], Iterable[Effect | Discard]]
"""Something done with the dispatcher, at a time."""


class SubscriptionHost(Protocol):
    """What is done for consumers and with the cursor; called with no lock held, and must not wait."""

    def deliver(self, effect: Deliver) -> None: ...
    def became(self, effect: ActiveConsumerChanged) -> None: ...
    def discard(self, effect: Discard) -> None: ...
    def bury(self, effect: DeadLetter) -> None: ...
    def dirty(self) -> None: ...
    def fail(self, error: ReplogError) -> None: ...


class DispatchDriver:
    """Any thread. lock: of the cursor and the dispatcher, held for steps alone."""

    def __init__(
        self,
        name: str,
        managed: ManagedLedger,
        cursor: Cursor,
        dispatcher: Dispatcher,
        host: SubscriptionHost,
        runtime: Runtime,
        clock: Clock,
    ) -> None:
        self.lock = Lock()
        self._what = f"{managed.name}, {name}"
        self._managed, self._cursor, self._dispatcher = managed, cursor, dispatcher
        self._host, self._runtime, self._clock = host, runtime, clock
        self._effects: deque[Effect | Discard] = deque()
        self._events = EventQueue()
        self._wake: tuple[int, TimerLike] | None = None
        self._is_over = False
        self._era = 0  # of the cursor: what was acknowledged before a seek is not afterwards
        self._locator = Locator(self._what, managed, self._events, self._located)

    def do(self, step: Step) -> None:
        """What the step raises is raised here; its effects are carried out after those of earlier ones."""
        self._take(step)
        self._events.post(self._carry_out)

    def _take(self, step: Step) -> None:
        with self.lock:
            self._effects.extend(step(self._clock.monotonic_us()))

    def _carry_out(self) -> None:
        while self._effects:
            effect = self._effects.popleft()
            if self._is_over:
                continue
            if isinstance(effect, Deliver):
                self._host.deliver(effect)
            elif isinstance(effect, ReadEntries):
                self._read(effect)
            elif isinstance(effect, Dirty):
                self._host.dirty()
            elif isinstance(effect, WakeAt):
                self._wake_at(effect.at_us)
            elif isinstance(effect, Locate):
                self._locator.add(effect, self._era)
            elif isinstance(effect, ActiveConsumerChanged):
                self._host.became(effect)
            elif isinstance(effect, DeadLetter):
                self._host.bury(effect)
            else:
                self._host.discard(effect)

    # ---- reading --------------------------------------------------------------------------------------------

    def _read(self, read: ReadEntries) -> None:
        try:
            coming = self._managed.read(read.offset, bytes_max=read.bytes_max, end=read.end)
        except ReplogError as error:
            self._not_read(read, error)
            return
        if coming.done() and coming.exception() is None:  # mostly; whoever carries out effects goes on with these
            batch = coming.result()
            self._take(lambda now: self._dispatcher.entries(read.id, batch, now))
        else:
            coming.add_done_callback(lambda future: self._was_read(read, future))

    def _was_read(self, read: ReadEntries, future: AppendFuture[MessageBatch]) -> None:
        error = future.exception()
        if error is not None:
            self._not_read(read, error)
        else:
            batch = future.result()
            self.do(lambda now: self._dispatcher.entries(read.id, batch, now))

    def _not_read(self, read: ReadEntries, error: BaseException) -> None:
        if isinstance(error, TopicFencedError | ClosedError):
            self._host.fail(error)
            return
        if isinstance(error, TrimmedError):
            self.trimmed(self._managed.start)
        reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
        self.do(lambda now: self._dispatcher.read_failed(read.id, reason, now))

    def trimmed(self, start: TopicPosition) -> None:
        """Nothing below is left: a cursor that would have needed it moves on."""

        def trimmed(now_us: int) -> list[Effect]:
            moved: list[Effect] = []
            if self._cursor.mark.offset < start.offset:
                moved = self._dispatcher.advance(start, now_us)
            return moved + self._dispatcher.trimmed(start.offset, now_us)

        self.do(trimmed)

    def seek(self, total: TopicPosition, consumers: Mapping[int, ConsumerLike]) -> None:
        """See `Dispatcher.seek`. consumers: all that there are. TrimmedError: its messages went in this moment."""

        def seek(now_us: int) -> list[Effect | Discard]:
            start = self._managed.start.offset
            if total.offset < start:
                raise TrimmedError(f"{self._what}: messages are kept from offset {start} on")
            self._era += 1
            era = self._cursor.begin_era()
            for there in consumers.values():
                there.forget_acks(era)
            return [Discard(tuple(consumers), sought=True), *self._dispatcher.seek(total, now_us)]

        self.do(seek)

    def _located(self, found: LocatedEntries) -> None:
        def acknowledge(now_us: int) -> list[Effect]:
            if found.era != self._era:
                return []
            self._cursor.deliver(found.batch)
            if len(found.starts) == 1:
                start, end = int(found.starts[0]), int(found.ends[0])
                return self._dispatcher.acknowledge_range(found.consumer, start, end, now_us)
            return self._dispatcher.acknowledge(found.consumer, offsets_in(found.starts, found.ends), now_us)

        self.do(acknowledge)

    def settled(self) -> AppendFuture[None]:
        """Done when all that was acknowledged before is known to the cursor, and to the host."""
        self.do(lambda _: ())  # behind the steps of threads that are at one, and what follows from them
        return self._locator.settled()

    # ---- time -----------------------------------------------------------------------------------------------

    def _wake_at(self, at_us: int) -> None:
        if self._wake is not None:
            if self._wake[0] <= at_us:
                return
            self._wake[1].cancel()
        timer = self._runtime.wake_after(max(at_us - self._clock.monotonic_us(), 0) / 1e6, partial(self._woken, at_us))
        self._wake = None if timer is None else (at_us, timer)

    def _woken(self, at_us: int) -> None:
        """Its time has come, though the clock that it was set by may be a little behind the timer's."""
        self._events.post(self._wake_is_over)
        self.do(lambda now: self._dispatcher.woken(max(now, at_us)))

    def clock_was_set(self) -> None:
        """What waits for a time of day may be due earlier than the timer is, or later."""
        self.do(lambda now: self._dispatcher.woken(now))

    def _wake_is_over(self) -> None:
        self._wake = None

    def end(self) -> None:
        """Nothing follows from steps any more."""
        self._is_over = True
        wake, self._wake = self._wake, None
        if wake is not None:
            wake[1].cancel()
