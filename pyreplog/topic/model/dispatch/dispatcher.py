"""Dispatcher of a subscription, as a state machine: what is read, which consumer gets it, what comes again.

Rules and their sources (classes are Pulsar's): one machine for all types, with a selector for what differs (there it is
three dispatchers, each twice); a rewind forgets the reads under way, which there overwrite the position (#26106);
permits are spent by what is delivered and by nothing else (#24189 and its kin); keys move once they are drained
(PIP-379); blocked at a limit, delivery goes on at half of it (PersistentDispatcherMultipleConsumers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidArgumentError, SubscriptionBusyError
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.effects import (
    ActiveConsumerChanged,
    DeadLetter,
    Deliver,
    Dirty,
    Effect,
    Locate,
    WakeAt,
)
from pyreplog.topic.model.dispatch.key_shared_selector import KeySharedSelector
from pyreplog.topic.model.dispatch.offsets import Offsets, ascending, runs
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges, Released
from pyreplog.topic.model.dispatch.reading import Reading, Reread
from pyreplog.topic.model.dispatch.redelivery import (
    Cause,
    DelayedDeliveryTracker,
    Ranges,
    Redeliveries,
    Replay,
    neighbours,
)
from pyreplog.topic.model.dispatch.selector import (
    Assignment,
    AttachedConsumer,
    Consumers,
    RoundRobinSelector,
    Selector,
    SingleActiveSelector,
)
from pyreplog.topic.model.positions import EntryPosition, TopicPosition
from pyreplog.topic.model.routing import partition_of


class ConsumerStatus(NamedTuple):
    """permits: messages it still asked for; unacked: those that it has; is_blocked: too many of them."""

    id: int
    name: str
    priority: int
    permits: int
    unacked: int
    is_blocked: bool
    is_active: bool
    delivered: int
    acknowledged: int


class DispatchStatus(NamedTuple):
    """One subscription's delivery.

    position: next offset to be read; end: of the topic. reads: under way; forgotten: those of before a rewind.
    in_hand: messages read that nobody has room for; replay: to be read again, now or later; delayed: waiting for their
    time; aside: waiting for their key or its consumer; unacked: delivered; dead_letters: being published elsewhere.
    redelivered: messages whose redeliveries are counted. next_us: when something is due. waits: why nothing is
    delivered or read, in words; empty when nothing holds it up.
    """

    position: int
    end: int
    reads: int
    forgotten: int
    read_failures: int
    in_hand: int
    replay: int
    delayed: int
    aside: int
    unacked: int
    dead_letters: int
    redelivered: int
    next_us: int | None
    consumers: tuple[ConsumerStatus, ...]
    waits: tuple[str, ...]


TRACKED_MAX = 1 << 17
"""While so many ranges of offsets wait for their time, nothing is read ahead."""

TICK_MIN_US = 10_000
"""Messages whose time for an acknowledgement is over are looked for no more often."""

_SELECTORS: dict[str, Callable[[Consumers, int | None], Selector]] = {
    "exclusive": lambda consumers, partition: SingleActiveSelector(consumers, partition, is_exclusive=True),
    "failover": lambda consumers, partition: SingleActiveSelector(consumers, partition, is_exclusive=False),
    "shared": lambda consumers, _: RoundRobinSelector(consumers),
    "key_shared": lambda consumers, _: KeySharedSelector(consumers),
}


def _pending(settings: SubscriptionConfig) -> Pending | PendingRanges:
    is_plain = settings.type in ("exclusive", "failover") and settings.ack_timeout_ms is None
    return PendingRanges() if is_plain else Pending()


class Dispatcher:
    """Delivers one subscription of `topic`. Methods return effects, to be carried out in their order.

    cursor: what is acknowledged; it is changed here only, or `moved` is told. start, end: offsets of the topic's first
    message that is kept, and behind its last one that may be read. Times: µs of a clock that nobody sets, but for
    messages' `deliver_at`, which is compared with `wall_us`, the µs since 1970. It is observed by shared and key_shared
    subscriptions; the others, which keep the order, ignore it. When the last consumer leaves, all but the counts of
    redeliveries is forgotten: the next one gets everything unacknowledged, from the mark on. Not for several threads at
    once.

    A message that is not acknowledged is in one place: still to be read, in hand, with a consumer (`_pending`), to be
    read again (`_replay`, `_delayed`, or put aside by the selector), or being published as a dead letter.
    """

    def __init__(
        self,
        cursor: Cursor,
        settings: SubscriptionConfig,
        *,
        topic: str,
        start: int,
        end: int,
        wall_us: Callable[[], int],
    ) -> None:
        self._topic, self._cursor, self._start, self._wall_us = topic, cursor, start, wall_us
        part = partition_of(topic)
        self._partition = None if part is None else part[1]
        self.end = end
        """Messages below it can be delivered, and acknowledged."""
        self.settings = settings
        self._pending = _pending(settings)
        self._consumers = Consumers(self._pending, settings.max_unacked_consumer)
        self._selector = _SELECTORS[settings.type](self._consumers, self._partition)
        self._redeliveries = Redeliveries()
        # the first by monotonic time, the other by the wall's
        self._replay, self._delayed = Replay(), DelayedDeliveryTracker()
        self._due = (0, 0)  # when the first of `_delayed` is due: by the wall, and what that was when it was looked at
        self._again: MessageBatch | None = None  # in hand, read again
        self._fresh: deque[MessageBatch] = deque()  # in hand, read ahead
        self._reading = Reading(self._floor)
        self._has_acked = False  # some of what is in hand may be acknowledged
        self._is_blocked = False  # too much is unacknowledged
        self._look_us = 0  # when to look for acknowledgements that are late
        self._armed_us: int | None = None  # when it is to be woken

    def configure(self, settings: SubscriptionConfig) -> None:
        """Change the settings. SubscriptionBusyError: there are consumers."""
        if len(self._consumers):
            raise self._busy("to change its settings, expected no consumer")
        self.settings = settings  # nothing is on its way but dead letters
        dead = self._pending.release_holder(DEAD_LETTERS)
        self._pending = _pending(settings)
        self._pending.hold(dead.offsets, DEAD_LETTERS, None, 0)
        self._consumers = Consumers(self._pending, settings.max_unacked_consumer)
        self._selector = _SELECTORS[settings.type](self._consumers, self._partition)

    def _busy(self, expected: str) -> SubscriptionBusyError:
        names = ", ".join(consumer.name for consumer in self._consumers)
        subscription = f"subscription {self._cursor.name} ({self.settings.type})"
        return SubscriptionBusyError(self._topic, f"{subscription}: {expected}, found {names}")

    # ---- consumers ------------------------------------------------------------------------------------------

    def attach(self, consumer: int, name: str, now_us: int, *, priority: int = 0) -> list[Effect]:
        """Attach a consumer under a number of its own; those of a lower priority number are served first.

        SubscriptionBusyError: the subscription is exclusive and has one.
        """
        if consumer in self._consumers.by_id:
            raise InvalidArgumentError(f"consumer: expected a new number, found {consumer}")
        if not self._selector.admits():
            raise self._busy("expected no other consumer")
        before = self._selector.active
        self._selector.joined(self._consumers.add(consumer, name, priority))
        after = self._selector.active
        if after is before:
            return self._run(now_us)
        if before is not None:
            self._rewind(Cause.CONSUMER_LOST)
        return _changed(before, after) + self._run(now_us)

    def detach(self, consumer: int, now_us: int) -> list[Effect]:
        """Detach a consumer: the others get all that it has not acknowledged."""
        before = self._selector.active
        gone = self._consumers.remove(consumer)
        if gone is None:
            return []
        self._selector.left(gone)
        after = self._selector.active
        if not len(self._consumers) or after is not before:
            self._rewind(Cause.CONSUMER_LOST)
        else:
            self._give_back(self._pending.release_holder(gone.holder), Cause.CONSUMER_LOST)
            self._unblock()
        effects = [] if after is before else _changed(None if before is gone else before, after)
        return effects + self._run(now_us)

    def flow(self, consumer: int, messages: int, now_us: int) -> list[Effect]:
        """Note that a consumer has room for so many more messages."""
        attached = self._consumers.by_id.get(consumer)
        if attached is None:
            return []
        if messages < 1:
            raise InvalidArgumentError(f"messages: expected at least 1, found {messages}")
        attached.permits += messages
        self._selector.has_changed()
        return self._run(now_us)

    # ---- the topic ------------------------------------------------------------------------------------------

    def grew(self, end: int, now_us: int) -> list[Effect]:
        """Note that messages up to `end` may be read."""
        self.end = max(self.end, end)
        return self._run(now_us)

    def trimmed(self, start: int, now_us: int) -> list[Effect]:
        """Note that the messages below `start` are gone. The owner moves the cursor."""
        if start > self._start:
            before, self._start = self._start, start
            self._settle_range(before, start)
        return self._go_on(now_us)

    def entries(self, read_id: int, batch: MessageBatch, now_us: int) -> list[Effect]:
        """Take the entries that a read brought. No entries count as a failure."""
        begun_at = self._reading.starts_at(read_id)
        if begun_at is not None and batch.end <= begun_at:
            return self._failed(read_id, f"nothing was read at {begun_at}", now_us)
        if begun_at is None:
            return self._run(now_us)
        self.end = max(self.end, batch.end)
        effects: list[Effect] = []
        reread, left = self._reading.answered(read_id, batch)
        if left is not None:
            self._want_again(left)
        if reread is not None:
            reread = self._filter(reread, effects, now_us)
            self._again = reread if len(reread) else None
        return effects + self._run(now_us)

    def read_failed(self, read_id: int, error: Exception, now_us: int) -> list[Effect]:
        """Note that a read failed; another one reads the same a little later."""
        if self._reading.starts_at(read_id) is None:
            return self._run(now_us)
        return self._failed(read_id, str(error), now_us)

    def _failed(self, read_id: int, why: str, now_us: int) -> list[Effect]:
        again = self._reading.failed(read_id, why, now_us)
        if again is not None:
            self._want_again(again)
        return self._run(now_us)

    def _want_again(self, again: Reread) -> None:
        """Note that a replay was not read, or not all of it."""
        if not again.of_blocked:
            self._replay.add_ranges(again.ranges)

    def woken(self, now_us: int) -> list[Effect]:
        """Note that the time of a `WakeAt` has come, or that the wall clock was set: messages may be due."""
        self._due = (0, 0)
        if self._armed_us is not None and now_us >= self._armed_us:
            self._armed_us = None
        return self._run(now_us)

    # ---- acknowledgements -----------------------------------------------------------------------------------

    def acknowledge(self, consumer: int, offsets: Offsets, now_us: int) -> list[Effect]:
        """Acknowledge offsets, whichever consumer has them: they are not delivered again. OutOfRangeError: one lies
        beyond the end of the topic."""
        offsets = ascending(offsets)
        unknown = self._cursor.acknowledge(offsets, self.end, now_us)
        known = np.setdiff1d(offsets, unknown, assume_unique=True) if len(unknown) else offsets
        if len(known):
            released = self._pending.release(known)
            self._settle(known, released)
            self._count(consumer, len(released.offsets))
        return self._acknowledged(consumer, runs(ascending(unknown)), now_us, is_dirty=len(known) > 0)

    def acknowledge_range(self, consumer: int, start: int, end: int, now_us: int) -> list[Effect]:
        """Acknowledge all from start up to end; otherwise as `acknowledge`."""
        if start == end:
            return []
        unknown = self._cursor.acknowledge_range(start, end, self.end, now_us)
        if not unknown:
            self._count(consumer, self._settle_range(start, end))
            return [Dirty(), *self._go_on(now_us)]
        at = start
        for low, high in [*unknown, (end, end)]:
            if at < low:
                self._count(consumer, self._settle_range(at, low))
            at = high
        ranges = np.array(unknown, np.int64)
        left = end - start - int((ranges[:, 1] - ranges[:, 0]).sum())
        return self._acknowledged(consumer, (ranges[:, 0], ranges[:, 1]), now_us, is_dirty=left > 0)

    def cumulative(self, consumer: int, place: EntryPosition, to: int, now_us: int) -> list[Effect]:
        """Acknowledge everything below `to`; place: the entry that holds `cursor.cumulative_start(to)`, or ends there.

        InvalidArgumentError: the subscription is shared; what `Cursor.cumulative` raises.
        """
        if self.settings.type in ("shared", "key_shared"):
            raise InvalidArgumentError(f"a {self.settings.type} subscription acknowledges messages one by one")
        before = self._floor
        self._cursor.cumulative(place, to, self.end, now_us)
        self._count(consumer, self._settle_range(before, self._floor))
        return [Dirty(), *self._go_on(now_us)]

    def moved(self, before: int, now_us: int) -> list[Effect]:
        """Note that the owner moved the cursor's mark forward, from offset `before`, and changed nothing else of it."""
        self._settle_range(before, self._floor)
        return [Dirty(), *self._go_on(now_us)]

    def advance(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """Skip everything before an entry, which `total` lies before; see `Cursor.advance`. Messages whose
        acknowledgements the cursor forgets by that come again."""
        before, (starts, ends) = self._floor, self._cursor.acks.acked(total.offset)
        self._cursor.advance(total, now_us)
        ends = np.minimum(ends, self._reading.position)
        lost = ~self._cursor.mask(starts) & (starts < ends)
        self._replay.add_ranges((starts[lost], ends[lost]))
        return self.moved(before, now_us)

    def _settle(self, known: Offsets, released: Released) -> None:
        """Drop ascending offsets that were acknowledged everywhere; some consumer had `released` of them."""
        self._selector.released(released)
        self._redeliveries.forget(known)
        if len(released.offsets) < len(known):
            self._replay.forget(known)
            self._selector.forget(known)
            self._has_acked = True

    def _settle_range(self, start: int, end: int) -> int:
        """The same for all from start up to end; how many of them consumers had."""
        if isinstance(self._pending, PendingRanges):  # where no selector asks which these were
            count = self._pending.drop_range(start, end)
        else:
            released = self._pending.release_range(start, end)
            self._selector.released(released)
            count = len(released.offsets)
        self._redeliveries.forget_range(start, end)
        if count < end - start:
            self._replay.forget_range(start, end)
            self._selector.forget_range(start, end)
            self._has_acked = True
        return count

    def _count(self, consumer: int, messages: int) -> None:
        attached = self._consumers.by_id.get(consumer)
        if attached is not None:
            attached.acknowledged += messages

    def _acknowledged(
        self, consumer: int, unknown: tuple[Offsets, Offsets], now_us: int, *, is_dirty: bool
    ) -> list[Effect]:
        effects: list[Effect] = [Dirty()] if is_dirty else []
        if len(unknown[0]):
            effects.append(Locate(consumer, *unknown))
        return effects + self._go_on(now_us)

    def _go_on(self, now_us: int) -> list[Effect]:
        """Some messages need no delivery any more."""
        self._reading.pass_over(self._floor)
        self._unblock()
        return self._run(now_us)

    # ---- redelivery -----------------------------------------------------------------------------------------

    def nack(
        self, consumer: int, offsets: Offsets, now_us: int, *, delay_us: int | None = None, reason: str | None = None
    ) -> list[Effect]:
        """Take messages back from a consumer: they come again after a while, longer each time, or after `delay_us`.

        reason: why, as the consumer says; kept for dead letters, where there are any.
        """
        attached = self._consumers.by_id.get(consumer)
        if attached is None:
            return []
        released = self._pending.release(ascending(offsets), attached.holder)
        self._redeliveries.returned(released.offsets, Cause.NACK)
        if reason is not None and self.settings.max_redeliveries is not None:
            self._redeliveries.explain(released.offsets, reason)
        self._selector.released(released)
        if delay_us is not None or not len(self._redeliveries):
            self._replay.add_later(released.offsets, now_us + self._wait_us(0, delay_us), now_us)
        else:
            counts = np.array([self._redeliveries.count(offset) for offset in released.offsets.tolist()])
            for count in np.unique(counts).tolist():
                waiting = released.offsets[counts == count]
                self._replay.add_later(waiting, now_us + self._wait_us(count, None), now_us)
        self._unblock()
        return self._run(now_us)

    def _wait_us(self, count: int, delay_us: int | None) -> int:
        settings = self.settings
        if delay_us is not None:
            return max(delay_us, 0)
        return 1000 * min(settings.nack_min_ms << min(count, 40), settings.nack_max_ms)

    def redeliver_unacked(self, consumer: int, now_us: int) -> list[Effect]:
        """Deliver again all that a consumer has, to it or to others. It has dropped them."""
        attached = self._consumers.by_id.get(consumer)
        if attached is None:
            return []
        if self._selector.active is attached:
            return self.rewind(now_us)
        self._give_back(self._pending.release_holder(attached.holder), Cause.REDELIVER)
        self._unblock()
        return self._run(now_us)

    def dead_letters_failed(self, offsets: Offsets, now_us: int) -> list[Effect]:
        """Note that dead letters were not published: they are published, or delivered, later."""
        released = self._pending.release(ascending(offsets), DEAD_LETTERS)
        self._redeliveries.returned(released.offsets, None)
        self._replay.add_later(released.offsets, now_us + 1000 * self.settings.nack_max_ms, now_us)
        self._unblock()
        return self._run(now_us)

    def rewind(self, now_us: int) -> list[Effect]:
        """Deliver all that is not acknowledged again, from the mark on. Consumers have dropped what they had."""
        self._rewind(Cause.REDELIVER)
        return self._run(now_us)

    def seek(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """Go on from there, back or forward: everything before is acknowledged, nothing behind. Consumers have
        dropped what they had. Dead letters on their way stay so."""
        self._cursor.seek(total, now_us)
        self._rewind(Cause.REDELIVER)
        self._redeliveries.clear()
        return [Dirty(), *self._run(now_us)]

    def _give_back(self, released: Released, cause: Cause) -> None:
        """Deliver messages that a consumer had again, as soon as possible."""
        if len(released.offsets):
            self._redeliveries.returned(released.offsets, cause)
            self._selector.released(released)
            if not self._selector.returned(released):
                self._replay.add(released.offsets)

    def _rewind(self, cause: Cause) -> None:
        """Read all that is not acknowledged again, from the mark on. Dead letters stay where they are."""
        self._redeliveries.returned(self._pending.release_consumers().offsets, cause)
        self._selector.clear()
        self._replay, self._delayed = Replay(), DelayedDeliveryTracker()
        self._again = None
        self._fresh.clear()
        self._reading.restart(self._floor)
        self._unblock()

    # ---- where it stands ------------------------------------------------------------------------------------

    def status(self, now_us: int) -> DispatchStatus:
        """Cheap, but for many consumers."""
        reading = self._reading
        self._drop_acked()
        again = 0 if self._again is None else len(self._again)
        consumers = tuple(
            ConsumerStatus(
                attached.id, attached.name, attached.priority, attached.permits, self._pending.count(attached.holder),
                attached.is_blocked, self._selector.active in (None, attached), attached.delivered,
                attached.acknowledged,
            )
            for attached in self._consumers
        )  # fmt: skip
        dead = self._pending.count(DEAD_LETTERS)
        return DispatchStatus(
            position=reading.position,
            end=self.end,
            reads=reading.under_way,
            forgotten=reading.forgotten,
            read_failures=reading.failures,
            in_hand=again + sum(len(batch) for batch in self._fresh),
            replay=self._replay.messages,
            delayed=self._delayed.messages,
            aside=self._selector.waiting(),
            unacked=self._pending.total - dead,
            dead_letters=dead,
            redelivered=len(self._redeliveries),
            next_us=self._next_us(now_us),
            consumers=consumers,
            waits=tuple(self._waits(now_us)),
        )

    def first_due(self, end: int) -> int:
        """The first offset that is not acknowledged, but for those that are known to wait for their time; `end`, of the
        topic, if there is none."""
        at = self._cursor.next_unacked(self._floor)
        if not self._delayed.messages:
            return min(at, end)
        for low, high in zip(*(edge.tolist() for edge in self._delayed.all().intersect(at)), strict=True):
            if at < low:
                break
            at = self._cursor.next_unacked(max(high, at))
        return min(at, end)

    def _waits(self, now_us: int) -> list[str]:
        reading = self._reading
        waits = []
        if not len(self._consumers):
            return ["no consumer"]
        if self._is_blocked:
            waits.append(f"max_unacked: {self._pending.total} messages are not acknowledged")
        elif self._selector.capacity() <= 0:
            waits.append("no consumer has room")
        if reading.retry_us > now_us:
            waits.append(f"a read failed: {reading.error}")
        if reading.under_way:
            waits.append(f"reading: {reading.under_way} under way")
        if not self._selector.has_space():
            waits.append(f"look-ahead: {self._selector.waiting()} messages wait for their keys' consumers")
        if self._delayed.ranges + self._replay.ranges >= TRACKED_MAX:
            waits.append("too many messages wait for their time")
        if reading.position >= self.end:
            waits.append("all is read")
        return waits

    # ---- delivering -------------------------------------------------------------------------------------------

    @property
    def _floor(self) -> int:
        """Nothing below is delivered any more."""
        return max(self._cursor.acks.mark_offset, self._start)

    def _run(self, now_us: int) -> list[Effect]:
        """Deliver all that can be delivered, then read as much as there is room for."""
        effects: list[Effect] = []
        if not self._consumers.by_id:
            return effects
        self._come_due(now_us)
        arrived = self._reading.ready()
        for answer in arrived:
            if len(batch := self._filter(answer, effects, now_us)):
                self._fresh.append(batch)
        if self._again is not None or self._fresh:
            self._place(effects, now_us)
        if arrived and self._fresh:
            self._reading.fell_behind()
        elif arrived:
            self._reading.kept_up()
        if self._reading.position < self.end or self._replay.ready or self._selector.waiting():
            self._read(effects, now_us)  # behind a delivery there is mostly nothing more
        next_us = self._next_us(now_us)
        if next_us is not None and (self._armed_us is None or next_us < self._armed_us):
            self._armed_us = next_us
            effects.append(WakeAt(next_us))
        return effects

    def _come_due(self, now_us: int) -> None:
        due = self._replay.waiting.pop(now_us) if self._replay.waiting.messages else []
        if self._delayed.messages:
            due += self._delayed.pop(self._wall_us())
        for bucket in due:
            self._replay.add_ranges(bucket.intersect(self._floor))
        timeout_us = 1000 * (self.settings.ack_timeout_ms or 0)
        if timeout_us and now_us >= self._look_us:
            self._give_back(self._pending.release_since(now_us - timeout_us), Cause.ACK_TIMEOUT)
            self._look_us = now_us + max(TICK_MIN_US, timeout_us // 8)
            self._unblock()

    # ---- filtering ------------------------------------------------------------------------------------------

    def _drop_acked(self) -> None:
        """Drop acknowledged messages from the batches in hand. Done when these are to be placed, not with each
        acknowledgement: many may come one by one."""
        if not self._has_acked:
            return
        self._has_acked = False
        if self._again is not None:
            self._again = self._without_acked(self._again)
        held = [self._without_acked(batch) for batch in self._fresh]
        self._fresh = deque(batch for batch in held if batch is not None)

    def _without_acked(self, batch: MessageBatch) -> MessageBatch | None:
        wanted = np.flatnonzero(self._wanted(batch.offset))
        return batch.select(wanted) if len(wanted) else None

    def _wanted(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Which messages are kept still, and not acknowledged."""
        wanted: NDArray[np.bool_] = ~self._cursor.mask(offsets) & (offsets >= self._start)
        return wanted

    def _filter(self, batch: MessageBatch, effects: list[Effect], now_us: int) -> MessageBatch:
        """The messages of an answer that can be delivered: not acknowledged, not pending, due, and not delivered too
        often."""
        self._cursor.deliver(batch)
        if self._is_new(batch):
            return batch
        offsets = batch.offset
        wanted = self._wanted(offsets) & ~self._pending.holds(offsets)
        if self._selector.delays:
            wall_us = self._wall_us()
            late = wanted & (batch.deliver_at > wall_us)
            if late.any():
                self._delayed.add_each(offsets[late], batch.deliver_at[late], wall_us)
                self._selector.forget(offsets[late])  # they were due, and put aside, before the clock was set back
                wanted &= ~late
        if self.settings.max_redeliveries is not None:
            dead = self._redeliveries.beyond(offsets[wanted], self.settings.max_redeliveries)
            if len(dead):
                self._make_dead_letters(batch, dead, effects, now_us)
                wanted &= ~np.isin(offsets, dead)
        return batch if wanted.all() else batch.select(np.flatnonzero(wanted))

    def _is_new(self, batch: MessageBatch) -> bool:
        """Whether all of a batch is certain to be deliverable, as mostly: then its messages need not be looked at."""
        start, end = batch.first, batch.last + 1
        return (
            len(batch) == end - start > 0
            and start >= self._start
            and self._cursor.acks.missing(start, end) == end - start
            and self._pending.is_free(start, end)
            and not self._selector.delays
            and (self.settings.max_redeliveries is None or not self._redeliveries.awaited)
        )

    def _make_dead_letters(self, batch: MessageBatch, dead: Offsets, effects: list[Effect], now_us: int) -> None:
        """Make dead letters of as many as may be without an acknowledgement, of the others when they are read again."""
        room = max(self.settings.max_unacked - self._pending.total, 0)
        self._selector.forget(dead)
        self._replay.add(dead[room:])
        dead = dead[:room]
        if len(dead):
            self._pending.hold(dead, DEAD_LETTERS, None, now_us)
            dead_letters = batch.select(np.flatnonzero(np.isin(batch.offset, dead)))
            effects.append(DeadLetter(dead_letters, self._redeliveries.died(dead)))

    # ---- placing --------------------------------------------------------------------------------------------

    def _place(self, effects: list[Effect], now_us: int) -> None:
        """Place the batches in hand with consumers; the one that was read again goes first."""
        if self._has_acked and self._capacity() > 0:
            self._drop_acked()
        while (self._again is not None or self._fresh) and (capacity := self._capacity()) > 0:
            is_fresh = self._again is None
            batch = self._fresh.popleft() if self._again is None else self._again
            placement = self._selector.place(batch, capacity, is_fresh=is_fresh)
            effects.extend([self._assign(share, now_us) for share in placement.shares])
            self._is_blocked = self._is_blocked or self._pending.total >= self.settings.max_unacked
            if not is_fresh:
                self._again = placement.rest
            elif placement.rest is not None:
                self._fresh.appendleft(placement.rest)
            if placement.rest is not None and not placement.shares:
                return

    def _assign(self, share: Assignment, now_us: int) -> Deliver:
        batch, consumer = share.batch, share.consumer
        start, end, counts = batch.first, batch.last + 1, dict[int, int]()
        if share.slots is None and end - start == len(batch) and not self._redeliveries.awaited:
            self._pending.hold_range(start, end, consumer.holder, now_us)
        else:
            self._pending.hold(batch.offset, consumer.holder, share.slots, now_us)
            counts = self._redeliveries.delivered(batch.offset)
        self._consumers.given(consumer, len(batch))
        return Deliver(consumer.id, batch, counts)

    def _capacity(self) -> int:
        """The most messages that can be placed now."""
        if self._is_blocked:
            return 0
        return min(self._selector.capacity(), self.settings.max_unacked - self._pending.total)

    def _unblock(self) -> None:
        """Go on, after acknowledgements or returns, at half of the limit that stopped delivery."""
        if self._is_blocked and self._pending.total <= self.settings.max_unacked // 2:
            self._is_blocked = False
        if self._consumers.unblock():
            self._selector.has_changed()

    # ---- reading --------------------------------------------------------------------------------------------

    def _read(self, effects: list[Effect], now_us: int) -> None:
        capacity, reading = self._capacity(), self._reading
        if capacity <= 0 or not reading.may_begin(now_us):
            return
        if self._again is None and reading.again is None and (self._replay.ready or self._selector.waiting()):
            self._read_again(capacity, effects)
            if not reading.may_begin(now_us):
                return
        if reading.is_idle:
            reading.pass_over(self._cursor.next_unacked(reading.position))
        while self._may_read_on():
            read = reading.begin_ahead(self.end, capacity)
            if read is None:
                return
            effects.append(read)
            if read.end >= self.end or not reading.may_begin(now_us):
                return

    def _read_again(self, capacity: int, effects: list[Effect]) -> None:
        blocked = self._selector.take(capacity)
        if len(blocked):
            ranges: Ranges | None = neighbours(*runs(blocked), capacity)
        else:
            ranges = self._replay.take(capacity) if self._selector.has_space() else None
        if ranges is not None:
            effects.append(self._reading.begin_again(ranges, of_blocked=len(blocked) > 0))

    def _may_read_on(self) -> bool:
        tracked = self._delayed.ranges + self._replay.waiting.ranges + len(self._replay.ready)
        return not self._fresh and self._selector.has_space() and tracked < TRACKED_MAX

    # ---- time -----------------------------------------------------------------------------------------------

    def _next_us(self, now_us: int) -> int | None:
        """The time of the next thing to do that no event leads to."""
        times: list[int | None] = []
        if self._replay.waiting.messages:
            times.append(self._replay.waiting.first_us)
        if self._delayed.messages and (first_us := self._delayed.first_us) is not None:
            times.append(self._delayed_due_us(first_us, now_us))
        if self._reading.retry_us > now_us:
            times.append(self._reading.retry_us)
        if self.settings.ack_timeout_ms is not None and self._pending.total:
            times.append(self._look_us)
        return min((time for time in times if time is not None), default=None) if times else None

    def _delayed_due_us(self, first_us: int, now_us: int) -> int:
        """When the wall will say `first_us`, if nobody sets it until then. The two clocks are compared once, not with
        each step, which would be a little earlier or later each time."""
        if self._due[0] != first_us:
            self._due = first_us, now_us + max(first_us - self._wall_us(), 0)
        return self._due[1]


def _changed(before: AttachedConsumer | None, after: AttachedConsumer | None) -> list[Effect]:
    """Another consumer is the active one; before: who was, if it is still there."""
    told = [(before, False), (after, True)]
    return [ActiveConsumerChanged(consumer.id, active) for consumer, active in told if consumer is not None]
