"""The way of messages through one subscription: read, sifted, placed with consumers, and back again.

A message that is not acknowledged is in one place: still to be read, in hand, with a consumer (`pending`), to be read
again (`replay`, `delayed`, or put aside by the selector), or being published as a dead letter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.dispatch.consumers import Consumers
from pyreplog.topic.model.dispatch.delayed_delivery_tracker import DelayedDeliveryTracker
from pyreplog.topic.model.dispatch.effects import DeadLetter, Deliver, Effect, WakeAt
from pyreplog.topic.model.dispatch.key_shared_selector import KeySharedSelector
from pyreplog.topic.model.dispatch.offsets import Offsets, runs
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, Pending, PendingRanges, Released
from pyreplog.topic.model.dispatch.reading import Reading, Reread
from pyreplog.topic.model.dispatch.redeliveries import Redeliveries
from pyreplog.topic.model.dispatch.replay import Ranges, Replay, neighbours
from pyreplog.topic.model.dispatch.selector import Assignment, RoundRobinSelector, Selector, SingleActiveSelector

if TYPE_CHECKING:
    from pyreplog.topic.model.cursor import Cursor

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


class DeliveryPipeline:
    """What `Dispatcher` keeps. `run` does all that can be done now; everything else only notes what happened.

    partition: of the topic; None: it is none.
    """

    def __init__(
        self,
        cursor: Cursor,
        settings: SubscriptionConfig,
        start: int,
        end: int,
        partition: int | None,
        wall_us: Callable[[], int],
    ) -> None:
        self.cursor, self.start, self.end, self.partition = cursor, start, end, partition
        self._wall_us = wall_us
        self.settings = settings
        self.pending = _pending(settings)
        self.consumers = Consumers(self.pending, settings.max_unacked_consumer)
        self.selector = _SELECTORS[settings.type](self.consumers, self.partition)
        self.redeliveries = Redeliveries()
        # the first by monotonic time, the other by the wall's
        self.replay, self.delayed = Replay(), DelayedDeliveryTracker()
        self._due = (0, 0)  # when the first of `delayed` is due: by the wall, and what that was when it was looked at
        self.again: MessageBatch | None = None  # in hand, read again
        self.fresh: deque[MessageBatch] = deque()  # in hand, read ahead
        self.reading = Reading(self.floor)
        self._has_acked = False  # some of what is in hand may be acknowledged
        self.is_blocked = False  # too much is unacknowledged
        self._look_us = 0  # when to look for acknowledgements that are late
        self._armed_us: int | None = None

    def configure(self, settings: SubscriptionConfig) -> None:
        """While there are no consumers, and so nothing is on its way but dead letters."""
        self.settings = settings
        dead = self.pending.release_holder(DEAD_LETTERS)
        self.pending = _pending(settings)
        self.pending.hold(dead.offsets, DEAD_LETTERS, None, 0)
        self.consumers = Consumers(self.pending, settings.max_unacked_consumer)
        self.selector = _SELECTORS[settings.type](self.consumers, self.partition)

    @property
    def floor(self) -> int:
        """Nothing below is delivered any more."""
        return max(self.cursor.acks.mark_offset, self.start)

    def run(self, now_us: int) -> list[Effect]:
        """Deliver what can be delivered, then read what there is room for."""
        effects: list[Effect] = []
        if not self.consumers.by_id:
            return effects
        self._come_due(now_us)
        arrived = self.reading.ready()
        for found in arrived:
            if len(batch := self._sift(found, effects, now_us)):
                self.fresh.append(batch)
        if self.again is not None or self.fresh:
            self._place(effects, now_us)
        if arrived and self.fresh:
            self.reading.fell_behind()
        elif arrived:
            self.reading.kept_up()
        if self.reading.position < self.end or self.replay.ready or self.selector.waiting():
            self._read(effects, now_us)  # behind a delivery there is mostly nothing more
        next_us = self.next_us(now_us)
        if next_us is not None and (self._armed_us is None or next_us < self._armed_us):
            self._armed_us = next_us
            effects.append(WakeAt(next_us))
        return effects

    # ---- what comes back ------------------------------------------------------------------------------------

    def give_back(self, released: Released) -> None:
        """Deliver again what a consumer had, as soon as possible."""
        if len(released.offsets):
            self.redeliveries.returned(released.offsets)
            self.selector.released(released)
            if not self.selector.returned(released):
                self.replay.add(released.offsets)

    def settle(self, known: Offsets, released: Released) -> None:
        """Ascending offsets were acknowledged; `released` of them by or for who had them."""
        self.selector.released(released)
        self.redeliveries.forget(known)
        if len(released.offsets) < len(known):
            self.replay.forget(known)
            self.selector.forget(known)
            self._has_acked = True

    def settle_range(self, start: int, end: int) -> int:
        """The same for all from start up to end; how many of them somebody had."""
        if isinstance(self.pending, PendingRanges):  # where no selector asks which these were
            count = self.pending.drop_range(start, end)
        else:
            released = self.pending.release_range(start, end)
            self.selector.released(released)
            count = len(released.offsets)
        self.redeliveries.forget_range(start, end)
        if count < end - start:
            self.replay.forget_range(start, end)
            self.selector.forget_range(start, end)
            self._has_acked = True
        return count

    def forgotten(self, acked: Ranges) -> None:
        """Ranges were acknowledged beyond a mark that moved; where that is not known any more they come again."""
        starts, ends = acked
        ends = np.minimum(ends, self.reading.position)
        lost = ~self.cursor.mask(starts) & (starts < ends)
        self.replay.add_ranges((starts[lost], ends[lost]))

    def drop_acked(self) -> None:
        """From what is in hand. Not before it is to be placed: many may acknowledge one message each meanwhile."""
        if not self._has_acked:
            return
        self._has_acked = False
        if self.again is not None:
            self.again = self._sieved(self.again)
        held = [self._sieved(batch) for batch in self.fresh]
        self.fresh = deque(batch for batch in held if batch is not None)

    def _sieved(self, batch: MessageBatch) -> MessageBatch | None:
        wanted = np.flatnonzero(self._wanted(batch.offset))
        return batch.select(wanted) if len(wanted) else None

    def _wanted(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Which are there still, and not acknowledged."""
        wanted: NDArray[np.bool_] = ~self.cursor.mask(offsets) & (offsets >= self.start)
        return wanted

    def _come_due(self, now_us: int) -> None:
        due = self.replay.waiting.pop(now_us) if self.replay.waiting.messages else []
        if self.delayed.messages:
            due += self.delayed.pop(self._wall_us())
        for bucket in due:
            self.replay.add_ranges(bucket.intersect(self.floor))
        timeout_us = 1000 * (self.settings.ack_timeout_ms or 0)
        if timeout_us and now_us >= self._look_us:
            self.give_back(self.pending.release_since(now_us - timeout_us))
            self._look_us = now_us + max(TICK_MIN_US, timeout_us // 8)
            self.unblock()

    def first_due(self, end: int) -> int:
        """The first offset that is not acknowledged, but for those that are known to wait for their time; `end`, of the
        topic, if there is none."""
        at = self.cursor.next_unacked(self.floor)
        if not self.delayed.messages:
            return min(at, end)
        for low, high in zip(*(edge.tolist() for edge in self.delayed.all().intersect(at)), strict=True):
            if at < low:
                break
            at = self.cursor.next_unacked(max(high, at))
        return min(at, end)

    def rewind(self) -> None:
        """Read all that is not acknowledged again, from the mark on. Dead letters stay where they are."""
        self.redeliveries.returned(self.pending.release_consumers().offsets)
        self.selector.clear()
        self.replay, self.delayed = Replay(), DelayedDeliveryTracker()
        self.again = None
        self.fresh.clear()
        self.reading.restart(self.floor)
        self.unblock()

    # ---- answers --------------------------------------------------------------------------------------------

    def answered(self, read_id: int, batch: MessageBatch, effects: list[Effect], now_us: int) -> None:
        """A read that was not forgotten brought something."""
        self.end = max(self.end, batch.end)
        found, left = self.reading.answered(read_id, batch)
        if left is not None:
            self.want_again(left)
        if found is not None:
            found = self._sift(found, effects, now_us)
            self.again = found if len(found) else None

    def want_again(self, again: Reread) -> None:
        """A replay was not read, or not all of it."""
        if not again.of_blocked:
            self.replay.add_ranges(again.ranges)

    def _sift(self, batch: MessageBatch, effects: list[Effect], now_us: int) -> MessageBatch:
        """What can be delivered of an answer: not acknowledged, with nobody, due, and not too often delivered yet."""
        self.cursor.deliver(batch)
        if self._is_new(batch):
            return batch
        offsets = batch.offset
        wanted = self._wanted(offsets) & ~self.pending.holds(offsets)
        if self.selector.delays:
            wall_us = self._wall_us()
            late = wanted & (batch.deliver_at > wall_us)
            if late.any():
                self.delayed.add_each(offsets[late], batch.deliver_at[late], wall_us)
                self.selector.forget(offsets[late])  # they were due, and put aside, before the clock was set back
                wanted &= ~late
        if self.settings.max_redeliveries is not None:
            dead = self.redeliveries.beyond(offsets[wanted], self.settings.max_redeliveries)
            if len(dead):
                self._bury(batch, dead, effects, now_us)
                wanted &= ~np.isin(offsets, dead)
        return batch if wanted.all() else batch.select(np.flatnonzero(wanted))

    def _is_new(self, batch: MessageBatch) -> bool:
        """Whether that is certain of all of it: mostly it is, and then the messages need not be looked at."""
        start, end = batch.first, batch.last + 1
        return (
            len(batch) == end - start > 0
            and start >= self.start
            and self.cursor.acks.missing(start, end) == end - start
            and self.pending.is_free(start, end)
            and not self.selector.delays
            and (self.settings.max_redeliveries is None or not self.redeliveries.awaited)
        )

    def _bury(self, batch: MessageBatch, dead: Offsets, effects: list[Effect], now_us: int) -> None:
        """As many as may be without an acknowledgement become dead letters, the others when they are read again."""
        room = max(self.settings.max_unacked - self.pending.total, 0)
        self.selector.forget(dead)
        self.replay.add(dead[room:])
        dead = dead[:room]
        if len(dead):
            self.pending.hold(dead, DEAD_LETTERS, None, now_us)
            dead_letters = batch.select(np.flatnonzero(np.isin(batch.offset, dead)))
            effects.append(DeadLetter(dead_letters, self.redeliveries.died(dead)))

    # ---- placing --------------------------------------------------------------------------------------------

    def _place(self, effects: list[Effect], now_us: int) -> None:
        """What was read again goes first."""
        if self._has_acked and self._capacity() > 0:
            self.drop_acked()
        while (self.again is not None or self.fresh) and (capacity := self._capacity()) > 0:
            is_fresh = self.again is None
            batch = self.fresh.popleft() if self.again is None else self.again
            placement = self.selector.place(batch, capacity, is_fresh=is_fresh)
            effects.extend([self._give(share, now_us) for share in placement.shares])
            self.is_blocked = self.is_blocked or self.pending.total >= self.settings.max_unacked
            if not is_fresh:
                self.again = placement.rest
            elif placement.rest is not None:
                self.fresh.appendleft(placement.rest)
            if placement.rest is not None and not placement.shares:
                return

    def _give(self, share: Assignment, now_us: int) -> Deliver:
        batch, consumer = share.batch, share.consumer
        start, end, counts = batch.first, batch.last + 1, dict[int, int]()
        if share.slots is None and end - start == len(batch) and not self.redeliveries.awaited:
            self.pending.hold_range(start, end, consumer.holder, now_us)
        else:
            self.pending.hold(batch.offset, consumer.holder, share.slots, now_us)
            counts = self.redeliveries.delivered(batch.offset)
        self.consumers.given(consumer, len(batch))
        return Deliver(consumer.id, batch, counts)

    def _capacity(self) -> int:
        """How many messages can be placed now, at most."""
        if self.is_blocked:
            return 0
        return min(self.selector.capacity(), self.settings.max_unacked - self.pending.total)

    def unblock(self) -> None:
        """Something was acknowledged, or came back: go on at half of what stopped it."""
        if self.is_blocked and self.pending.total <= self.settings.max_unacked // 2:
            self.is_blocked = False
        if self.consumers.unblock():
            self.selector.has_changed()

    # ---- reading --------------------------------------------------------------------------------------------

    def _read(self, effects: list[Effect], now_us: int) -> None:
        capacity, reading = self._capacity(), self.reading
        if capacity <= 0 or not reading.may_begin(now_us):
            return
        if self.again is None and reading.again is None and (self.replay.ready or self.selector.waiting()):
            self._read_again(capacity, effects)
            if not reading.may_begin(now_us):
                return
        if reading.is_idle:
            reading.pass_over(self.cursor.next_unacked(reading.position))
        while self._may_read_on():
            read = reading.begin_ahead(self.end, capacity)
            if read is None:
                return
            effects.append(read)
            if read.end >= self.end or not reading.may_begin(now_us):
                return

    def _read_again(self, capacity: int, effects: list[Effect]) -> None:
        blocked = self.selector.take(capacity)
        if len(blocked):
            ranges: Ranges | None = neighbours(*runs(blocked), capacity)
        else:
            ranges = self.replay.take(capacity) if self.selector.has_space() else None
        if ranges is not None:
            effects.append(self.reading.begin_again(ranges, of_blocked=len(blocked) > 0))

    def _may_read_on(self) -> bool:
        tracked = self.delayed.ranges + self.replay.waiting.ranges + len(self.replay.ready)
        return not self.fresh and self.selector.has_space() and tracked < TRACKED_MAX

    # ---- time -----------------------------------------------------------------------------------------------

    def next_us(self, now_us: int) -> int | None:
        """When something is to be done without anything happening first."""
        times: list[int | None] = []
        if self.replay.waiting.messages:
            times.append(self.replay.waiting.first_us)
        if self.delayed.first_us is not None:
            times.append(self._delayed_due_us(self.delayed.first_us, now_us))
        if self.reading.retry_us > now_us:
            times.append(self.reading.retry_us)
        if self.settings.ack_timeout_ms is not None and self.pending.total:
            times.append(self._look_us)
        return min((time for time in times if time is not None), default=None) if times else None

    def _delayed_due_us(self, first_us: int, now_us: int) -> int:
        """When the wall will say `first_us`, if nobody sets it until then. The two clocks are compared once, not with
        each step, which would be a little earlier or later each time."""
        if self._due[0] != first_us:
            self._due = first_us, now_us + max(first_us - self._wall_us(), 0)
        return self._due[1]

    def woken(self, now_us: int) -> None:
        self._due = (0, 0)
        if self._armed_us is not None and now_us >= self._armed_us:
            self._armed_us = None
