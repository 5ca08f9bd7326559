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
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.range_set import RangeSet
from pyreplog.clock import Clock
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import ClosedError, ReplogError, SubscriptionBusyError, TopicFencedError, TrimmedError
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, completed_future, set_exception, set_result, then
from pyreplog.ledger.driver import Runtime, TimerLike
from pyreplog.net.fair_executor import wait_while_connected
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.dispatcher import Dispatcher
from pyreplog.topic.model.dispatch.effects import (
    ActiveConsumerChanged,
    CursorChanged,
    DeadLetter,
    Deliver,
    Effect,
    Locate,
    ReadEntries,
    WakeAt,
)
from pyreplog.topic.model.interfaces import AckedOffsets, DeliveredMessages, DeliveryTarget
from pyreplog.topic.model.positions import EntryPosition, Start, TopicPosition, position
from pyreplog.topic.owner.delayed_count import DelayedCount
from pyreplog.topic.owner.locator import LocatedEntries, Locator, UnreadRange, offsets_in
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)


@dataclass
class ConsumerCounters:
    """Counters of one consumer since it was attached.

    address: HOST:PORT of a remote one. *_us: time of day, 0: never.
    """

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
    """Counters of messages, and bytes of their values.

    persists: stored records of the cursor. *_us: time of day, 0: never.
    """

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
    """Messages that were acknowledged when the topic was opened, including trimmed ones."""

    def acked(self, cursor: Cursor) -> int:
        """Return the messages acknowledged since; a seek back reduces the number."""
        return max(cursor.mark.offset + cursor.acks.acked_messages - self.begun_at, 0)

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered += len(batch)
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us


T = TypeVar("T")
RESUME_S, RESUME_RETRY_S = 5.0, 0.1
"""Seconds in which repeated acknowledgements have to be located, and before another attempt."""

NOBODY = -1
"""The number that stands for no consumer in `acknowledge`."""


class _Discard(NamedTuple):
    """An effect: consumers drop the messages that they have not handed out. sought: because of a seek."""

    consumers: tuple[int, ...]
    sought: bool = False


class _Attachment(NamedTuple):
    """A consumer, held weakly, and the counters of its messages."""

    reference: weakref.ref[DeliveryTarget]
    counts: ConsumerCounters


HEADER, EXPIRED = "replicated", "expired"
"""Names of properties of replicated cursors: which state of all clusters the acknowledgements belong to, and the offset
below which messages may have expired without an acknowledgement."""
EXPIRED_RANGES_MAX = 65_536
"""Most ranges of removed messages of which it is known which expired, and which were acknowledged."""
RANGE_MESSAGES = 64
"""A range of so many messages is acknowledged as one, shorter ones as offsets."""


class AckedRanges(NamedTuple):
    """What is acknowledged in a subscription, at one moment, and what expired without that.

    Attributes:
        era: see `Subscription.era`.
        acked: offsets that were acknowledged; those that were trimmed, too.
        expired: offsets that expired, or were evicted, while the subscription was watched.
        header: the property HEADER; 0: there is none.
        expired_below: the property EXPIRED.
    """

    era: int
    acked: RangeSet
    expired: RangeSet
    header: int
    expired_below: int


class SubscriptionWatcher(Protocol):
    """What has the durable subscriptions of a topic replicated to other clusters. Any thread calls it; it never waits.

    It is not told of single acknowledgements: it calls `Subscription.take_acked` at intervals of its own.
    """

    def changed(self, subscription: Subscription) -> None:
        """Note that there may be something to take."""
        ...

    def sought(self, subscription: Subscription, offset: int, era: int) -> None:
        """Note a seek; called before any acknowledgement that counts behind it."""
        ...

    def created(self, subscription: Subscription) -> None:
        """Note a new subscription, which delivers nothing until `limit_to`."""
        ...

    def deleted(self, name: str) -> None:
        """Note that a subscription was deleted."""
        ...

    def journaled_mark(self, subscription: Subscription) -> int:
        """Return the offset below which a crash loses no acknowledgement for the other clusters; messages are kept from
        there on.
        """
        ...


Step = Callable[[int], Iterable[Effect | _Discard]]
"""A change of the dispatcher and the cursor: takes the time, returns effects."""


