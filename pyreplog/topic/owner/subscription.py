"""One subscription of a topic that this process owns: its cursor, its consumers, and the delivery of its messages."""

from __future__ import annotations

import logging
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError, SubscriptionBusyError, TopicFencedError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime, TimerLike
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.model.config import SubscriptionConfig
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
from pyreplog.topic.model.interfaces import DeliveredMessages, DeliveryTarget, Noted
from pyreplog.topic.model.positions import EntryPosition, Start, TopicPosition, done_ack, position, then
from pyreplog.topic.owner.cursors.slot import CursorSlot
from pyreplog.topic.owner.delayed_count import DelayedCount
from pyreplog.topic.owner.locator import LocatedEntries, Locator, offsets_in
from pyreplog.topic.owner.managed.managedledger import ManagedLedger


@dataclass
class ConsumerCounters:
    """Of one consumer, since it was attached. address: HOST:PORT of a remote one. *_us: time of day, 0: never."""

    address: str
    connected_us: int
    delivered_bytes: int = 0
    redelivered: int = 0
    last_delivered_us: int = 0
    last_acked_us: int = 0

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us


@dataclass
class SubscriptionCounters:
    """Messages, and bytes of their values; persists: stored records of the cursor; *_us: when last, 0: never."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    expired: int = 0
    evicted: int = 0
    dead_lettered: int = 0
    persists: int = 0
    last_delivered_us: int = 0
    last_flow_us: int = 0
    last_mark_us: int = 0
    last_expired_us: int = 0

    begun_at: int = 0
    """Messages that were acknowledged when the topic was opened, those that are trimmed included."""

    def acked(self, cursor: Cursor) -> int:
        """Messages acknowledged since; less after a seek back."""
        return max(cursor.mark.offset + cursor.acks.acked_messages - self.begun_at, 0)

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered += len(batch)
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us


logger = logging.getLogger(__name__)

T = TypeVar("T")
NOBODY = -1
"""Acknowledges for no consumer."""


class _Discard(NamedTuple):
    """An effect: these consumers drop the messages that they have not handed out. sought: for a seek."""

    consumers: tuple[int, ...]
    sought: bool = False


class _Attachment(NamedTuple):
    """A consumer, held weakly, and the counters of its messages."""

    reference: weakref.ref[DeliveryTarget]
    counts: ConsumerCounters


Step = Callable[[int], Iterable[Effect | _Discard]]
"""A change of the dispatcher and the cursor; gets the time, returns effects."""


class Subscription:
    """The source of a `Consumer`; made by its topic. Any thread may call anything; no call waits.

    It drives its dispatcher: brings it events, one at a time, as steps under one lock, and carries out the effects in
    their order, without the lock. Consumers are held weakly: who attaches one keeps it. It is a `CursorSource`: the
    cursor log takes records from it.

    publish_dead: publishes messages that were delivered too often elsewhere. on_change: called when anything is
    acknowledged, and when that is stored; on_over: when one that is not durable ends, with its last consumer.
    """

    timeout = None

    def __init__(
        self,
        name: str,
        managed: ManagedLedger,
        cursor: Cursor,
        settings: SubscriptionConfig,
        runtime: Runtime,
        clock: Clock,
        *,
        publish_dead: Callable[[Subscription, DeadLetter], AppendFuture[Any]],
        on_change: Callable[[], object],
        on_over: Callable[[Subscription], object],
    ) -> None:
        self.name, self.managed, self.cursor = name, managed, cursor
        self.wait = runtime.wait
        self.wake_after = runtime.wake_after
        self.events = EventQueue()
        """Effects are carried out as events of this queue, in turn."""
        self._work = runtime.work
        self._label = f"{managed.name}, {name}"
        self.slot: CursorSlot | None = None
        """Where its state is stored; None: it is not."""
        self.stored_settings: SubscriptionConfig | None = None
        """Its settings in the metadata store; None: it has none there, or they are not known."""
        self.properties: Mapping[str, str] = {}
        self.created_us = clock.now_us()
        self.used_us = clock.monotonic_us()
        """When it last had a consumer, or this process took it over: on the clock that nobody sets."""
        self.first_era = 1 + secrets.randbits(61)
        """Its era before the first seek: that of who created it."""
        self.counts = SubscriptionCounters(begun_at=cursor.mark.offset + cursor.acks.acked_messages)
        self._mark = cursor.mark.offset
        self._clock, self._publish_dead, self._on_change, self._on_over = clock, publish_dead, on_change, on_over
        self._dispatcher = Dispatcher(
            cursor, settings, topic=managed.name, start=managed.start.offset, end=managed.end.offset,
            wall_us=clock.now_us,
        )  # fmt: skip
        self._lock = Lock()  # of the cursor and the dispatcher, held for steps alone
        self._effects: deque[Effect | _Discard] = deque()
        self._locator = Locator(self._label, managed, self.events, self._located)
        self._wake: tuple[int, TimerLike] | None = None
        self._era = 0  # counts seeks: what was acknowledged before one is not afterwards
        self._is_stopped = False
        self._delayed = DelayedCount(managed, cursor, self._lock, runtime.wait)
        self._oldest = (-1, 0)  # offset and append time of the message at the mark
        self._oldest_due = (-1, 0)  # of the first that is due, and since when it is
        self._consumers: dict[int, _Attachment] = {}
        self._next_id = 0
        self._failed: ReplogError | None = None

    # ---- steps and effects ----------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        """Take a step. Its errors are raised here; its effects are carried out behind those of earlier steps."""
        self._take(step)
        self.events.post(self._carry_out)

    def _take(self, step: Step) -> None:
        with self._lock:
            self._effects.extend(step(self._clock.monotonic_us()))

    def _carry_out(self) -> None:
        while self._effects:
            effect = self._effects.popleft()
            if self._is_stopped:
                continue
            if isinstance(effect, Deliver):
                self._deliver(effect)
            elif isinstance(effect, ReadEntries):
                self._read(effect)
            elif isinstance(effect, Dirty):
                self._note_dirty()
            elif isinstance(effect, WakeAt):
                self._wake_at(effect.at_us)
            elif isinstance(effect, Locate):
                self._locator.add(effect, self._era)
            elif isinstance(effect, ActiveConsumerChanged):
                self._tell_active(effect)
            elif isinstance(effect, DeadLetter):
                self._publish_dead_letters(effect)
            else:
                self._discard(effect)

    def _deliver(self, effect: Deliver) -> None:
        now_us = self._clock.now_us()
        self.counts.deliver(effect.batch, effect.redelivered, now_us)
        attachment = self._consumers.get(effect.consumer)
        if attachment is None:
            return
        consumer = attachment.reference()
        if consumer is not None:  # else it comes again to others when it is detached, which its finalizer asks for
            attachment.counts.deliver(effect.batch, effect.redelivered, now_us)
            consumer.deliver(DeliveredMessages(effect.batch, effect.redelivered))

    def _tell(self, number: int, call: Callable[[DeliveryTarget], None]) -> None:
        attachment = self._consumers.get(number)
        consumer = None if attachment is None else attachment.reference()
        if consumer is not None:
            call(consumer)

    def _discard(self, effect: _Discard) -> None:
        for number in effect.consumers:
            self._tell(number, lambda consumer: consumer.discard(sought=effect.sought))

    def _tell_active(self, effect: ActiveConsumerChanged) -> None:
        if not effect.active:
            self._tell(effect.consumer, lambda consumer: consumer.discard())
        self._tell(effect.consumer, lambda consumer: consumer.became(effect.active))

    def _note_dirty(self) -> None:
        mark = self.cursor.acks.mark_offset
        if mark != self._mark:
            self._mark, self.counts.last_mark_us = mark, self._clock.now_us()
            if self.slot is not None:
                self.slot.moved_us = self.counts.last_mark_us
        if self.slot is not None:
            self.slot.dirty()
        self._on_change()

    def _publish_dead_letters(self, effect: DeadLetter) -> None:
        offsets = effect.batch.offset

        def published(future: AppendFuture[Any]) -> None:
            error = future.exception()
            if error is None:
                self.acknowledge(NOBODY, offsets)
                self.counts.dead_lettered += len(offsets)  # a reader of the count finds them acknowledged
                return
            logger.warning("%s: dead letters stay here: %s", self._label, error)
            self._do(lambda now: self._dispatcher.dead_letters_failed(offsets, now))

        self._publish_dead(self, effect).add_done_callback(published)

    # ---- reading --------------------------------------------------------------------------------------------

    def grew(self) -> None:
        """Note that the topic's confirmed end moved; called by its `ManagedLedger`."""
        if self._consumers:  # the first one will be told
            self._do(lambda now: self._dispatcher.grew(self.managed.end.offset, now))

    def _read(self, read: ReadEntries) -> None:
        try:
            answer = self.managed.read(read.offset, bytes_max=read.bytes_max, end=read.end)
        except ReplogError as error:
            self._not_read(read, error)
            return
        if answer.done() and answer.exception() is None:  # mostly; its effects are carried out in this same event
            batch = answer.result()
            self._take(lambda now: self._dispatcher.entries(read.id, batch, now))
        else:
            answer.add_done_callback(lambda _: self._was_read(read, answer))

    def _was_read(self, read: ReadEntries, answer: AppendFuture[MessageBatch]) -> None:
        error = answer.exception()
        if error is not None:
            self._not_read(read, error)
        else:
            batch = answer.result()
            self._do(lambda now: self._dispatcher.entries(read.id, batch, now))

    def _not_read(self, read: ReadEntries, error: BaseException) -> None:
        if isinstance(error, TopicFencedError | ClosedError):
            self.fail(error)
            return
        if isinstance(error, TrimmedError):
            self.trimmed(self.managed.start)
        reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
        self._do(lambda now: self._dispatcher.read_failed(read.id, reason, now))

    def trimmed(self, start: TopicPosition) -> None:
        """Nothing below is left: a cursor that would have needed it moves on."""

        def trimmed(now_us: int) -> list[Effect]:
            moved: list[Effect] = []
            if self.cursor.mark.offset < start.offset:
                moved = self._dispatcher.advance(start, now_us)
            return moved + self._dispatcher.trimmed(start.offset, now_us)

        self._do(trimmed)

    # ---- time -----------------------------------------------------------------------------------------------

    def _wake_at(self, at_us: int) -> None:
        if self._wake is not None:
            if self._wake[0] <= at_us:
                return
            self._wake[1].cancel()
        seconds = max(at_us - self._clock.monotonic_us(), 0) / 1e6
        timer = self.wake_after(seconds, partial(self._woken, at_us))
        self._wake = None if timer is None else (at_us, timer)

    def _woken(self, at_us: int) -> None:
        """The timer fired; the clock that it was set by may be a little behind."""
        self.events.post(self._wake_is_over)
        self._do(lambda now: self._dispatcher.woken(max(now, at_us)))

    def _wake_is_over(self) -> None:
        self._wake = None

    def clock_was_set(self) -> None:
        """Note that the time of day jumped: delayed messages may be due earlier than the timer, or later."""
        if self._consumers:  # for nobody nothing is due
            self._do(lambda now: self._dispatcher.woken(now))

    # ---- consumers ------------------------------------------------------------------------------------------

    @property
    def settings(self) -> SubscriptionConfig:
        return self._dispatcher.settings

    def configure(self, settings: SubscriptionConfig) -> None:
        """Change its settings, here alone. SubscriptionBusyError: it has consumers."""

        def configure(_: int) -> list[Effect]:
            self._dispatcher.configure(settings)
            return []

        self._do(configure)

    @property
    def consumers(self) -> int:
        """How many are attached."""
        return len(self._consumers)

    def attached(self) -> list[DeliveryTarget]:
        """The consumers that are attached, without those that were forgotten."""
        with self._lock:
            references = [attachment.reference for attachment in self._consumers.values()]
        return [consumer for reference in references if (consumer := reference()) is not None]

    @property
    def is_over(self) -> bool:
        """Whether it takes no consumers any more."""
        return self._failed is not None

    def attach(
        self, consumer: DeliveryTarget, settings: SubscriptionConfig | None, *, priority: int = 0, address: str = ""
    ) -> int:
        """Attach a consumer; returns its number. settings: those that it expects, None: any. address: HOST:PORT of a
        remote one, for statistics.

        Errors: SubscriptionBusyError, an exclusive one has a consumer, or the settings are other ones.
        """
        with self._lock:
            self._next_id = number = self._next_id + 1

        def attach(now_us: int) -> list[Effect]:
            if self._failed is not None:
                raise self._failed
            if settings is not None and settings != self._dispatcher.settings:
                raise SubscriptionBusyError(self.managed.name, f"subscription {self.name} has other settings")
            effects = self._dispatcher.attach(number, consumer.name, now_us, priority=priority)
            consumer.became(self._dispatcher.settings.type != "failover")
            counts = ConsumerCounters(address, self._clock.now_us())
            self._consumers[number] = _Attachment(weakref.ref(consumer), counts)  # from now on `grew` tells the end
            self.used_us = now_us
            return effects + self._dispatcher.grew(self.managed.end.offset, now_us)

        self._do(attach)
        return number

    def detach(self, consumer: int) -> None:
        """Detach a consumer: others get all that it has not acknowledged."""

        def detach(now_us: int) -> list[Effect]:
            self._consumers.pop(consumer, None)
            self.used_us = now_us
            if not self._consumers and not self.cursor.durable:
                self._failed = self._failed or ClosedError(f"subscription {self.name} ended with its last consumer")
            return self._dispatcher.detach(consumer, now_us)

        self._do(detach)
        if self.is_over and not self.cursor.durable:
            self._stop()
            self._on_over(self)

    def abandon(self, consumer: int) -> None:
        self._work(lambda: self.detach(consumer))

    def flow(self, consumer: int, messages: int) -> None:
        if messages > 0:
            self.counts.last_flow_us = self._clock.now_us()
            self._do(lambda now: self._dispatcher.flow(consumer, messages, now))

    # ---- acknowledgements -----------------------------------------------------------------------------------

    def acknowledge(self, consumer: int, offsets: NDArray[np.int64]) -> None:
        self._note_acknowledging(consumer)
        self._do(lambda now: self._dispatcher.acknowledge(consumer, offsets, now))

    def acknowledge_range(self, consumer: int, start: int, end: int) -> None:
        self._note_acknowledging(consumer)
        self._do(lambda now: self._dispatcher.acknowledge_range(consumer, start, end, now))

    def acknowledge_noted(self, consumer: int, take: Callable[[], Noted | None]) -> None:
        def acknowledge(now_us: int) -> list[Effect]:
            noted = take()
            if noted is None:
                return []
            self._note_acknowledging(consumer)
            if isinstance(noted, tuple):
                return self._dispatcher.acknowledge_range(consumer, *noted, now_us)
            return self._dispatcher.acknowledge(consumer, noted, now_us)

        self._do(acknowledge)

    def _note_acknowledging(self, consumer: int) -> None:
        attachment = self._consumers.get(consumer)
        if attachment is not None:
            attachment.counts.last_acked_us = self._clock.now_us()

    def consumer_counts(self, consumer: int) -> ConsumerCounters:
        """Counters of a consumer's messages; of one that has gone, zeros."""
        attachment = self._consumers.get(consumer)
        return ConsumerCounters("", 0) if attachment is None else attachment.counts

    @property
    def era(self) -> int:
        """A random number from its beginning, or from a seek, up to the next seek, whoever owns it: what is
        acknowledged in one era does not count in another. In a step it does not change."""
        return self.cursor.era or self.first_era

    @property
    def known_end(self) -> int:
        """Messages below it can be acknowledged. For steps."""
        return self._dispatcher.end

    def acknowledge_again(
        self, consumer: int, end: int, ranges: NDArray[np.int64], if_: Callable[[], bool]
    ) -> AppendFuture[None]:
        """All below `end`, and the rows of `ranges`, from and up to, were acknowledged once, maybe to an owner that did
        not store it. if_: asked in the step; False: nothing is done. Done when the cursor knows them."""
        done: AppendFuture[None] = AppendFuture()

        def acknowledge(now_us: int) -> list[Effect]:
            effects: list[Effect] = []
            if if_():
                lengths = ranges[:, 1] - ranges[:, 0]
                if len(alone := ranges[lengths == 1, 0]):
                    effects += self._dispatcher.acknowledge(consumer, alone, now_us)
                for start, stop in ranges[lengths > 1].tolist():
                    effects += self._dispatcher.acknowledge_range(consumer, start, stop, now_us)
            return effects

        def is_ahead() -> bool:
            return if_() and self.cursor.mark.offset < end

        self._do(acknowledge)
        if end > self.cursor.mark.offset and self.settings.type not in ("shared", "key_shared"):
            then(self.acknowledge_cumulative(consumer, end, if_=is_ahead), done, lambda _: self._settle(done))
        else:
            self._settle(done)
        return done

    def _located(self, located: LocatedEntries) -> None:
        """Acknowledge messages of entries that never went out, and that the cursor gets to know now."""

        def acknowledge(now_us: int) -> list[Effect]:
            if located.era != self._era:
                return []
            self.cursor.deliver(located.batch)
            if len(located.starts) == 1:
                start, end = int(located.starts[0]), int(located.ends[0])
                return self._dispatcher.acknowledge_range(located.consumer, start, end, now_us)
            return self._dispatcher.acknowledge(located.consumer, offsets_in(located.starts, located.ends), now_us)

        self._do(acknowledge)

    def _settled(self) -> AppendFuture[None]:
        """Done when all that was acknowledged before is known to the cursor, and to its slot."""
        self._do(lambda _: ())  # behind the steps of threads that are at one, and what follows from them
        return self._locator.settled()

    def _settle(self, done: AppendFuture[None]) -> None:
        then(self._settled(), done, done.complete)

    def acknowledge_cumulative(
        self, consumer: int, end: int, *, if_: Callable[[], bool] = lambda: True
    ) -> AppendFuture[None]:
        """if_: asked in the step; False: nothing is done."""
        self._note_acknowledging(consumer)
        return self._at_place(
            end, lambda place, now: self._dispatcher.cumulative(consumer, place, end, now) if if_() else []
        )

    def skip_to(self, end: int) -> AppendFuture[None]:
        """Acknowledge everything below `end`, whichever consumer has it: it expired, or is to be skipped."""

        def skip(place: EntryPosition, now_us: int) -> list[Effect]:
            before = self.cursor.mark.offset
            if end <= before:
                return []
            self.cursor.cumulative(place, end, self.managed.end.offset, now_us)
            return self._dispatcher.moved(before, now_us)

        return self._at_place(end, skip) if end > self.cursor.mark.offset else done_ack()

    def skip(self, messages: int) -> AppendFuture[None]:
        """Acknowledge the next `messages` that are not yet."""
        end = self.managed.end.offset
        return self.skip_to(self.look(lambda cursor, _: cursor.offset_behind(messages, end)))

    def _at_place(self, to: int, step: Callable[[EntryPosition, int], list[Effect]]) -> AppendFuture[None]:
        """Do it with the place that a cumulative acknowledgement up to `to` needs."""
        done: AppendFuture[None] = AppendFuture()
        nowhere = EntryPosition(-1, -1, to, 0, 0, 0, 0)

        def attempt(place: EntryPosition | None) -> None:
            lacking: int | None = None

            def once(now_us: int) -> list[Effect]:
                nonlocal lacking
                start, end = self.cursor.cumulative_start(to), self.managed.end.offset  # others acknowledge meanwhile
                known = place if place is not None and place.first <= start <= place.end else self.cursor.find(start)
                if known is None and self.cursor.mark.offset < to <= end:
                    lacking = min(start, end - 1)
                    return []
                return step(known or nowhere, now_us)

            self._do(once)
            if lacking is None:
                done.complete(None)
            else:
                then(self.managed.locate(lacking), done, attempt)

        try:
            attempt(None)
        except ReplogError as error:
            done.fail(error)
        return done

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        self._do(lambda now: self._dispatcher.nack(consumer, offsets, now, delay_us=delay_us, reason=reason))

    def redeliver(self, consumer: int) -> None:
        self._do(lambda now: [_Discard((consumer,)), *self._dispatcher.redeliver_unacked(consumer, now)])

    def flush_async(self) -> AppendFuture[None]:
        """Done when all acknowledgements so far are durable."""
        return self._stored(CursorSlot.flush)

    def _stored(self, store: Callable[[CursorSlot], AppendFuture[None]]) -> AppendFuture[None]:
        """Once all that was acknowledged so far is known to the cursor."""
        slot = self.slot
        if slot is None:
            return done_ack()
        done: AppendFuture[None] = AppendFuture()

        def stored(future: AppendFuture[None]) -> None:
            error = self._failed or future.exception()  # nothing of what came behind a failure is stored
            if error is not None:
                done.fail(error)
            else:
                done.complete(None)

        then(self._settled(), done, lambda _: store(slot).add_done_callback(stored))
        return done

    # ---- what its slot stores -------------------------------------------------------------------------------

    def take_changes(self) -> tuple[int, bytes] | None:
        """See `CursorSource`, as of the following."""
        with self._lock:
            return self.cursor.take_changes()

    def snapshot_record(self) -> tuple[int, bytes]:
        with self._lock:
            return self.cursor.snapshot_record()

    def persisted(self, sequence: int) -> None:
        self.counts.persists += 1
        with self._lock:
            self.cursor.persisted(sequence)
            has_more = self.cursor.has_changes
        self._on_change()
        if has_more:  # one record could not hold all that has changed
            self._note_dirty()

    def lost(self, error: ReplogError) -> None:
        self.fail(error)

    # ---- positions ------------------------------------------------------------------------------------------

    def seek(self, start: Start) -> AppendFuture[int]:
        """See `Consumer.seek`. Durable when the AppendFuture is done."""
        done: AppendFuture[int] = AppendFuture()

        def seek(total: TopicPosition) -> None:
            self._seek(total)
            then(self.flush_async(), done, lambda _: done.complete(total.offset))

        then(position(self.managed, start), done, seek)
        return done

    def _seek(self, total: TopicPosition) -> None:
        """TrimmedError: its messages went in this moment."""

        def seek(now_us: int) -> list[Effect | _Discard]:
            start = self.managed.start.offset
            if total.offset < start:
                raise TrimmedError(f"{self._label}: messages are kept from offset {start} on")
            self._era += 1
            era, numbers = self.cursor.begin_era(), tuple(self._consumers)
            for number in numbers:
                self._tell(number, lambda consumer: consumer.forget_acks(era))
            return [_Discard(numbers, sought=True), *self._dispatcher.seek(total, now_us)]

        self._do(seek)

    def settle_in(self) -> None:
        """Begin to hear what becomes of the topic. It may have other messages than when the cursor was stored: none
        below its start, none beyond its end."""
        self.managed.on_grow.append(self.grew)
        start, end = self.managed.start, self.managed.end
        if self.cursor.mark.offset > end.offset:
            logger.error("%s: is at %d, and the topic ends at %d", self._label, self.cursor.mark.offset, end.offset)
            self.cursor.begin_era()  # before anybody acknowledges
            self._do(lambda now: self._dispatcher.seek(end, now))
        elif self.cursor.mark.offset < start.offset:
            self.trimmed(start)

    # ---- how it is ------------------------------------------------------------------------------------------

    def look(self, call: Callable[[Cursor, Dispatcher], T]) -> T:
        """The result of a call that reads cursor and dispatcher while neither changes."""
        with self._lock:
            return call(self.cursor, self._dispatcher)

    @property
    def is_unstored(self) -> bool:
        """Whether a crash, now, would bring back messages that are acknowledged."""
        return self.look(lambda cursor, _: cursor.has_changes or cursor.durable_mark.offset < cursor.mark.offset)

    def durable_mark(self) -> int:
        """The subscription never needs anything below this offset again, also after a crash."""
        return self.look(lambda cursor, _: cursor.durable_mark.offset)

    def oldest_us(self) -> int | None:
        """Append time of the first message that is not acknowledged; None: there is none. May read an entry, and wait
        for it. Errors: those of `ManagedLedger.read`."""
        mark = self.cursor.mark.offset
        if mark >= self.managed.end.offset:
            return None
        if self._oldest[0] != mark:
            batch = wait_wanted(self.wait, self.managed.read(mark, bytes_max=1))
            self._oldest = (mark, int(batch.publish_time[0]))
        return self._oldest[1]

    def oldest_due_us(self) -> int | None:
        """The same of the first one whose time has come: since when it could have been delivered. None: there is none,
        as far as that is known without a consumer."""
        end = self.managed.end.offset
        first = self.look(lambda _, dispatcher: dispatcher.first_due(end))
        if first >= end:
            return None
        if self._oldest_due[0] != first:
            batch = wait_wanted(self.wait, self.managed.read(first, bytes_max=1))
            at = int(np.searchsorted(batch.offset, first))
            deliver_at = int(batch.deliver_at[at]) if self._delays else 0
            self._oldest_due = (first, max(int(batch.publish_time[at]), deliver_at))
        due_us = self._oldest_due[1]
        return None if due_us > self._clock.now_us() else due_us

    def count_delayed(self) -> int | None:
        """Messages that wait for their time, while there is no consumer; None: too many to count are left. May read the
        backlog, and wait for it. Errors: as oldest_us."""
        return self._delayed.count(self._clock.now_us()) if self._delays else 0

    @property
    def _delays(self) -> bool:
        """Whether messages wait for their `deliver_at`."""
        return self.settings.type in ("shared", "key_shared")

    # ---- the end --------------------------------------------------------------------------------------------

    def fail(self, error: ReplogError) -> None:
        """Deliver and store nothing any more: another process owns the topic, or it is gone."""
        with self._lock:
            self._failed = self._failed or error
        consumers = self.attached()
        self._stop()
        for consumer in consumers:
            consumer.failed(error)

    def _stop(self) -> None:
        """Carry out no effects any more."""
        self._is_stopped = True
        with suppress(ValueError):  # it never settled in, or was stopped before
            self.managed.on_grow.remove(self.grew)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake[1].cancel()

    def store(self) -> AppendFuture[None]:
        """Close the consumers and store their acknowledgements, when the topic is closed."""
        for consumer in self.attached():
            consumer.close()
        return self._stored(CursorSlot.store_clean)

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """End its use. deleted: it does not exist any more."""
        self.fail(error)
        if self.slot is not None:
            self.slot.close(deleted=deleted)
