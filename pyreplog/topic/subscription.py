"""One subscription of a topic that this process owns: its cursor, who gets what, and the consumers. Drives the
dispatcher: brings it events, one at a time, and carries out the effects it answers with."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.messages import MessageBatch
from pyreplog.ack import Ack
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError, TopicFencedError, TrimmedError
from pyreplog.ledger.driver import Surroundings, Timer
from pyreplog.topic.config import SubscriptionConfig
from pyreplog.topic.consumer import Consumer, Delivery
from pyreplog.topic.cursor import Cursor
from pyreplog.topic.cursorslot import CursorSlot
from pyreplog.topic.dispatch.dispatcher import Dispatcher
from pyreplog.topic.dispatch.effects import Became, DeadLetter, Deliver, Dirty, Effect, Locate, Read, Wake
from pyreplog.topic.managedledger import ManagedLedger
from pyreplog.topic.place import EntryPlace, Total
from pyreplog.topic.positions import Start, done_ack, position, then
from pyreplog.topic.storedcursor import StoredCursor
from pyreplog.topic.subscriptioncounts import Counts
from pyreplog.topic.turns import Events

logger = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[int], list[Effect]]
"""Something done with the dispatcher, at a time."""

NOBODY = -1
"""Acknowledges for no consumer."""


class Discard(NamedTuple):
    """These consumers drop what they have not handed out: it comes again, or not at all."""

    consumers: tuple[int, ...]


class Subscription:
    """Made by its topic; what a `Consumer` calls its source. Any thread may call anything; no call waits.

    publish_dead: publishes messages that were delivered too often elsewhere. on_unused: called when the last consumer
    has left.
    """

    def __init__(
        self,
        name: str,
        managed: ManagedLedger,
        cursor: Cursor,
        settings: SubscriptionConfig,
        around: Surroundings,
        clock: Clock,
        *,
        publish_dead: Callable[[Subscription, DeadLetter], Ack[Any]],
        on_unused: Callable[[Subscription], object],
    ) -> None:
        self.name, self.managed, self.cursor = name, managed, cursor
        self.wait = around.wait
        self.wake_after = around.wake_after
        self.slot: CursorSlot | None = None
        """Where its state is stored; None: it is not."""
        self.properties: Mapping[str, str] = {}
        self.created_us = self.used_us = clock.now_us()
        self.counts = Counts()
        self._clock, self._publish_dead, self._on_unused = clock, publish_dead, on_unused
        self._dispatcher = Dispatcher(
            cursor, settings, topic=managed.name, start=managed.start.offset, end=managed.end.offset
        )
        self._lock = threading.Lock()  # of cursor and dispatcher
        self.source = StoredCursor(cursor, self._lock, self.fail)
        self._oldest = (-1, 0)  # offset and append time of the message at the mark
        self._effects: deque[Effect | Discard] = deque()
        self._events = Events()
        self._consumers: dict[int, Consumer] = {}
        self._next_id = 0
        self._wake: tuple[int, Timer] | None = None
        self._failed: ReplogError | None = None

    # ---- steps ----------------------------------------------------------------------------------------------

    def _do(self, step: Step, *first: Discard) -> None:
        """What the step raises is raised here; its effects are carried out after those of earlier ones."""
        with self._lock:
            self._effects.extend(first)
            self._effects.extend(step(self._clock.now_us()))
        self._events.post(self._carry_out)

    def _carry_out(self) -> None:
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Deliver):
                self._deliver(effect)
            elif isinstance(effect, Read):
                self._read(effect)
            elif isinstance(effect, Dirty):
                if self.slot is not None:
                    self.slot.dirty()
            elif isinstance(effect, Wake):
                self._wake_at(effect.at_us)
            elif isinstance(effect, Locate):
                self._locate(effect)
            elif isinstance(effect, Became):
                self._became(effect)
            elif isinstance(effect, DeadLetter):
                self._bury(effect)
            else:
                for consumer in effect.consumers:
                    self._tell(consumer, Consumer.discard)

    def _tell(self, consumer: int, call: Callable[[Consumer], None]) -> None:
        there = self._consumers.get(consumer)
        if there is not None:
            call(there)

    def _deliver(self, effect: Deliver) -> None:
        self.counts.deliver(effect.batch, effect.redelivered, self._clock.now_us())
        self._tell(effect.consumer, lambda there: there.deliver(Delivery(effect.batch, effect.redelivered)))

    def _became(self, effect: Became) -> None:
        if not effect.active:
            self._tell(effect.consumer, Consumer.discard)
        self._tell(effect.consumer, lambda there: there.became(effect.active))

    def _read(self, read: Read) -> None:
        try:
            coming = self.managed.read(read.offset, bytes_max=read.bytes_max, end=read.end)
        except ReplogError as error:
            self._not_read(read, error)
        else:
            coming.add_done_callback(lambda ack: self._was_read(read, ack))

    def _was_read(self, read: Read, ack: Ack[MessageBatch]) -> None:
        error = ack.exception()
        if error is not None:
            self._not_read(read, error)
        else:
            batch = ack.result()
            self._do(lambda now: self._dispatcher.entries(read.id, batch, now))

    def _not_read(self, read: Read, error: BaseException) -> None:
        if isinstance(error, TopicFencedError | ClosedError):
            self.fail(error)
            return
        if isinstance(error, TrimmedError):
            self.trimmed(self.managed.start)
        reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
        self._do(lambda now: self._dispatcher.read_failed(read.id, reason, now))

    def _wake_at(self, at_us: int) -> None:
        if self._wake is not None:
            if self._wake[0] <= at_us:
                return
            self._wake[1].cancel()
        timer = self.wake_after(max(at_us - self._clock.now_us(), 0) / 1e6, self._woken)
        self._wake = None if timer is None else (at_us, timer)

    def _woken(self) -> None:
        self._events.post(self._wake_is_over)
        self._do(lambda now: self._dispatcher.woken(now))

    def _wake_is_over(self) -> None:
        self._wake = None

    def _locate(self, effect: Locate) -> None:
        """Entries that the cursor does not know, one after the other: whoever acknowledges what was never delivered
        here waits a little longer."""
        for start, end in effect.ranges:
            self.managed.locate(start).add_done_callback(
                lambda ack, start=start, end=end: self._located(effect.consumer, start, end, ack)  # type: ignore[misc]
            )

    def _located(self, consumer: int, start: int, end: int, ack: Ack[EntryPlace]) -> None:
        if ack.exception() is not None:
            logger.info("%s, %s: %d is not acknowledged: %s", self.managed.name, self.name, start, ack.exception())
            return
        place = ack.result()

        def acknowledge(now_us: int) -> list[Effect]:
            self.cursor.note(place)
            return self._dispatcher.acknowledge_range(consumer, start, end, now_us)

        self._do(acknowledge)

    def _bury(self, effect: DeadLetter) -> None:
        offsets = effect.batch.offset

        def buried(ack: Ack[Any]) -> None:
            error = ack.exception()
            if error is None:
                self.acknowledge(NOBODY, offsets)
                return
            logger.warning("%s, %s: dead letters stay here: %s", self.managed.name, self.name, error)
            self._do(lambda now: self._dispatcher.dead_letters_failed(offsets, now))

        self._publish_dead(self, effect).add_done_callback(buried)

    # ---- consumers ------------------------------------------------------------------------------------------

    @property
    def settings(self) -> SubscriptionConfig:
        return self._dispatcher.settings

    @property
    def consumers(self) -> int:
        """How many there are."""
        return len(self._consumers)

    def attach(self, consumer: Consumer, settings: SubscriptionConfig | None, *, priority: int = 0) -> int:
        """Take a consumer in; its number. settings: what it wants, None: whatever they are.

        Errors: SubscriptionBusyError, an exclusive one has a consumer, or others have other settings.
        """
        with self._lock:
            self._next_id = number = self._next_id + 1

        def attach(now_us: int) -> list[Effect]:
            if self._failed is not None:
                raise self._failed
            if settings is not None and settings != self._dispatcher.settings:
                self._dispatcher.configure(settings)
            effects = self._dispatcher.grew(self.managed.end.offset, now_us)
            effects += self._dispatcher.attach(number, consumer.name, now_us, priority=priority)
            consumer.became(self._dispatcher.settings.type != "failover")
            self._consumers[number] = consumer
            self.used_us = now_us
            return effects

        self._do(attach)
        return number

    def detach(self, consumer: int) -> None:
        """It is gone: what it had goes to others."""

        def detach(now_us: int) -> list[Effect]:
            self._consumers.pop(consumer, None)
            self.used_us = now_us
            return self._dispatcher.detach(consumer, now_us)

        self._do(detach)
        if not self._consumers:
            self._on_unused(self)

    def flow(self, consumer: int, messages: int) -> None:
        if messages > 0:
            self._do(lambda now: self._dispatcher.flow(consumer, messages, now))

    # ---- acknowledgements -----------------------------------------------------------------------------------

    def acknowledge(self, consumer: int, offsets: NDArray[np.int64]) -> None:
        self._do(lambda now: self._dispatcher.acknowledge(consumer, offsets, now))

    def acknowledge_range(self, consumer: int, start: int, end: int) -> None:
        self._do(lambda now: self._dispatcher.acknowledge_range(consumer, start, end, now))

    def acknowledge_cumulative(self, consumer: int, end: int) -> Ack[None]:
        return self._at_place(end, lambda place, now: self._dispatcher.cumulative(consumer, place, end, now))

    def skip_to(self, end: int) -> Ack[None]:
        """Acknowledge everything below `end` for whoever is connected: it expired, or nobody wants it."""

        def skip(place: EntryPlace, now_us: int) -> list[Effect]:
            before = self.cursor.mark.offset
            if end <= before:
                return []
            self.cursor.cumulative(place, end, self.managed.end.offset, now_us)
            return self._dispatcher.moved(before, now_us)

        return self._at_place(end, skip) if end > self.cursor.mark.offset else done_ack()

    def skip(self, messages: int) -> Ack[None]:
        """Acknowledge the next `messages` that are not yet."""
        end = self.managed.end.offset
        return self.skip_to(self.look(lambda cursor, _: cursor.offset_behind(messages, end)))

    def _at_place(self, to: int, step: Callable[[EntryPlace, int], list[Effect]]) -> Ack[None]:
        """Do it with the place that a cumulative acknowledgement up to `to` needs."""
        done: Ack[None] = Ack()
        with self._lock:
            start = self.cursor.cumulative_start(to)
            known = self.cursor.find(start)

        def at(place: EntryPlace) -> None:
            self._do(lambda now: step(place, now))
            done.complete(None)

        if known is not None:
            _attempt(at, known, done)
        else:
            then(self.managed.locate(min(start, self.managed.end.offset - 1)), done, at)
        return done

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None) -> None:
        self._do(lambda now: self._dispatcher.nack(consumer, offsets, now, delay_us=delay_us))

    def redeliver(self, consumer: int) -> None:
        self._do(lambda now: self._dispatcher.redeliver_unacked(consumer, now), Discard((consumer,)))

    def flush(self) -> Ack[None]:
        return done_ack() if self.slot is None else self.slot.flush()

    # ---- positions ------------------------------------------------------------------------------------------

    def seek(self, start: Start) -> Ack[int]:
        """See `Consumer.seek`. Durable when the Ack is done."""
        done: Ack[int] = Ack()

        def seek(total: Total) -> None:
            with self._lock:
                consumers = tuple(self._consumers)
            self._do(lambda now: self._dispatcher.seek(total, now), Discard(consumers))
            then(self.flush(), done, lambda _: done.complete(total.offset))

        then(position(self.managed, start), done, seek)
        return done

    def settle_in(self) -> None:
        """It was stored for a topic that may have other messages now: none below its start, none beyond its end."""
        start, end = self.managed.start, self.managed.end
        if self.cursor.mark.offset > end.offset:
            logger.error(
                "%s, %s: is at %d, and the topic ends at %d", self.managed.name, self.name, self.cursor.mark.offset,
                end.offset,
            )  # fmt: skip
            self._do(lambda now: self._dispatcher.seek(end, now))
        elif self.cursor.mark.offset < start.offset:
            self.trimmed(start)

    def grew(self, end: int) -> None:
        """Messages up to `end` are confirmed."""
        if self._consumers:
            self._do(lambda now: self._dispatcher.grew(end, now))

    def trimmed(self, start: Total) -> None:
        """Nothing below is left: a cursor that would have needed it moves on."""

        def trimmed(now_us: int) -> list[Effect]:
            if self.cursor.mark.offset >= start.offset:
                return self._dispatcher.trimmed(start.offset, now_us)
            self.cursor.advance(start, now_us)
            return [Dirty(), *self._dispatcher.trimmed(start.offset, now_us)]

        self._do(trimmed)

    # ---- how it is ------------------------------------------------------------------------------------------

    def look(self, call: Callable[[Cursor, Dispatcher], T]) -> T:
        """Its result, while neither changes."""
        with self._lock:
            return call(self.cursor, self._dispatcher)

    def durable_mark(self) -> int:
        """What is below it is not needed any more, whatever happens."""
        return self.look(lambda cursor, _: cursor.durable_mark.offset)

    def oldest_us(self) -> int | None:
        """Append time of the first message that is not acknowledged; None: there is none. May read an entry, and wait
        for it. Errors: those of `ManagedLedger.read`."""
        mark = self.cursor.mark.offset
        if mark >= self.managed.end.offset:
            return None
        if self._oldest[0] != mark:
            batch = self.wait(self.managed.read(mark, bytes_max=1))
            self._oldest = (mark, int(batch.publish_time[0]))
        return self._oldest[1]

    # ---- the end --------------------------------------------------------------------------------------------

    def fail(self, error: ReplogError) -> None:
        """Nothing is delivered or stored any more: somebody else has the topic, or it is gone."""
        with self._lock:
            self._failed = self._failed or error
            consumers = list(self._consumers.values())
            wake, self._wake = self._wake, None
        if wake is not None:
            wake[1].cancel()
        for consumer in consumers:
            consumer.failed(error)

    def store(self) -> Ack[None]:
        """Let the consumers go, and store what they have acknowledged; for who closes the topic."""
        with self._lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.close()
        return done_ack() if self.slot is None else self.slot.store_clean()

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """It is not used any more. deleted: it does not exist any more."""
        self.fail(error)
        if self.slot is not None:
            self.slot.close(deleted=deleted)


def _attempt(call: Callable[[T], object], argument: T, done: Ack[Any]) -> None:
    """What it raises is the error of `done`."""
    try:
        call(argument)
    except ReplogError as error:
        done.fail(error)
