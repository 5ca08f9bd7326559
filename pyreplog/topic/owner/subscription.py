"""One subscription of a topic that this process owns: its cursor, its consumers, and what people do with it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.dispatcher import Dispatcher
from pyreplog.topic.model.dispatch.effects import ActiveConsumerChanged, DeadLetter, Deliver, Effect
from pyreplog.topic.model.interfaces import ConsumerLike, DeliveredMessages, Noted
from pyreplog.topic.model.positions import Start, done_ack, position, then
from pyreplog.topic.model.topic_position import EntryPosition, TopicPosition
from pyreplog.topic.owner.cursors.slot import CursorSlot
from pyreplog.topic.owner.cursors.storedcursor import StoredCursor
from pyreplog.topic.owner.delayed_count import DelayedCount
from pyreplog.topic.owner.dispatch_driver import Discard, DispatchDriver
from pyreplog.topic.owner.managed.managedledger import ManagedLedger
from pyreplog.topic.owner.subscription_counters import ConsumerCounters, SubscriptionCounters

logger = logging.getLogger(__name__)

T = TypeVar("T")
NOBODY = -1
"""Acknowledges for no consumer."""


class Subscription:
    """Made by its topic; what a `Consumer` calls its source. Any thread may call anything; no call waits.

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
        self._work = runtime.work
        self.slot: CursorSlot | None = None
        """Where its state is stored; None: it is not."""
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
        self._driver = DispatchDriver(name, managed, cursor, self._dispatcher, self, runtime, clock)
        self._lock, self._do = self._driver.lock, self._driver.do
        self.source = StoredCursor(cursor, self._lock, lost=self.fail, more=self.dirty, stored=on_change)
        self._delayed = DelayedCount(managed, cursor, self._lock, runtime.wait)
        self._oldest = (-1, 0)  # offset and append time of the message at the mark
        self._oldest_due = (-1, 0)  # of the first that is due, and since when it is
        self._consumers: dict[int, ConsumerLike] = {}
        self._consumer_counts: dict[int, ConsumerCounters] = {}
        self._next_id = 0
        self._failed: ReplogError | None = None

    # ---- effects --------------------------------------------------------------------------------------------

    def _tell(self, consumer: int, call: Callable[[ConsumerLike], None]) -> None:
        there = self._consumers.get(consumer)
        if there is not None:
            call(there)

    def deliver(self, effect: Deliver) -> None:
        """For the driver, as the following."""
        now_us = self._clock.now_us()
        self.counts.deliver(effect.batch, effect.redelivered, now_us)
        there = self._consumers.get(effect.consumer)
        if there is not None:
            self._consumer_counts[effect.consumer].deliver(effect.batch, effect.redelivered, now_us)
            there.deliver(DeliveredMessages(effect.batch, effect.redelivered))

    def became(self, effect: ActiveConsumerChanged) -> None:
        if not effect.active:
            self._tell(effect.consumer, lambda there: there.discard())
        self._tell(effect.consumer, lambda there: there.became(effect.active))

    def discard(self, effect: Discard) -> None:
        for consumer in effect.consumers:
            self._tell(consumer, lambda there: there.discard(sought=effect.sought))

    def dirty(self) -> None:
        mark = self.cursor.acks.mark_offset
        if mark != self._mark:
            self._mark, self.counts.last_mark_us = mark, self._clock.now_us()
            if self.slot is not None:
                self.slot.moved_us = self.counts.last_mark_us
        if self.slot is not None:
            self.slot.dirty()
        self._on_change()

    def bury(self, effect: DeadLetter) -> None:
        offsets = effect.batch.offset

        def buried(future: AppendFuture[Any]) -> None:
            error = future.exception()
            if error is None:
                self.acknowledge(NOBODY, offsets)
                self.counts.dead_lettered += len(offsets)  # whoever reads it finds them acknowledged
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

    @property
    def is_over(self) -> bool:
        """Whether it takes no consumers any more."""
        return self._failed is not None

    def attach(
        self, consumer: ConsumerLike, settings: SubscriptionConfig | None, *, priority: int = 0, address: str = ""
    ) -> int:
        """Take a consumer in; its number. settings: what it wants, None: whatever they are. address: HOST:PORT of a
        remote one, for statistics.

        Errors: SubscriptionBusyError, an exclusive one has a consumer, or others have other settings.
        """
        with self._lock:
            self._next_id = number = self._next_id + 1

        def attach(now_us: int) -> list[Effect]:
            if self._failed is not None:
                raise self._failed
            if settings is not None and settings != self._dispatcher.settings:
                self._dispatcher.configure(settings)
            effects = self._dispatcher.attach(number, consumer.name, now_us, priority=priority)
            consumer.became(self._dispatcher.settings.type != "failover")
            self._consumer_counts[number] = ConsumerCounters(address, self._clock.now_us())
            self._consumers[number] = consumer  # from now on `grew` tells where the topic ends
            self.used_us = now_us
            return effects + self._dispatcher.grew(self.managed.end.offset, now_us)

        self._do(attach)
        return number

    def detach(self, consumer: int) -> None:
        """It is gone: what it had goes to others."""

        def detach(now_us: int) -> list[Effect]:
            self._consumers.pop(consumer, None)
            self._consumer_counts.pop(consumer, None)
            self.used_us = now_us
            if not self._consumers and not self.cursor.durable:
                self._failed = self._failed or ClosedError(f"subscription {self.name} ended with its last consumer")
            return self._dispatcher.detach(consumer, now_us)

        self._do(detach)
        if self.is_over and not self.cursor.durable:
            self._driver.end()
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
        counts = self._consumer_counts.get(consumer)
        if counts is not None:
            counts.last_acked_us = self._clock.now_us()

    def consumer_counts(self, consumer: int) -> ConsumerCounters:
        """What became of a consumer's messages; nothing, of one that has gone."""
        return self._consumer_counts.get(consumer) or ConsumerCounters("", 0)

    @property
    def era(self) -> int:
        """A random number from its beginning, or from a seek, up to the next seek, whoever owns it: what is
        acknowledged in one era does not count in another. For steps."""
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

    def _settle(self, done: AppendFuture[None]) -> None:
        then(self._driver.settled(), done, done.complete)

    def acknowledge_cumulative(
        self, consumer: int, end: int, *, if_: Callable[[], bool] = lambda: True
    ) -> AppendFuture[None]:
        """if_: asked in the step; False: nothing is done."""
        self._note_acknowledging(consumer)
        return self._at_place(
            end, lambda place, now: self._dispatcher.cumulative(consumer, place, end, now) if if_() else []
        )

    def skip_to(self, end: int) -> AppendFuture[None]:
        """Acknowledge everything below `end` for whoever is connected: it expired, or nobody wants it."""

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

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None) -> None:
        self._do(lambda now: self._dispatcher.nack(consumer, offsets, now, delay_us=delay_us))

    def redeliver(self, consumer: int) -> None:
        self._do(lambda now: [Discard((consumer,)), *self._dispatcher.redeliver_unacked(consumer, now)])

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

        then(self._driver.settled(), done, lambda _: store(slot).add_done_callback(stored))
        return done

    # ---- positions ------------------------------------------------------------------------------------------

    def seek(self, start: Start) -> AppendFuture[int]:
        """See `Consumer.seek`. Durable when the AppendFuture is done."""
        done: AppendFuture[int] = AppendFuture()

        def seek(total: TopicPosition) -> None:
            self._driver.seek(total, self._consumers)
            then(self.flush_async(), done, lambda _: done.complete(total.offset))

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
            self.cursor.begin_era()  # before anybody acknowledges
            self._do(lambda now: self._dispatcher.seek(end, now))
        elif self.cursor.mark.offset < start.offset:
            self.trimmed(start)

    def grew(self, end: int) -> None:
        """Messages up to `end` are confirmed."""
        if self._consumers:  # the first one will be told
            self._do(lambda now: self._dispatcher.grew(end, now))

    def trimmed(self, start: TopicPosition) -> None:
        """Nothing below is left: a cursor that would have needed it moves on."""
        self._driver.trimmed(start)

    def clock_was_set(self) -> None:
        """The time of day is another than it was to be by now."""
        if self._consumers:  # for nobody nothing is due
            self._driver.clock_was_set()

    # ---- how it is ------------------------------------------------------------------------------------------

    def look(self, call: Callable[[Cursor, Dispatcher], T]) -> T:
        """Its result, while neither changes."""
        with self._lock:
            return call(self.cursor, self._dispatcher)

    @property
    def is_unstored(self) -> bool:
        """Whether a crash, now, would bring back messages that are acknowledged."""
        return self.look(lambda cursor, _: cursor.has_changes or cursor.durable_mark.offset < cursor.mark.offset)

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
        """Nothing is delivered or stored any more: somebody else has the topic, or it is gone."""
        with self._lock:
            self._failed = self._failed or error
            consumers = list(self._consumers.values())
        self._driver.end()
        for consumer in consumers:
            consumer.failed(error)

    def store(self) -> AppendFuture[None]:
        """Let the consumers go, and store what they have acknowledged; for who closes the topic."""
        with self._lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.close()
        return self._stored(CursorSlot.store_clean)

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """It is not used any more. deleted: it does not exist any more."""
        self.fail(error)
        if self.slot is not None:
            self.slot.close(deleted=deleted)
