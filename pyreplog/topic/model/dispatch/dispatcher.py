"""The dispatcher of a subscription, a state machine: it decides about reads, deliveries and redeliveries.

The rules are those of Pulsar, whose classes are named in parentheses. One machine serves all types, with a selector for
the differences (in Pulsar three dispatchers, each twice). A rewind forgets the pending reads, which in Pulsar overwrite
the position (#26106). Only a delivery uses permits (#24189 and related issues). Keys move once they are drained
(PIP-379). Delivery that stopped at a limit goes on at half of it (PersistentDispatcherMultipleConsumers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.range_set import OFFSET_END
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import InvalidArgumentError, SubscriptionBusyError
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.effects import (
    ActiveConsumerChanged,
    CursorChanged,
    DeadLetter,
    Deliver,
    Effect,
    Locate,
    WakeAt,
)
from pyreplog.topic.model.dispatch.key_shared_selector import KeySharedSelector
from pyreplog.topic.model.dispatch.offsets import Offsets, ascending, runs
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges, Released
from pyreplog.topic.model.dispatch.reading import Reading, Reread
from pyreplog.topic.model.dispatch.redelivery import (
    DelayedDeliveryTracker,
    Ranges,
    Redeliveries,
    RedeliveryCause,
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
    """One consumer, as the dispatcher sees it.

    Attributes:
        id: its number.
        name: its name.
        priority: its priority.
        permits: messages that it may still be sent.
        unacked: messages that it has and did not acknowledge.
        is_blocked: it has too many of them.
        is_active: it gets messages.
        delivered: messages that were delivered to it.
        acknowledged: messages that it acknowledged.
    """

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
    """The state of a subscription's delivery.

    Attributes:
        position: offset that is read next.
        end: end of the topic.
        reads: pending reads.
        forgotten: pending reads from before a rewind.
        read_failures: reads that failed in a row.
        in_hand: messages that were read, and for which no consumer has room.
        replay: messages to be read again, now or later.
        delayed: messages that wait for their deliver_at.
        blocked: messages that wait for their key or its consumer.
        unacked: messages that were delivered and not acknowledged.
        dead_letters: messages that are being published to the dead-letter topic.
        redelivered: messages whose redeliveries are counted.
        next_us: when the next timer is due.
        consumers: the consumers.
        waits: why nothing is delivered or read, in words; empty: nothing stops it.
    """

    position: int
    end: int
    reads: int
    forgotten: int
    read_failures: int
    in_hand: int
    replay: int
    delayed: int
    blocked: int
    unacked: int
    dead_letters: int
    redelivered: int
    next_us: int | None
    consumers: tuple[ConsumerStatus, ...]
    waits: tuple[str, ...]


TRACKED_MAX = 1 << 17
"""Reading ahead stops while so many ranges of offsets are delayed."""

TICK_MIN_US = 10_000
"""Shortest interval of the search for messages whose acknowledgement timed out."""

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

    Times are µs of the monotonic clock, except the `deliver_at` of messages, which is compared with `wall_us`, the
    µs since 1970. Shared and key_shared subscriptions observe it; the others, which keep the order, ignore it. When the
    last consumer leaves, all state except the counts of redeliveries is dropped: the next consumer gets all
    unacknowledged messages from the mark on. Not for several threads at once.

    A message that is not acknowledged is in one place: still to be read, in hand, with a consumer (`_pending`), to be
    read again (`_replay`, `_delayed`, or blocked in the selector), or being published as a dead letter.

    Args:
        cursor: the acknowledgements. Only the dispatcher changes it; after other changes the caller calls `moved`.
        settings: settings of the subscription.
        topic: name of the topic.
        start: offset of the topic's first message that is kept.
        end: offset behind the topic's last message that may be read.
        wall_us: returns the µs since 1970.
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
        """Messages below it can be acknowledged, and delivered if they lie below the limit, too."""
        self._limit = OFFSET_END
        self.settings = settings
        self._pending = _pending(settings)
        self._consumers = Consumers(self._pending, settings.max_unacked_consumer)
        self._selector = _SELECTORS[settings.type](self._consumers, self._partition)
        self._redeliveries = Redeliveries()
        # `_replay` by the monotonic clock, `_delayed` by the wall clock
        self._replay, self._delayed = Replay(), DelayedDeliveryTracker()
        self._due = (0, 0)  # when the first of `_delayed` is due, by the wall clock and by the monotonic clock
        self._reread: MessageBatch | None = None  # messages in hand that were read again
        self._fresh: deque[MessageBatch] = deque()  # messages in hand that were read ahead
        self._reading = Reading(self._floor)
        self._has_acked = False  # some messages in hand may be acknowledged
        self._is_blocked = False  # too many messages are unacknowledged
        self._ack_timeouts_us = 0  # when to search for late acknowledgements
        self._armed_us: int | None = None  # time of the last WakeAt

    def configure(self, settings: SubscriptionConfig) -> None:
        """Change the settings. Raises SubscriptionBusyError if there are consumers."""
        if len(self._consumers):
            raise self._busy("to change its settings, expected no consumer")
        self.settings = settings  # only dead letters can be pending
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
        """Attach a consumer under a new number; consumers of a lower priority number are served first.

        Raises SubscriptionBusyError if the subscription is exclusive and has a consumer.
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
            self._rewind(RedeliveryCause.CONSUMER_LOST)
        return _changed(before, after) + self._run(now_us)

    def detach(self, consumer: int, now_us: int) -> list[Effect]:
        """Detach a consumer; the others get all messages that it has not acknowledged."""
        before = self._selector.active
        detached = self._consumers.remove(consumer)
        if detached is None:
            return []
        self._selector.left(detached)
        after = self._selector.active
        if not len(self._consumers) or after is not before:
            self._rewind(RedeliveryCause.CONSUMER_LOST)
        else:
            self._return_messages(self._pending.release_holder(detached.holder), RedeliveryCause.CONSUMER_LOST)
            self._unblock()
        effects = [] if after is before else _changed(None if before is detached else before, after)
        return effects + self._run(now_us)

    def flow(self, consumer: int, messages: int, now_us: int) -> list[Effect]:
        """Add a number of messages to a consumer's permits."""
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
        """Note that the messages below `start` were removed. The owner moves the cursor."""
        if start > self._start:
            before, self._start = self._start, start
            self._settle_range(before, start)
        return self._resume_after_acks(now_us)

    def entries(self, read_id: int, batch: MessageBatch, now_us: int) -> list[Effect]:
        """Take the result of a read. A result without entries counts as a failure."""
        begun_at = self._reading.starts_at(read_id)
        if begun_at is not None and batch.end <= begun_at:
            return self._failed(read_id, f"nothing was read at {begun_at}", now_us)
        if begun_at is None:
            return self._run(now_us)
        self.end = max(self.end, batch.end)
        effects: list[Effect] = []
        reread, rest = self._reading.answered(read_id, batch)
        if rest is not None:
            self._replay_unread(rest)
        if reread is not None:
            reread = self._filter(reread, effects, now_us)
            self._reread = reread if len(reread) else None
        return effects + self._run(now_us)

    def read_failed(self, read_id: int, error: Exception, now_us: int) -> list[Effect]:
        """Note that a read failed. The same range is read again after a delay."""
        if self._reading.starts_at(read_id) is None:
            return self._run(now_us)
        return self._failed(read_id, str(error), now_us)

    def _failed(self, read_id: int, why: str, now_us: int) -> list[Effect]:
        reread = self._reading.failed(read_id, why, now_us)
        if reread is not None:
            self._replay_unread(reread)
        return self._run(now_us)

    def _replay_unread(self, reread: Reread) -> None:
        """Add the ranges of a replay that were not read to `_replay` again."""
        if not reread.of_blocked:
            self._replay.add_ranges(reread.ranges)

    def woken(self, now_us: int) -> list[Effect]:
        """Note that the time of a `WakeAt` has come, or that the wall clock was set, so messages may be due."""
        self._due = (0, 0)
        if self._armed_us is not None and now_us >= self._armed_us:
            self._armed_us = None
        return self._run(now_us)

    def limit_to(self, offset: int, now_us: int) -> list[Effect]:
        """Read no messages from `offset` on, because their acknowledgements are not known yet. Delivered messages stay
        delivered.

        With 0 no message is delivered: neither messages that were read already, nor redeliveries.
        """
        self._limit = offset
        return self._run(now_us)

    # ---- acknowledgements -----------------------------------------------------------------------------------

    def acknowledge(self, consumer: int, offsets: Offsets, now_us: int) -> list[Effect]:
        """Acknowledge offsets, whichever consumer has them.

        Raises OutOfRangeError if one lies beyond the end of the topic.
        """
        offsets = ascending(offsets)
        unknown = self._cursor.acknowledge(offsets, self.end, now_us)
        known = np.setdiff1d(offsets, unknown, assume_unique=True) if len(unknown) else offsets
        if len(known):
            released = self._pending.release(known)
            self._settle(known, released)
            self._count_acked(consumer, len(released.offsets))
        return self._acknowledged(consumer, runs(ascending(unknown)), now_us, is_dirty=len(known) > 0)

    def acknowledge_range(self, consumer: int, start: int, end: int, now_us: int) -> list[Effect]:
        """Acknowledge all messages of [start, end), as `acknowledge` does."""
        if start == end:
            return []
        unknown = self._cursor.acknowledge_range(start, end, self.end, now_us)
        if not unknown:
            self._count_acked(consumer, self._settle_range(start, end))
            return [CursorChanged(), *self._resume_after_acks(now_us)]
        at = start
        for low, high in [*unknown, (end, end)]:
            if at < low:
                self._count_acked(consumer, self._settle_range(at, low))
            at = high
        ranges = np.array(unknown, np.int64)
        left = end - start - int((ranges[:, 1] - ranges[:, 0]).sum())
        return self._acknowledged(consumer, (ranges[:, 0], ranges[:, 1]), now_us, is_dirty=left > 0)

    def cumulative(self, consumer: int, place: EntryPosition, to: int, now_us: int) -> list[Effect]:
        """Acknowledge all messages below `to`. place: the entry that holds `cursor.cumulative_start(to)`, or ends
        there.

        Raises InvalidArgumentError if the subscription is shared, and the errors of `Cursor.cumulative`.
        """
        if self.settings.type in ("shared", "key_shared"):
            raise InvalidArgumentError(f"a {self.settings.type} subscription acknowledges messages one by one")
        before = self._floor
        self._cursor.cumulative(place, to, self.end, now_us)
        self._count_acked(consumer, self._settle_range(before, self._floor))
        return [CursorChanged(), *self._resume_after_acks(now_us)]

    def moved(self, before: int, now_us: int) -> list[Effect]:
        """Note that the owner moved the cursor's mark forward from offset `before`, and changed nothing else."""
        self._settle_range(before, self._floor)
        return [CursorChanged(), *self._resume_after_acks(now_us)]

    def advance(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """Skip all messages before the entry at `total`; see `Cursor.advance`.

        Messages whose acknowledgements the cursor forgets are delivered again.
        """
        before, (starts, ends) = self._floor, self._cursor.acks.acked(total.offset)
        self._cursor.advance(total, now_us)
        ends = np.minimum(ends, self._reading.position)
        lost = ~self._cursor.mask(starts) & (starts < ends)
        self._replay.add_ranges((starts[lost], ends[lost]))
        return self.moved(before, now_us)

    def _settle(self, known: Offsets, released: Released) -> None:
        """Drop acknowledged offsets, which ascend. The `released` ones were with consumers."""
        self._selector.released(released)
        self._redeliveries.forget(known)
        if len(released.offsets) < len(known):
            self._replay.forget(known)
            self._selector.forget(known)
            self._has_acked = True

    def _settle_range(self, start: int, end: int) -> int:
        """Drop acknowledged offsets of [start, end); return how many of them were with consumers."""
        if isinstance(self._pending, PendingRanges):  # their selectors do not need the offsets
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

    def _count_acked(self, consumer: int, messages: int) -> None:
        attached = self._consumers.by_id.get(consumer)
        if attached is not None:
            attached.acknowledged += messages

    def _acknowledged(
        self, consumer: int, unknown: tuple[Offsets, Offsets], now_us: int, *, is_dirty: bool
    ) -> list[Effect]:
        effects: list[Effect] = [CursorChanged()] if is_dirty else []
        if len(unknown[0]):
            effects.append(Locate(consumer, *unknown))
        return effects + self._resume_after_acks(now_us)

    def _resume_after_acks(self, now_us: int) -> list[Effect]:
        """Continue after messages were acknowledged."""
        self._reading.pass_over(self._floor)
        self._unblock()
        return self._run(now_us)

    # ---- redelivery -----------------------------------------------------------------------------------------

    def nack(
        self, consumer: int, offsets: Offsets, now_us: int, *, delay_us: int | None = None, reason: str | None = None
    ) -> list[Effect]:
        """Take messages back from a consumer; they are delivered again after the back-off, or after `delay_us`.

        reason: text of the consumer, kept for dead letters if there are any.
        """
        attached = self._consumers.by_id.get(consumer)
        if attached is None:
            return []
        released = self._pending.release(ascending(offsets), attached.holder)
        self._redeliveries.returned(released.offsets, RedeliveryCause.NACK)
        if reason is not None and self.settings.max_redeliveries is not None:
            self._redeliveries.explain(released.offsets, reason)
        self._selector.released(released)
        if delay_us is not None or not len(self._redeliveries):
            self._replay.add_later(released.offsets, now_us + self._backoff_us(0, delay_us), now_us)
        else:
            counts = np.array([self._redeliveries.count(offset) for offset in released.offsets.tolist()])
            for count in np.unique(counts).tolist():
                waiting = released.offsets[counts == count]
                self._replay.add_later(waiting, now_us + self._backoff_us(count, None), now_us)
        self._unblock()
        return self._run(now_us)

    def _backoff_us(self, count: int, delay_us: int | None) -> int:
        settings = self.settings
        if delay_us is not None:
            return max(delay_us, 0)
        return 1000 * min(settings.nack_min_ms << min(count, 40), settings.nack_max_ms)

    def redeliver_unacked(self, consumer: int, now_us: int) -> list[Effect]:
        """Deliver all messages of a consumer again, to that consumer or to others. The consumer has dropped them."""
        attached = self._consumers.by_id.get(consumer)
        if attached is None:
            return []
        if self._selector.active is attached:
            return self.rewind(now_us)
        self._return_messages(self._pending.release_holder(attached.holder), RedeliveryCause.REDELIVER)
        self._unblock()
        return self._run(now_us)

    def dead_letters_failed(self, offsets: Offsets, now_us: int) -> list[Effect]:
        """Note that dead letters were not published; they are published, or delivered, later."""
        released = self._pending.release(ascending(offsets), DEAD_LETTERS)
        self._redeliveries.returned(released.offsets, None)
        self._replay.add_later(released.offsets, now_us + 1000 * self.settings.nack_max_ms, now_us)
        self._unblock()
        return self._run(now_us)

    def rewind(self, now_us: int) -> list[Effect]:
        """Deliver all unacknowledged messages again, from the mark on. The consumers have dropped theirs."""
        self._rewind(RedeliveryCause.REDELIVER)
        return self._run(now_us)

    def seek(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """Move to `total`, back or forward: all messages before it are acknowledged, none behind.

        The consumers have dropped their messages. Pending dead letters stay pending.
        """
        self._cursor.seek(total, now_us)
        self._rewind(RedeliveryCause.REDELIVER)
        self._redeliveries.clear()
        return [CursorChanged(), *self._run(now_us)]

    def _return_messages(self, released: Released, cause: RedeliveryCause) -> None:
        """Deliver messages of a consumer again, as soon as possible."""
        if len(released.offsets):
            self._redeliveries.returned(released.offsets, cause)
            self._selector.released(released)
            if not self._selector.returned(released):
                self._replay.add(released.offsets)

    def _rewind(self, cause: RedeliveryCause) -> None:
        """Read all unacknowledged messages again, from the mark on. Pending dead letters stay pending."""
        self._redeliveries.returned(self._pending.release_consumers().offsets, cause)
        self._selector.clear()
        self._replay, self._delayed = Replay(), DelayedDeliveryTracker()
        self._reread = None
        self._fresh.clear()
        self._reading.restart(self._floor)
        self._unblock()

    # ---- status ------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of messages that are with consumers, and of dead letters that are being published."""
        return self._pending.total

    def status(self, now_us: int) -> DispatchStatus:
        """Return the status. Cheap, except with many consumers."""
        reading = self._reading
        self._drop_acked()
        reread = 0 if self._reread is None else len(self._reread)
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
            in_hand=reread + sum(len(batch) for batch in self._fresh),
            replay=self._replay.messages,
            delayed=self._delayed.messages,
            blocked=self._selector.waiting(),
            unacked=self._pending.total - dead,
            dead_letters=dead,
            redelivered=len(self._redeliveries),
            next_us=self._next_us(now_us),
            consumers=consumers,
            waits=tuple(self._waits(now_us)),
        )

    def first_due(self, end: int) -> int:
        """Return the first unacknowledged offset that is not delayed, as far as known; `end` if there is none.

        end: end of the topic.
        """
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
        if reading.position >= self._limit:
            waits.append(f"messages from {self._limit} on wait for acknowledgements of other clusters")
        if reading.position >= self.end:
            waits.append("all is read")
        return waits

    # ---- delivering -------------------------------------------------------------------------------------------

    @property
    def _floor(self) -> int:
        """Offset below which no message is delivered any more."""
        return max(self._cursor.acks.mark_offset, self._start)

    def _run(self, now_us: int) -> list[Effect]:
        """Deliver all messages that can be delivered, then read as many as there is room for."""
        effects: list[Effect] = []
        if not self._consumers.by_id:
            return effects
        replayed, delayed, has_timeout = self._replay.waiting, self._delayed, self.settings.ack_timeout_ms is not None
        if replayed.messages or delayed.messages or has_timeout:
            self._collect_due(now_us)
        if self._limit > self._floor:  # otherwise messages that were read, and redeliveries, wait, too
            self._deliver(effects, now_us)
        if not (replayed.messages or delayed.messages or has_timeout or self._reading.retry_us):
            return effects  # the usual case: there is no time to wait for
        next_us = self._next_us(now_us)
        if next_us is not None and (self._armed_us is None or next_us < self._armed_us):
            self._armed_us = next_us
            effects.append(WakeAt(next_us))
        return effects

    def _deliver(self, effects: list[Effect], now_us: int) -> None:
        arrived = self._reading.ready()
        for answer in arrived:
            if len(batch := self._filter(answer, effects, now_us)):
                self._fresh.append(batch)
        if self._reread is not None or self._fresh:
            self._place(effects, now_us)
        if arrived and self._fresh:
            self._reading.fell_behind()
        elif arrived:
            self._reading.kept_up()
        if self._reading.position < min(self.end, self._limit) or self._replay.ready or self._selector.waiting():
            self._read(effects, now_us)  # usually skipped after a delivery

    def _collect_due(self, now_us: int) -> None:
        due = self._replay.waiting.pop(now_us) if self._replay.waiting.messages else []
        if self._delayed.messages:
            due += self._delayed.pop(self._wall_us())
        for bucket in due:
            self._replay.add_ranges(bucket.intersect(self._floor))
        timeout_us = 1000 * (self.settings.ack_timeout_ms or 0)
        if timeout_us and now_us >= self._ack_timeouts_us:
            self._return_messages(self._pending.release_since(now_us - timeout_us), RedeliveryCause.ACK_TIMEOUT)
            self._ack_timeouts_us = now_us + max(TICK_MIN_US, timeout_us // 8)
            self._unblock()

    # ---- filtering ------------------------------------------------------------------------------------------

    def _drop_acked(self) -> None:
        """Drop acknowledged messages from the batches in hand.

        It is done before these batches are placed, not with each acknowledgement, because many may come one by one.
        """
        if not self._has_acked:
            return
        self._has_acked = False
        if self._reread is not None:
            self._reread = self._without_acked(self._reread)
        held = [self._without_acked(batch) for batch in self._fresh]
        self._fresh = deque(batch for batch in held if batch is not None)

    def _without_acked(self, batch: MessageBatch) -> MessageBatch | None:
        wanted = np.flatnonzero(self._unacked_mask(batch.offset))
        return batch.select(wanted) if len(wanted) else None

    def _unacked_mask(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Return which messages are kept and not acknowledged."""
        wanted: NDArray[np.bool_] = ~self._cursor.mask(offsets) & (offsets >= self._start)
        return wanted

    def _filter(self, batch: MessageBatch, effects: list[Effect], now_us: int) -> MessageBatch:
        """Return the deliverable messages of a read: unacknowledged, not pending, due, not redelivered too often."""
        self._cursor.deliver(batch)
        if self._is_new(batch):
            return batch
        offsets = batch.offset
        wanted = self._unacked_mask(offsets) & ~self._pending.holds(offsets)
        if self._selector.delays:
            wall_us = self._wall_us()
            late = wanted & (batch.deliver_at > wall_us)
            if late.any():
                self._delayed.add_each(offsets[late], batch.deliver_at[late], wall_us)
                self._selector.forget(offsets[late])  # due, and blocked, before the clock was set back
                wanted &= ~late
        if self.settings.max_redeliveries is not None:
            dead = self._redeliveries.beyond(offsets[wanted], self.settings.max_redeliveries)
            if len(dead):
                self._publish_dead_letters(batch, dead, effects, now_us)
                wanted &= ~np.isin(offsets, dead)
        return batch if wanted.all() else batch.select(np.flatnonzero(wanted))

    def _is_new(self, batch: MessageBatch) -> bool:
        """Return whether all messages of a batch are certain to be deliverable, so that they need not be checked one by
        one.

        That is the usual case.
        """
        start, end = batch.first, batch.last + 1
        return (
            len(batch) == end - start > 0
            and start >= self._start
            and self._cursor.acks.missing(start, end) == end - start
            and self._pending.is_free(start, end)
            and not self._selector.delays
            and (self.settings.max_redeliveries is None or not self._redeliveries.awaited)
        )

    def _publish_dead_letters(self, batch: MessageBatch, dead: Offsets, effects: list[Effect], now_us: int) -> None:
        """Publish as many dead letters as messages may be unacknowledged; the others are read again later."""
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
        """Place the batches in hand with consumers; the batch that was read again goes first."""
        if self._has_acked and self._capacity() > 0:
            self._drop_acked()
        while (self._reread is not None or self._fresh) and (capacity := self._capacity()) > 0:
            is_fresh = self._reread is None
            batch = self._fresh.popleft() if self._reread is None else self._reread
            placement = self._selector.place(batch, capacity, is_fresh=is_fresh)
            effects.extend([self._assign(share, now_us) for share in placement.shares])
            self._is_blocked = self._is_blocked or self._pending.total >= self.settings.max_unacked
            if not is_fresh:
                self._reread = placement.rest
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
        self._consumers.note_delivered(consumer, len(batch))
        return Deliver(consumer.id, batch, counts)

    def _capacity(self) -> int:
        """Return the most messages that can be placed now."""
        if self._is_blocked:
            return 0
        return min(self._selector.capacity(), self.settings.max_unacked - self._pending.total)

    def _unblock(self) -> None:
        """Resume delivery, after acknowledgements or returns, at half of the limit that stopped it."""
        if self._is_blocked and self._pending.total <= self.settings.max_unacked // 2:
            self._is_blocked = False
        if self._consumers.unblock():
            self._selector.has_changed()

    # ---- reading --------------------------------------------------------------------------------------------

    def _read(self, effects: list[Effect], now_us: int) -> None:
        capacity, reading = self._capacity(), self._reading
        if capacity <= 0 or not reading.may_begin(now_us):
            return
        if self._reread is None and reading.reread is None and (self._replay.ready or self._selector.waiting()):
            self._read_again(capacity, effects)
            if not reading.may_begin(now_us):
                return
        if reading.is_idle:
            reading.pass_over(self._cursor.next_unacked(reading.position))
        end = min(self.end, self._limit)
        while self._may_read_ahead():
            read = reading.begin_ahead(end, capacity)
            if read is None:
                return
            effects.append(read)
            if read.end >= end or not reading.may_begin(now_us):
                return

    def _read_again(self, capacity: int, effects: list[Effect]) -> None:
        blocked = self._selector.take(capacity)
        if len(blocked):
            ranges: Ranges | None = neighbours(*runs(blocked), capacity)
        else:
            ranges = self._replay.take(capacity) if self._selector.has_space() else None
        if ranges is not None:
            effects.append(self._reading.begin_again(ranges, of_blocked=len(blocked) > 0))

    def _may_read_ahead(self) -> bool:
        tracked = self._delayed.ranges + self._replay.waiting.ranges + len(self._replay.ready)
        return not self._fresh and self._selector.has_space() and tracked < TRACKED_MAX

    # ---- time -----------------------------------------------------------------------------------------------

    def _next_us(self, now_us: int) -> int | None:
        """Return when the next timer is due."""
        times: list[int | None] = []
        if self._replay.waiting.messages:
            times.append(self._replay.waiting.first_us)
        if self._delayed.messages and (first_us := self._delayed.first_us) is not None:
            times.append(self._delayed_due_us(first_us, now_us))
        if self._reading.retry_us > now_us:
            times.append(self._reading.retry_us)
        if self.settings.ack_timeout_ms is not None and self._pending.total:
            times.append(self._ack_timeouts_us)
        return min((time for time in times if time is not None), default=None) if times else None

    def _delayed_due_us(self, first_us: int, now_us: int) -> int:
        """Return when the wall clock will reach `first_us`, on the monotonic clock, unless the wall clock is set.

        The clocks are compared once, because the result would be a little earlier or later with each step.
        """
        if self._due[0] != first_us:
            self._due = first_us, now_us + max(first_us - self._wall_us(), 0)
        return self._due[1]


def _changed(before: AttachedConsumer | None, after: AttachedConsumer | None) -> list[Effect]:
    """Return the effects of a change of the active consumer. before: the former one, if it is still attached."""
    changes = [(before, False), (after, True)]
    return [ActiveConsumerChanged(consumer.id, active) for consumer, active in changes if consumer is not None]