class Subscription:
    """The subscription of `Consumer`s; created by its topic. Any thread may use it; no call waits.

    It drives its dispatcher: it passes events to it, one at a time, as steps under one lock, and carries out the
    effects in their order without the lock. Consumers are held weakly: the caller that attaches one keeps it. It is a
    `CursorSource`, from which the cursor log takes records.

    Args:
        name: its name.
        managed: the messages of the topic.
        cursor: its cursor.
        settings: its settings.
        runtime: waits, timers and threads of the cluster.
        clock: source of time.
        publish_dead: publishes dead letters.
        on_change: called when messages are acknowledged, and when that is stored.
        on_over: called when a subscription that is not durable ends with its last consumer.
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
        """Effects are carried out as events of this queue."""
        self._work = runtime.work
        self._label = f"{managed.name}, {name}"
        self.persister: CursorPersister | None = None
        """The persister of its cursor; None: the cursor is not stored."""
        self.stored_settings: SubscriptionConfig | None = None
        """Its settings in the metadata store; None: not stored, or unknown."""
        self.properties: Mapping[str, str] = {}
        self.home = ""
        """The stored home, see `SubscriptionMetadata`; "": none."""
        self.created_us = clock.now_us()
        self.used_us = clock.monotonic_us()
        """When it last had a consumer, or this process took it over, on the monotonic clock."""
        self.first_era = 1 + secrets.randbits(61)
        """Its era before the first seek."""
        self.counts = SubscriptionCounters(begun_at=cursor.mark.offset + cursor.acks.acked_messages)
        self._mark = cursor.mark.offset
        self._clock, self._publish_dead, self._on_change, self._on_over = clock, publish_dead, on_change, on_over
        self._dispatcher = Dispatcher(
            cursor, settings, topic=managed.name, start=managed.start.offset, end=managed.end.offset,
            wall_us=clock.now_us,
        )  # fmt: skip
        self._lock = Lock()  # guards the cursor and the dispatcher, held only for steps
        self._effects: deque[Effect | _Discard] = deque()
        self._locator = Locator(
            self._label, managed, self.events, runtime.wake_after, on_located=self._located, on_retry=self._locate_again
        )
        self._wake: tuple[int, TimerLike] | None = None
        self._era = 0  # counts seeks, which discard earlier acknowledgements
        self._is_stopped = False
        self._delayed = DelayedCount(managed, cursor, self._lock, runtime.wait)
        self._oldest = (-1, 0)  # offset and append time of the message at the mark
        self._oldest_due = (-1, 0)  # offset and due time of the first message that is due
        self._consumers: dict[int, _Attachment] = {}
        self._next_id = 0
        self._failed: ReplogError | None = None
        self._watcher: SubscriptionWatcher | None = None
        self._expired = RangeSet()  # guarded by `_lock`
        self._expired_lately = RangeSet()  # since `take_acked`

    # ---- steps and effects ----------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        """Take a step. Its errors are raised here; its effects are carried out after those of earlier steps."""
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
            elif isinstance(effect, CursorChanged):
                self._note_dirty()
            elif isinstance(effect, WakeAt):
                self._wake_at(effect.at_us)
            elif isinstance(effect, Locate):
                self._locator.add(effect, self._era)
            elif isinstance(effect, ActiveConsumerChanged):
                self._notify_active(effect)
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
        if consumer is not None:  # otherwise its finalizer detaches it, and others get the messages
            attachment.counts.deliver(effect.batch, effect.redelivered, now_us)
            consumer.deliver(make_named(DeliveredMessages, effect.batch, effect.redelivered))

    def _call_consumer(self, number: int, call: Callable[[DeliveryTarget], None]) -> None:
        attachment = self._consumers.get(number)
        consumer = None if attachment is None else attachment.reference()
        if consumer is not None:
            call(consumer)

    def _discard(self, effect: _Discard) -> None:
        for number in effect.consumers:
            self._call_consumer(number, lambda consumer: consumer.discard(sought=effect.sought))

    def _notify_active(self, effect: ActiveConsumerChanged) -> None:
        if not effect.active:
            self._call_consumer(effect.consumer, lambda consumer: consumer.discard())
        self._call_consumer(effect.consumer, lambda consumer: consumer.set_active(effect.active))

    def _note_dirty(self) -> None:
        mark = self.cursor.acks.mark_offset
        if mark != self._mark:
            self._mark, self.counts.last_mark_us = mark, self._clock.now_us()
            if self.persister is not None:
                self.persister.moved_us = self.counts.last_mark_us
        if self.persister is not None:
            self.persister.dirty()
        self._on_change()
        if self._watcher is not None:
            self._watcher.changed(self)

    def _publish_dead_letters(self, effect: DeadLetter) -> None:
        offsets = effect.batch.offset

        def published(future: AppendFuture[Any]) -> None:
            error = future.exception()
            if error is None:
                self.acknowledge(NOBODY, offsets)
                self.counts.dead_lettered += len(offsets)  # after the acknowledgement, for readers of the counter
                return
            logger.warning("%s: dead letters could not be published, another attempt follows: %s", self._label, error)
            self._do(lambda now: self._dispatcher.dead_letters_failed(offsets, now))

        self._publish_dead(self, effect).add_done_callback(published)

    # ---- reading --------------------------------------------------------------------------------------------

    def grew(self) -> None:
        """Note that the topic's confirmed end moved; called by its `ManagedLedger`."""
        if self._consumers:  # the first consumer gets the end when it is attached
            self._do(lambda now: self._dispatcher.grew(self.managed.end.offset, now))

    def _read(self, read: ReadEntries) -> None:
        try:
            result = self.managed.read(read.offset, bytes_max=read.bytes_max, end=read.end)
        except ReplogError as error:
            self._not_read(read, error)
            return
        if result.done() and result.exception() is None:  # the usual case; its effects are carried out in this event
            batch = result.result()
            self._take(lambda now: self._dispatcher.entries(read.id, batch, now))
        else:
            result.add_done_callback(lambda _: self._was_read(read, result))

    def _was_read(self, read: ReadEntries, result: AppendFuture[MessageBatch]) -> None:
        error = result.exception()
        if error is not None:
            self._not_read(read, error)
        else:
            batch = result.result()
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
        """Note that all messages below a position were removed; move the cursor if it is below."""

        def trimmed(now_us: int) -> list[Effect]:
            moved: list[Effect] = []
            if self.cursor.mark.offset < start.offset:
                self._note_expired(start.offset)
                moved = self._dispatcher.advance(start, now_us)
            first = self._expired.first
            if first is not None and first < start.offset and len(self._expired) > EXPIRED_RANGES_MAX:
                self._expired.add(first, start.offset)
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
        """Note that the timer fired; the clock of the timer may be a little behind."""
        self.events.post(self._wake_is_over)
        self._do(lambda now: self._dispatcher.woken(max(now, at_us)))

    def _wake_is_over(self) -> None:
        self._wake = None

    def clock_was_set(self) -> None:
        """Note that the wall clock jumped: delayed messages may be due earlier than the timer, or later."""
        if self._consumers:  # without consumers no timer runs
            self._do(lambda now: self._dispatcher.woken(now))

    # ---- consumers ------------------------------------------------------------------------------------------

    @property
    def settings(self) -> SubscriptionConfig:
        return self._dispatcher.settings

    def configure(self, settings: SubscriptionConfig) -> None:
        """Change the settings in this process. Raises SubscriptionBusyError if there are consumers."""

        def configure(_: int) -> list[Effect]:
            self._dispatcher.configure(settings)
            return []

        self._do(configure)

    @property
    def consumers(self) -> int:
        """Number of attached consumers."""
        return len(self._consumers)

    def attached(self) -> list[DeliveryTarget]:
        """Return the attached consumers, without those that were forgotten."""
        with self._lock:
            references = [attachment.reference for attachment in self._consumers.values()]
        return [consumer for reference in references if (consumer := reference()) is not None]

    @property
    def is_over(self) -> bool:
        """Whether no more consumers may attach."""
        return self._failed is not None

    def attach(
        self, consumer: DeliveryTarget, settings: SubscriptionConfig | None, *, priority: int = 0, address: str = ""
    ) -> int:
        """Attach a consumer; return its number.

        settings: those that the consumer expects; None: any. address: HOST:PORT of a remote one, for statistics. Raises
        SubscriptionBusyError if it is exclusive and has a consumer, or has other settings.
        """
        with self._lock:
            self._next_id = number = self._next_id + 1

        def attach(now_us: int) -> list[Effect]:
            if self._failed is not None:
                raise self._failed
            if settings is not None and settings != self._dispatcher.settings:
                raise SubscriptionBusyError(self.managed.name, f"subscription {self.name} has other settings")
            effects = self._dispatcher.attach(number, consumer.name, now_us, priority=priority)
            consumer.set_active(self._dispatcher.settings.type != "failover")
            counts = ConsumerCounters(address, self._clock.now_us())
            self._consumers[number] = _Attachment(weakref.ref(consumer), counts)  # from now on `grew` passes the end on
            self.used_us = now_us
            return effects + self._dispatcher.grew(self.managed.end.offset, now_us)

        self._do(attach)
        return number

    def detach(self, consumer: int) -> None:
        """Detach a consumer; others get all that it has not acknowledged."""

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

    def acknowledge_noted(self, consumer: int, take: Callable[[], AckedOffsets | None]) -> None:
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
        """Return the counters of a consumer's messages; zeros for one that is detached."""
        attachment = self._consumers.get(consumer)
        return ConsumerCounters("", 0) if attachment is None else attachment.counts

    @property
    def era(self) -> int:
        """A random number that changes with each seek, the same for all owners.

        Acknowledgements of one era do not count in another. It does not change during a step.
        """
        return self.cursor.era or self.first_era

    @property
    def known_end(self) -> int:
        """Messages below it can be acknowledged. For steps."""
        return self._dispatcher.end

    def acknowledge_again(
        self, consumer: int, end: int, ranges: NDArray[np.int64], if_: Callable[[], bool]
    ) -> AppendFuture[bool]:
        """Repeat acknowledgements that a former owner may not have stored: all below `end`, and the half-open rows of
        `ranges`.

        if_: called in the step; False: do nothing. The future is done when the cursor has them; its result is False if
        their entries could not be located in RESUME_S.
        """
        done: AppendFuture[bool] = AppendFuture()

        def acknowledge(now_us: int) -> list[Effect]:
            effects: list[Effect] = []
            if if_():
                lengths = ranges[:, 1] - ranges[:, 0]
                if len(singles := ranges[lengths == 1, 0]):
                    effects += self._dispatcher.acknowledge(consumer, singles, now_us)
                for start, stop in ranges[lengths > 1].tolist():
                    effects += self._dispatcher.acknowledge_range(consumer, start, stop, now_us)
            return effects

        def is_ahead() -> bool:
            return if_() and self.cursor.mark.offset < end

        def settle() -> None:
            then(self._settled(), done, lambda _: set_result(done, True))

        def below_end() -> None:
            future = self.acknowledge_cumulative(consumer, end, if_=is_ahead)
            future.add_done_callback(lambda _: is_below(future.exception()))

        def is_below(error: BaseException | None) -> None:
            if error is None:
                settle()
            elif not isinstance(error, ReplogError) or not error.retriable:
                set_exception(done, error)
            elif not done.done() and self.wake_after(RESUME_RETRY_S, below_end) is None:
                set_result(done, False)

        self._do(acknowledge)
        if end > self.cursor.mark.offset and self.settings.type not in ("shared", "key_shared"):
            below_end()
        else:
            settle()
        if not done.done():
            timer = self.wake_after(RESUME_S, partial(_give_up, done))
            done.add_done_callback(lambda _: timer and timer.cancel())
        return done

    def _located(self, located: LocatedEntries) -> None:
        """Acknowledge messages of entries that were never delivered, and that were located for the cursor."""

        def acknowledge(now_us: int) -> list[Effect]:
            if located.era != self._era:
                return []
            self.cursor.deliver(located.batch)
            if len(located.starts) == 1:
                start, end = int(located.starts[0]), int(located.ends[0])
                return self._dispatcher.acknowledge_range(located.consumer, start, end, now_us)
            return self._dispatcher.acknowledge(located.consumer, offsets_in(located.starts, located.ends), now_us)

        self._do(acknowledge)

    def _locate_again(self, unread: UnreadRange) -> None:
        """Acknowledge messages of entries that could not be located, as far as they are not acknowledged meanwhile."""
        consumer, era, start, end = unread
        self._do(lambda now: self._dispatcher.acknowledge_range(consumer, start, end, now) if era == self._era else [])

    def _settled(self) -> AppendFuture[None]:
        """Return a future that is done when the cursor, and its persister, have all earlier acknowledgements."""
        self._do(lambda _: ())  # waits for the steps of other threads, and their effects
        return self._locator.settled()

    def acknowledge_cumulative(
        self, consumer: int, end: int, *, if_: Callable[[], bool] = lambda: True
    ) -> AppendFuture[None]:
        """Acknowledge everything below `end`. if_: called in the step; False: do nothing."""
        self._note_acknowledging(consumer)
        return self._at_place(
            end, lambda place, now: self._dispatcher.cumulative(consumer, place, end, now) if if_() else []
        )

    def skip_to(self, end: int, *, expires: bool = False) -> AppendFuture[None]:
        """Acknowledge everything below `end`, whichever consumer has it, because it is to be skipped.

        expires: because it expired, or was evicted, in this cluster.
        """

        def skip(place: EntryPosition, now_us: int) -> list[Effect]:
            before = self.cursor.mark.offset
            if end <= before:
                return []
            if expires:
                self._note_expired(end)
            self.cursor.cumulative(place, end, self.managed.end.offset, now_us)
            return self._dispatcher.moved(before, now_us)

        return self._at_place(end, skip) if end > self.cursor.mark.offset else completed_future()

    def skip(self, messages: int) -> AppendFuture[None]:
        """Acknowledge the next `messages` unacknowledged messages."""
        end = self.managed.end.offset
        return self.skip_to(self.inspect(lambda cursor, _: cursor.offset_behind(messages, end)))

    def _at_place(self, to: int, step: Callable[[EntryPosition, int], list[Effect]]) -> AppendFuture[None]:
        """Do a step with the entry that a cumulative acknowledgement up to `to` needs."""
        done: AppendFuture[None] = AppendFuture()
        nowhere = EntryPosition(-1, -1, to, 0, 0, 0, 0)

        def attempt(place: EntryPosition | None) -> None:
            missing: int | None = None

            def once(now_us: int) -> list[Effect]:
                nonlocal missing
                start, end = self.cursor.cumulative_start(to), self.managed.end.offset  # others acknowledge meanwhile
                known = place if place is not None and place.first <= start <= place.end else self.cursor.find(start)
                if known is None and self.cursor.mark.offset < to <= end:
                    missing = min(start, end - 1)
                    return []
                return step(known or nowhere, now_us)

            self._do(once)
            if missing is None:
                set_result(done, None)
            else:
                then(self.managed.locate(missing), done, attempt)

        try:
            attempt(None)
        except ReplogError as error:
            set_exception(done, error)
        return done

    def nack(self, consumer: int, offsets: NDArray[np.int64], delay_us: int | None, reason: str | None = None) -> None:
        self._do(lambda now: self._dispatcher.nack(consumer, offsets, now, delay_us=delay_us, reason=reason))

    def redeliver(self, consumer: int) -> None:
        self._do(lambda now: [_Discard((consumer,)), *self._dispatcher.redeliver_unacked(consumer, now)])

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when all earlier acknowledgements are durable."""
        return self._stored(CursorPersister.flush)

    def _stored(self, store: Callable[[CursorPersister], AppendFuture[None]]) -> AppendFuture[None]:
        """Store the cursor once it has all earlier acknowledgements."""
        persister = self.persister
        if persister is None:
            return completed_future()
        done: AppendFuture[None] = AppendFuture()

        def stored(future: AppendFuture[None]) -> None:
            error = self._failed or future.exception()  # nothing after a failure is stored
            if error is not None:
                set_exception(done, error)
            else:
                set_result(done, None)

        then(self._settled(), done, lambda _: store(persister).add_done_callback(stored))
        return done

    # ---- CursorSource -------------------------------------------------------------------------------

    def take_changes(self) -> tuple[int, bytes] | None:
        """Return the changes of the cursor, see `CursorSource`."""
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
        if has_more:  # one record could not hold all changes
            self._note_dirty()

    def lost(self, error: ReplogError) -> None:
        self.fail(error)

    # ---- positions ------------------------------------------------------------------------------------------

    def seek(self, start: Start) -> AppendFuture[int]:
        """Move the subscription, see `Consumer.seek`. The move is durable when the future is done."""
        done: AppendFuture[int] = AppendFuture()

        def seek(total: TopicPosition) -> None:
            self._seek(total)
            then(self.flush_async(), done, lambda _: set_result(done, total.offset))

        then(position(self.managed, start), done, seek)
        return done

    def _seek(self, total: TopicPosition) -> None:
        """Move the cursor. Raises TrimmedError if the messages were removed just now."""

        def seek(now_us: int) -> list[Effect | _Discard]:
            effects = self._move(total, now_us)
            if self._watcher is not None:
                self._watcher.sought(self, total.offset, self.era)
            return effects

        self._do(seek)

    def _move(self, total: TopicPosition, now_us: int) -> list[Effect | _Discard]:
        """Move the cursor, in a step."""
        start = self.managed.start.offset
        if total.offset < start:
            raise TrimmedError(f"{self._label}: messages are kept from offset {start} on")
        self._era += 1
        era, numbers = self.cursor.begin_era(), tuple(self._consumers)
        if self._watcher is not None:  # after a crash, these must not count as the state that other clusters know
            self.cursor.set_properties({HEADER: 0, EXPIRED: 0})
            self._expired.clear()
            self._expired_lately.clear()
        for number in numbers:
            self._call_consumer(number, lambda consumer: consumer.forget_acks(era))
        return [_Discard(numbers, sought=True), *self._dispatcher.seek(total, now_us)]

    def follow_topic(self) -> None:
        """Follow the topic from now on.

        The topic may have other messages than when the cursor was stored: none below its start, and none beyond its
        end.
        """
        self.managed.on_grow.append(self.grew)
        start, end = self.managed.start, self.managed.end
        if self.cursor.mark.offset > end.offset:
            mark = self.cursor.mark.offset
            logger.error("%s: its cursor is at %d, but the topic ends at %d", self._label, mark, end.offset)
            self.cursor.begin_era()  # before any acknowledgement
            self._do(lambda now: self._dispatcher.seek(end, now))
            self.flush_async()
            return
        if self.cursor.mark.offset < start.offset:
            self.trimmed(start)
        self._forget_beyond(end.offset)

    def _forget_beyond(self, end: int) -> None:
        """Forget acknowledgements beyond the end of the topic: the next messages there are other ones."""
        starts, ends = self.cursor.acks.acked()
        if not len(ends) or ends[-1] <= end:
            return
        logger.error("%s: it has acknowledgements up to %d, but the topic ends at %d", self._label, ends[-1], end)
        is_kept = starts < end

        def forget(now_us: int) -> list[Effect]:
            effects = [*self._dispatcher.seek(self.cursor.mark, now_us), *self._dispatcher.grew(end, now_us)]
            return effects + self._acknowledge_ranges(starts[is_kept], np.minimum(ends[is_kept], end), now_us)

        self._do(forget)
        self.flush_async()

    # ---- replication to other clusters ------------------------------------------------------------------

    def watch(self, watcher: SubscriptionWatcher | None) -> None:
        """Report changes to a watcher from now on; None: to no watcher."""
        with self._lock:
            self._watcher = watcher
            self.cursor.acks.forget_taken()
            self._expired_lately.add_ranges(*self._expired.intersect())

    @property
    def is_watched(self) -> bool:
        """Whether it is replicated to other clusters."""
        return self._watcher is not None

    def limit_to(self, offset: int) -> None:
        """Deliver only messages below `offset` until the next call; 0: no messages."""
        self._do(lambda now: self._dispatcher.limit_to(offset, now))

    @property
    def held(self) -> int:
        """Number of messages that consumers have and did not acknowledge."""
        return self.inspect(lambda _, dispatcher: dispatcher.held)

    def give_back(self) -> None:
        """Take all messages from consumers, to deliver them again. Their later acknowledgements count, too."""
        self._do(lambda now: [_Discard(tuple(self._consumers)), *self._dispatcher.rewind(now)])

    def acked_ranges(self) -> AckedRanges:
        """Return what is acknowledged now."""

        def read(cursor: Cursor, _: Dispatcher) -> AckedRanges:
            acked, expired = RangeSet(), RangeSet()
            acked.add_ranges(*cursor.acks.acked())
            if cursor.mark.offset:
                acked.add(0, cursor.mark.offset)
            expired.add_ranges(*self._expired.intersect())
            acked.remove_ranges(*expired.intersect())
            properties = cursor.properties
            return AckedRanges(self.era, acked, expired, properties.get(HEADER, 0), properties.get(EXPIRED, 0))

        return self.inspect(read)

    def take_acked(self, era: int) -> tuple[RangeSet, RangeSet] | None:
        """Return what was acknowledged, and what expired, since the last call for the watcher.

        Some of it may have been acknowledged, or have expired, before. The first call, and the first one of an era,
        return everything. The cost depends on what is returned.

        Args:
            era: the era that the caller knows.

        Returns:
            Offsets that were acknowledged, and offsets that expired; None, and nothing is taken: it is another era.
        """

        def take(cursor: Cursor, _: Dispatcher) -> tuple[RangeSet, RangeSet] | None:
            if era != self.era:
                return None
            acked, expired = RangeSet(), self._expired_lately
            self._expired_lately = RangeSet()
            acked.add_ranges(*cursor.acks.take_acked())
            if self._expired and acked:
                acked.remove_ranges(*self._expired.intersect(acked.first or 0, (acked.last or 0) + 1))
            return acked, expired

        return self.inspect(take)

    def note_header(self, header: int, era: int) -> None:
        """Store with the acknowledgements of an era which state of all clusters they belong to."""

        def note(_: int) -> list[Effect]:
            if era != self.era or self.cursor.properties.get(HEADER, 0) == header:
                return []
            self.cursor.set_properties({HEADER: header})
            return [CursorChanged()]

        self._do(note)

    def _note_expired(self, end: int) -> None:
        """Note, in a step, that what is not acknowledged below `end` expires."""
        if self._watcher is None:
            return
        mark = self.cursor.mark.offset
        acked = self.cursor.acks.acked(mark, end)
        for expired in (self._expired, self._expired_lately):
            expired.add(mark, end)
            expired.remove_ranges(*acked)
        self.cursor.set_properties({EXPIRED: max(end, self.cursor.properties.get(EXPIRED, 0))})

    def acknowledge_elsewhere(
        self,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        *,
        batch: MessageBatch | None = None,
        if_: Callable[[], bool] = lambda: True,
    ) -> AppendFuture[None]:
        """Acknowledge ranges of offsets, whichever consumer has them, because they are acknowledged in other clusters.

        batch: entries of the topic that were not read before; their messages are acknowledged at once. if_: called in
        the step; False: do nothing. The future is done when the cursor has all of them.
        """

        def acknowledge(now_us: int) -> list[Effect]:
            if not if_():
                return []
            effects = self._dispatcher.grew(self.managed.end.offset, now_us)
            if batch is not None:
                self.cursor.deliver(batch)
            return effects + self._acknowledge_ranges(starts, ends, now_us)

        self._do(acknowledge)
        return self._settled()

    def _acknowledge_ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64], now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        is_short = ends - starts < RANGE_MESSAGES
        if is_short.any():
            effects += self._dispatcher.acknowledge(NOBODY, offsets_in(starts[is_short], ends[is_short]), now_us)
        for start, end in zip(starts[~is_short].tolist(), ends[~is_short].tolist(), strict=True):
            effects += self._dispatcher.acknowledge_range(NOBODY, start, end, now_us)
        return effects

    def rebuild(
        self,
        total: TopicPosition,
        entries: tuple[NDArray[np.int64], ...],
        ranges: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> int:
        """Set the acknowledgements, in one step: everything below `total`, and `ranges`. Consumers begin again.

        entries: columns of those that hold messages of the ranges, for `AckSet.note_entries`; empty: none. Returns the
        era. Raises TrimmedError.
        """

        def rebuild(now_us: int) -> list[Effect | _Discard]:
            effects = self._move(total, now_us)
            if entries:
                self.cursor.note_entries(entries)
            effects += self._dispatcher.grew(self.managed.end.offset, now_us)
            effects += self._acknowledge_ranges(*ranges, now_us)
            return effects

        self._do(rebuild)
        return self.era

    # ---- state ------------------------------------------------------------------------------------------

    def inspect(self, call: Callable[[Cursor, Dispatcher], T]) -> T:
        """Return the result of a call that reads the cursor and the dispatcher while neither changes."""
        with self._lock:
            return call(self.cursor, self._dispatcher)

    @property
    def is_unstored(self) -> bool:
        """Whether a crash now would bring back acknowledged messages."""
        return self.inspect(lambda cursor, _: cursor.has_changes or cursor.durable_mark.offset < cursor.mark.offset)

    def durable_mark(self) -> int:
        """Return the offset below which the subscription needs no message, even after a crash."""
        mark, watcher = self.inspect(lambda cursor, _: cursor.durable_mark.offset), self._watcher
        return mark if watcher is None else min(mark, watcher.journaled_mark(self))

    def oldest_us(self) -> int | None:
        """Return the append time of the first unacknowledged message; None: there is none.

        May read an entry, and wait for it. Raises the errors of `ManagedLedger.read`.
        """
        mark = self.cursor.mark.offset
        if mark >= self.managed.end.offset:
            return None
        if self._oldest[0] != mark:
            batch = wait_while_connected(self.wait, self.managed.read(mark, bytes_max=1))
            self._oldest = (mark, int(batch.publish_time[0]))
        return self._oldest[1]

    def oldest_due_us(self) -> int | None:
        """Return since when the first message that is due could have been delivered; None: none is due.

        Without a consumer it is not known which messages are delayed. Otherwise like `oldest_us`.
        """
        end = self.managed.end.offset
        first = self.inspect(lambda _, dispatcher: dispatcher.first_due(end))
        if first >= end:
            return None
        if self._oldest_due[0] != first:
            batch = wait_while_connected(self.wait, self.managed.read(first, bytes_max=1))
            at = int(np.searchsorted(batch.offset, first))
            deliver_at = int(batch.deliver_at[at]) if self._delays else 0
            self._oldest_due = (first, max(int(batch.publish_time[at]), deliver_at))
        due_us = self._oldest_due[1]
        return None if due_us > self._clock.now_us() else due_us

    def count_delayed(self) -> int | None:
        """Return the number of delayed messages while there is no consumer; None: the backlog is too long.

        May read the backlog, and wait for it. Raises the errors of `ManagedLedger.read`.
        """
        return self._delayed.count(self._clock.now_us()) if self._delays else 0

    @property
    def _delays(self) -> bool:
        """Whether messages wait for their `deliver_at`."""
        return self.settings.type in ("shared", "key_shared")

    # ---- the end --------------------------------------------------------------------------------------------

    def fail(self, error: ReplogError) -> None:
        """Stop delivering and storing, because another process owns the topic, or it was deleted."""
        with self._lock:
            self._failed = self._failed or error
        consumers = self.attached()
        self._stop()
        for consumer in consumers:
            consumer.failed(error)

    def _stop(self) -> None:
        """Carry out no more effects."""
        self._is_stopped = True
        with suppress(ValueError):  # it did not follow the topic (any more)
            self.managed.on_grow.remove(self.grew)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake[1].cancel()
        self._locator.stop()

    def store(self) -> AppendFuture[None]:
        """Close the consumers and store their acknowledgements, when the topic is closed."""
        for consumer in self.attached():
            consumer.close()
        return self._stored(CursorPersister.store_clean)

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """End the subscription. deleted: it does not exist any more."""
        self.fail(error)
        if self.persister is not None:
            self.persister.close(deleted=deleted)


def _give_up(done: AppendFuture[bool]) -> None:
    set_result(done, False)
