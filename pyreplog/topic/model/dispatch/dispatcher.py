"""Dispatcher of a subscription, as a state machine: what is read, which consumer gets it, what comes again.

Rules and their sources (classes are Pulsar's): one machine for all types, with a selector for what differs (there it is
three dispatchers, each twice); a rewind forgets the reads under way, which there overwrite the position (#26106);
permits are spent by what is delivered and by nothing else (#24189 and its kin); keys move once they are drained
(PIP-379); blocked at a limit, delivery goes on at half of it (PersistentDispatcherMultipleConsumers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidArgumentError, SubscriptionBusyError
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.dispatch.delivery import TRACKED_MAX, DeliveryPipeline
from pyreplog.topic.model.dispatch.effects import ActiveConsumerChanged, Dirty, Effect, Locate
from pyreplog.topic.model.dispatch.offsets import Offsets, ascending, runs
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS
from pyreplog.topic.model.dispatch.status import ConsumerStatus, DispatchStatus
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.topic_position import EntryPosition, TopicPosition

if TYPE_CHECKING:
    from pyreplog.topic.model.cursor import Cursor
    from pyreplog.topic.model.dispatch.consumers import AttachedConsumer


class Dispatcher:
    """Delivers one subscription of `topic`. Methods return effects, to be carried out in their order.

    cursor: what is acknowledged; it is changed here only, or `moved` is told. start, end: offsets of the topic's first
    message that is kept, and behind its last one that may be read. Times: µs of a clock that nobody sets, but for
    messages' `deliver_at`, which is compared with `wall_us`, the µs since 1970. It is observed by shared and key_shared
    subscriptions; the others, which keep the order, ignore it. When the last consumer leaves, all but the counts of
    redeliveries is forgotten: the next one gets everything unacknowledged, from the mark on. Not for several threads at
    once.
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
        self._topic = topic
        part = partition_of(topic)
        self._delivery = DeliveryPipeline(cursor, settings, start, end, None if part is None else part[1], wall_us)

    @property
    def end(self) -> int:
        """Messages below it can be delivered, and acknowledged."""
        return self._delivery.end

    @property
    def settings(self) -> SubscriptionConfig:
        return self._delivery.settings

    def configure(self, settings: SubscriptionConfig) -> None:
        """Other settings from now on. SubscriptionBusyError while there are consumers."""
        if len(self._delivery.consumers):
            raise self._busy("to change its settings, expected no consumer")
        self._delivery.configure(settings)

    def _busy(self, expected: str) -> SubscriptionBusyError:
        delivery = self._delivery
        names = ", ".join(consumer.name for consumer in delivery.consumers)
        subscription = f"subscription {delivery.cursor.name} ({delivery.settings.type})"
        return SubscriptionBusyError(self._topic, f"{subscription}: {expected}, found {names}")

    # ---- consumers ------------------------------------------------------------------------------------------

    def attach(self, consumer: int, name: str, now_us: int, *, priority: int = 0) -> list[Effect]:
        """A consumer came, under a number of its own; of a lower priority number are served first.

        SubscriptionBusyError: the subscription is exclusive and has one.
        """
        delivery = self._delivery
        if consumer in delivery.consumers.by_id:
            raise InvalidArgumentError(f"consumer: expected a new number, found {consumer}")
        if not delivery.selector.admits():
            raise self._busy("expected no other consumer")
        before = delivery.selector.active
        delivery.selector.joined(delivery.consumers.add(consumer, name, priority))
        after = delivery.selector.active
        if after is before:
            return delivery.run(now_us)
        if before is not None:
            delivery.rewind()
        return _changed(before, after) + delivery.run(now_us)

    def detach(self, consumer: int, now_us: int) -> list[Effect]:
        """A consumer left: what it has not acknowledged goes to the others."""
        delivery = self._delivery
        before = delivery.selector.active
        gone = delivery.consumers.remove(consumer)
        if gone is None:
            return []
        delivery.selector.left(gone)
        after = delivery.selector.active
        if not len(delivery.consumers) or after is not before:
            delivery.rewind()
        else:
            delivery.give_back(delivery.pending.release_holder(gone.holder))
            delivery.unblock()
        effects = [] if after is before else _changed(None if before is gone else before, after)
        return effects + delivery.run(now_us)

    def flow(self, consumer: int, messages: int, now_us: int) -> list[Effect]:
        """A consumer has room for so many more messages."""
        attached = self._delivery.consumers.by_id.get(consumer)
        if attached is None:
            return []
        if messages < 1:
            raise InvalidArgumentError(f"messages: expected at least 1, found {messages}")
        attached.permits += messages
        self._delivery.selector.has_changed()
        return self._delivery.run(now_us)

    # ---- the topic ------------------------------------------------------------------------------------------

    def grew(self, end: int, now_us: int) -> list[Effect]:
        """Messages up to `end` may be read."""
        self._delivery.end = max(self._delivery.end, end)
        return self._delivery.run(now_us)

    def trimmed(self, start: int, now_us: int) -> list[Effect]:
        """There are no messages below `start` any more. The cursor is its owner's to move."""
        delivery = self._delivery
        if start > delivery.start:
            before, delivery.start = delivery.start, start
            delivery.settle_range(before, start)
        return self._go_on(now_us)

    def entries(self, read_id: int, batch: MessageBatch, now_us: int) -> list[Effect]:
        """The answer of a read: its entries. One that brings nothing counts as failed."""
        delivery = self._delivery
        begun_at = delivery.reading.starts_at(read_id)
        if begun_at is not None and batch.end <= begun_at:
            return self._failed(read_id, f"nothing was read at {begun_at}", now_us)
        effects: list[Effect] = []
        if begun_at is not None:
            delivery.answered(read_id, batch, effects, now_us)
        return effects + delivery.run(now_us)

    def read_failed(self, read_id: int, error: Exception, now_us: int) -> list[Effect]:
        """A read brought nothing; what it was to read is read again a little later."""
        if self._delivery.reading.starts_at(read_id) is None:
            return self._delivery.run(now_us)
        return self._failed(read_id, str(error), now_us)

    def _failed(self, read_id: int, why: str, now_us: int) -> list[Effect]:
        again = self._delivery.reading.failed(read_id, why, now_us)
        if again is not None:
            self._delivery.want_again(again)
        return self._delivery.run(now_us)

    def woken(self, now_us: int) -> list[Effect]:
        """The time of a `Wake` has come; or the wall's clock was set, and what waits for its time may be due."""
        self._delivery.woken(now_us)
        return self._delivery.run(now_us)

    # ---- acknowledgements -----------------------------------------------------------------------------------

    def acknowledge(self, consumer: int, offsets: Offsets, now_us: int) -> list[Effect]:
        """Any offsets, whoever has them: what is acknowledged is not delivered again. InvalidArgumentError: beyond the
        end of the topic."""
        delivery = self._delivery
        offsets = ascending(offsets)
        unknown = delivery.cursor.acknowledge(offsets, delivery.end, now_us)
        known = np.setdiff1d(offsets, unknown, assume_unique=True) if len(unknown) else offsets
        if len(known):
            released = delivery.pending.release(known)
            delivery.settle(known, released)
            self._count(consumer, len(released.offsets))
        return self._acknowledged(consumer, runs(ascending(unknown)), now_us, is_dirty=len(known) > 0)

    def acknowledge_range(self, consumer: int, start: int, end: int, now_us: int) -> list[Effect]:
        """All from start up to end; otherwise as `acknowledge`."""
        if start == end:
            return []
        delivery = self._delivery
        unknown = delivery.cursor.acknowledge_range(start, end, delivery.end, now_us)
        if not unknown:
            self._count(consumer, delivery.settle_range(start, end))
            return [Dirty(), *self._go_on(now_us)]
        at = start
        for low, high in [*unknown, (end, end)]:
            if at < low:
                self._count(consumer, delivery.settle_range(at, low))
            at = high
        ranges = np.array(unknown, np.int64)
        left = end - start - int((ranges[:, 1] - ranges[:, 0]).sum())
        return self._acknowledged(consumer, (ranges[:, 0], ranges[:, 1]), now_us, is_dirty=left > 0)

    def cumulative(self, consumer: int, place: EntryPosition, to: int, now_us: int) -> list[Effect]:
        """Everything below `to`; place: the entry that holds `cursor.cumulative_start(to)`, or ends there.

        InvalidArgumentError: the subscription is shared; what `Cursor.cumulative` raises.
        """
        delivery = self._delivery
        if delivery.settings.type in ("shared", "key_shared"):
            raise InvalidArgumentError(f"a {delivery.settings.type} subscription acknowledges messages one by one")
        before = delivery.floor
        delivery.cursor.cumulative(place, to, delivery.end, now_us)
        self._count(consumer, delivery.settle_range(before, delivery.floor))
        return [Dirty(), *self._go_on(now_us)]

    def moved(self, before: int, now_us: int) -> list[Effect]:
        """The owner moved the cursor's mark forward, from offset `before`, and nothing else of it."""
        self._delivery.settle_range(before, self._delivery.floor)
        return [Dirty(), *self._go_on(now_us)]

    def advance(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """All before an entry, which `total` lies before, is skipped; see `Cursor.advance`. Acknowledgements that the
        cursor forgets by that are of messages that come again."""
        delivery = self._delivery
        before, acked = delivery.floor, delivery.cursor.acks.acked(total.offset)
        delivery.cursor.advance(total, now_us)
        delivery.forgotten(acked)
        return self.moved(before, now_us)

    def _count(self, consumer: int, messages: int) -> None:
        attached = self._delivery.consumers.by_id.get(consumer)
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
        """Something is done with."""
        delivery = self._delivery
        delivery.reading.pass_over(delivery.floor)
        delivery.unblock()
        return delivery.run(now_us)

    # ---- redelivery -----------------------------------------------------------------------------------------

    def nack(self, consumer: int, offsets: Offsets, now_us: int, *, delay_us: int | None = None) -> list[Effect]:
        """A consumer refuses messages that it has: they come again after a while, longer each time, or after this."""
        delivery = self._delivery
        attached = delivery.consumers.by_id.get(consumer)
        if attached is None:
            return []
        released = delivery.pending.release(ascending(offsets), attached.holder)
        delivery.redeliveries.returned(released.offsets)
        delivery.selector.released(released)
        if delay_us is not None or not len(delivery.redeliveries):
            delivery.replay.add_later(released.offsets, now_us + self._wait_us(0, delay_us), now_us)
        else:
            counts = np.array([delivery.redeliveries.count(offset) for offset in released.offsets.tolist()])
            for count in np.unique(counts).tolist():
                waiting = released.offsets[counts == count]
                delivery.replay.add_later(waiting, now_us + self._wait_us(count, None), now_us)
        delivery.unblock()
        return delivery.run(now_us)

    def _wait_us(self, count: int, delay_us: int | None) -> int:
        settings = self._delivery.settings
        if delay_us is not None:
            return max(delay_us, 0)
        return 1000 * min(settings.nack_min_ms << min(count, 40), settings.nack_max_ms)

    def redeliver_unacked(self, consumer: int, now_us: int) -> list[Effect]:
        """A consumer drops what it has: it comes again, to it or to others."""
        delivery = self._delivery
        attached = delivery.consumers.by_id.get(consumer)
        if attached is None:
            return []
        if delivery.selector.active is attached:
            return self.rewind(now_us)
        delivery.give_back(delivery.pending.release_holder(attached.holder))
        delivery.unblock()
        return delivery.run(now_us)

    def dead_letters_failed(self, offsets: Offsets, now_us: int) -> list[Effect]:
        """Dead letters could not be published: they are, or are delivered, later."""
        delivery = self._delivery
        released = delivery.pending.release(ascending(offsets), DEAD_LETTERS)
        delivery.redeliveries.returned(released.offsets)
        delivery.replay.add_later(released.offsets, now_us + 1000 * delivery.settings.nack_max_ms, now_us)
        delivery.unblock()
        return delivery.run(now_us)

    def rewind(self, now_us: int) -> list[Effect]:
        """All that is not acknowledged comes again, from the mark on; whoever had any of it has dropped it."""
        self._delivery.rewind()
        return self._delivery.run(now_us)

    def seek(self, total: TopicPosition, now_us: int) -> list[Effect]:
        """Go on from there, back or forward: everything before is acknowledged, nothing behind. Consumers have
        dropped what they had. Dead letters on their way stay so."""
        self._delivery.cursor.seek(total, now_us)
        self._delivery.rewind()
        self._delivery.redeliveries.clear()
        return [Dirty(), *self._delivery.run(now_us)]

    # ---- where it stands ------------------------------------------------------------------------------------

    def status(self, now_us: int) -> DispatchStatus:
        """Cheap, but for many consumers."""
        delivery, reading = self._delivery, self._delivery.reading
        delivery.drop_acked()
        again = 0 if delivery.again is None else len(delivery.again)
        consumers = tuple(
            ConsumerStatus(
                one.id, one.name, one.priority, one.permits, delivery.pending.count(one.holder), one.is_blocked,
                delivery.selector.active in (None, one), one.delivered, one.acknowledged,
            )
            for one in delivery.consumers
        )  # fmt: skip
        dead = delivery.pending.count(DEAD_LETTERS)
        return DispatchStatus(
            position=reading.position,
            end=delivery.end,
            reads=reading.under_way,
            forgotten=reading.forgotten,
            read_failures=reading.failures,
            in_hand=again + sum(len(batch) for batch in delivery.fresh),
            replay=delivery.replay.messages,
            delayed=delivery.delayed.messages,
            aside=delivery.selector.waiting(),
            unacked=delivery.pending.total - dead,
            dead_letters=dead,
            redelivered=len(delivery.redeliveries),
            next_us=delivery.next_us(now_us),
            consumers=consumers,
            waits=tuple(self._waits(now_us)),
        )

    def first_due(self, end: int) -> int:
        """See `DeliveryPipeline.first_due`."""
        return self._delivery.first_due(end)

    def _waits(self, now_us: int) -> list[str]:
        delivery, reading = self._delivery, self._delivery.reading
        waits = []
        if not len(delivery.consumers):
            return ["no consumer"]
        if delivery.is_blocked:
            waits.append(f"max_unacked: {delivery.pending.total} messages are not acknowledged")
        elif delivery.selector.capacity() <= 0:
            waits.append("no consumer has room")
        if reading.retry_us > now_us:
            waits.append(f"a read failed: {reading.error}")
        if reading.under_way:
            waits.append(f"reading: {reading.under_way} under way")
        if not delivery.selector.has_space():
            waits.append(f"look-ahead: {delivery.selector.waiting()} messages wait for their keys' consumers")
        if delivery.delayed.ranges + delivery.replay.ranges >= TRACKED_MAX:
            waits.append("too many messages wait for their time")
        if reading.position >= delivery.end:
            waits.append("all is read")
        return waits


def _changed(before: AttachedConsumer | None, after: AttachedConsumer | None) -> list[Effect]:
    """Another consumer is the active one; before: who was, if it is still there."""
    told = [(before, False), (after, True)]
    return [ActiveConsumerChanged(consumer.id, active) for consumer, active in told if consumer is not None]
