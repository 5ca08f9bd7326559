"""Key_shared subscriptions: messages are distributed by key, and one consumer at a time has messages of a key."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.partitioning import key_hash
from pyreplog.topic.model.dispatch.offsets import NONE, Offsets
from pyreplog.topic.model.dispatch.pending import NO_HOLDER, Released, Slots
from pyreplog.topic.model.dispatch.selector import Assignment, AttachedConsumer, Consumers, Placement, Selector

SLOTS = 65_535
"""Number of slots, from 1 on, that keys are hashed to."""
POINTS = 100
"""Points of each consumer on the ring."""

_NO_KEY = key_hash(b"NONE_KEY")


def slot_of(hashes: NDArray[np.uint32]) -> Slots:
    """Return the slots of keys by their murmur3 hashes."""
    return ((hashes & 0x7FFFFFFF) % SLOTS + 1).astype(np.uint16)


def slots_of(batch: MessageBatch) -> Slots:
    """Return the slots of messages; messages without a key share one."""
    hashes = batch.key_hash()
    return slot_of(np.where(batch.key_size < 0, np.uint32(_NO_KEY), hashes))


class HashRing:
    """Consistent hashing of slots to members by name.

    A member that joins again under its name gets its keys back. Members of the same name are numbered.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], tuple[int, Slots]] = {}  # (name, number) -> (holder, its points)
        self._points: Slots = np.empty(0, np.uint16)
        self._holders: NDArray[np.uint32] = np.empty(0, np.uint32)

    def add(self, holder: int, name: str) -> None:
        number = next(number for number in itertools.count() if (name, number) not in self._members)
        hashes = [key_hash(f"{name}\0{number}\0{point}".encode()) for point in range(POINTS)]
        self._members[name, number] = holder, slot_of(np.array(hashes, np.uint32))
        self._sort_points()

    def remove(self, holder: int) -> None:
        self._members = {member: entry for member, entry in self._members.items() if entry[0] != holder}
        self._sort_points()

    def owners(self, slots: Slots) -> NDArray[np.uint32]:
        """Return the holder of each slot: that of the next point around the ring."""
        if not len(self._points):
            return np.full(len(slots), NO_HOLDER, np.uint32)
        at = np.searchsorted(self._points, slots)
        return self._holders[np.where(at < len(self._points), at, 0)]

    def _sort_points(self) -> None:
        """Sort the points; a point of several members belongs to the first by name and number."""
        members = [self._members[member] for member in sorted(self._members)]
        points = np.concatenate([np.empty(0, np.uint16), *(points for _, points in members)])
        holders = np.repeat(np.array([holder for holder, _ in members], np.uint32), POINTS)
        self._points, first = np.unique(points, return_index=True)
        self._holders = holders[first]


BLOCKED_PER_CONSUMER = 4_000
BLOCKED_MAX = 40_000

_NEVER = np.iinfo(np.int64).max


class KeySharedSelector(Selector):
    """Selector of key_shared subscriptions.

    A key moves to another consumer once no consumer has messages of it. Until then its messages are blocked; so are
    those for consumers without room, while the others go on. Blocked messages are delivered before messages that are
    read later.

    Messages keep their order at the first delivery, and when a consumer leaves them behind. A refused message is
    delivered again after its delay, but never to a second consumer while the first one has messages of its key. Keys
    are distinguished by slot.
    """

    delays = True

    def __init__(self, consumers: Consumers) -> None:
        super().__init__(consumers)
        self._ring = HashRing()
        self._may_deliver = False  # whether some blocked messages may be deliverable
        self.clear()

    def joined(self, consumer: AttachedConsumer) -> None:
        self._ring.add(consumer.holder, consumer.name)
        self._may_deliver = True

    def left(self, consumer: AttachedConsumer) -> None:
        self._ring.remove(consumer.holder)
        self._may_deliver = True

    def has_changed(self) -> None:
        self._may_deliver = True

    # ---- placing --------------------------------------------------------------------------------------------

    def place(self, batch: MessageBatch, room: int, *, is_fresh: bool) -> Placement:
        offsets, slots = batch.offset, slots_of(batch)
        owners = self._ring.owners(slots)
        free = self._is_free(slots, owners) & self._blocked.in_turn(offsets, slots)
        reserved = self._deliverable()[1] if is_fresh and len(self._blocked) else {}
        chosen = np.zeros(len(batch), np.bool_)
        has_room = False
        for consumer in self._consumers:
            capacity = self._consumers.capacity(consumer)
            most = min(capacity - reserved.get(consumer.holder, 0), room)
            mine = np.flatnonzero(free & (owners == consumer.holder))[: max(most, 0)]
            chosen[mine] = True
            room -= len(mine)
            has_room = has_room or capacity > len(mine)
        looks_ahead = has_room and room > 0
        stop = self._block(offsets, slots, chosen, is_fresh=is_fresh, looks_ahead=looks_ahead)
        shares = []
        for consumer in self._consumers:
            mine = np.flatnonzero(chosen[:stop] & (owners[:stop] == consumer.holder))
            if len(mine):
                self._hold(consumer, slots[mine])
                shares.append(Assignment(consumer, batch.select(mine), slots[mine]))
        return Placement(shares, batch.slice(stop, len(batch)) if stop < len(batch) else None)

    def _is_free(self, slots: Slots, owners: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return which slots have no messages with a consumer other than their owner."""
        holders = self._holder[slots]
        free: NDArray[np.bool_] = (holders == NO_HOLDER) | (holders == owners)
        return free

    def _block(
        self, offsets: Offsets, slots: Slots, chosen: NDArray[np.bool_], *, is_fresh: bool, looks_ahead: bool
    ) -> int:
        """Block the messages that were not chosen; return the end of the part of the batch that was handled.

        Of fresh messages only as many are blocked as there is space for, and only if messages behind them can be
        delivered.
        """
        waiting = np.flatnonzero(~chosen)
        stop = len(offsets)
        if is_fresh:
            space = max(self._limit - len(self._blocked), 0)
            if len(waiting) > space:
                stop = int(waiting[space])
            if not looks_ahead:
                stop = min(stop, int(np.flatnonzero(chosen)[-1]) + 1 if chosen.any() else 0)
            waiting = waiting[waiting < stop]
        self._blocked.remove(offsets[:stop][chosen[:stop]])
        self._blocked.add(offsets[waiting], slots[waiting])
        return stop

    def _hold(self, consumer: AttachedConsumer, slots: Slots) -> None:
        self._holder[slots] = consumer.holder
        np.add.at(self._held, slots, 1)

    def released(self, released: Released) -> None:
        slots = released.slots[released.slots != 0]  # 0 for dead letters
        np.subtract.at(self._held, slots, 1)
        freed = slots[self._held[slots] == 0]
        self._holder[freed] = NO_HOLDER
        self._may_deliver = self._may_deliver or self._blocked.has_slots(freed)

    # ---- blocked messages ---------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return min(BLOCKED_PER_CONSUMER * len(self._consumers), BLOCKED_MAX)

    def waiting(self) -> int:
        return len(self._blocked)

    def has_space(self) -> bool:
        return len(self._blocked) < self._limit

    def returned(self, released: Released) -> bool:
        self._blocked.add(released.offsets, released.slots)
        self._may_deliver = True
        return True

    def forget(self, offsets: Offsets) -> None:
        self._blocked.remove(offsets)
        self._may_deliver = True

    def forget_range(self, start: int, end: int) -> None:
        self._blocked.remove_range(start, end)
        self._may_deliver = True

    def take(self, most: int) -> Offsets:
        if not self._may_deliver or not len(self._blocked):
            return self._blocked.offsets[:0]
        at, _ = self._deliverable()
        self._may_deliver = len(at) > 0
        return self._blocked.offsets[at[:most]]

    def _deliverable(self) -> tuple[NDArray[np.int64], dict[int, int]]:
        """Return the indexes of blocked messages that can be delivered, ascending, and their number by holder."""
        slots = self._blocked.slots
        owners = self._ring.owners(slots)
        free = self._is_free(slots, owners)
        parts = [np.empty(0, np.int64)]
        counts = {}
        for consumer in self._consumers:
            room = self._consumers.capacity(consumer)
            mine = np.flatnonzero(free & (owners == consumer.holder))[: max(room, 0)]
            parts.append(mine)
            counts[consumer.holder] = len(mine)
        return np.sort(np.concatenate(parts)), counts

    def clear(self) -> None:
        self._blocked = BlockedMessages()
        self._holder = np.zeros(SLOTS + 1, np.uint32)  # by slot: the holder of its messages
        self._held = np.zeros(SLOTS + 1, np.int32)  # by slot: number of messages


class BlockedMessages:
    """Messages that were read and cannot be delivered yet: their offsets and slots, by offset.

    Reading stops at a limit.
    """

    def __init__(self) -> None:
        self.offsets: Offsets = NONE
        self.slots: Slots = np.empty(0, np.uint16)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offsets: Offsets, slots: Slots) -> None:
        """Add messages with ascending offsets; messages that are blocked already stay."""
        new = ~_mask(self.offsets, offsets)
        at = np.searchsorted(self.offsets, offsets[new])
        self.slots = np.insert(self.slots, at, slots[new])
        self.offsets = np.insert(self.offsets, at, offsets[new])

    def remove(self, offsets: Offsets) -> None:
        """Remove those of the messages, with ascending offsets, that are blocked."""
        if len(self.offsets) and len(offsets):
            self._keep(~_mask(offsets, self.offsets))

    def remove_range(self, start: int, end: int) -> None:
        self._keep((self.offsets < start) | (self.offsets >= end))

    def has_slots(self, slots: Slots) -> bool:
        """Return whether any message has one of these slots."""
        return bool(len(self.slots)) and bool(np.isin(self.slots, slots).any())

    def in_turn(self, offsets: Offsets, slots: Slots) -> NDArray[np.bool_]:
        """Return which messages of a batch have no earlier blocked message of their slot outside of the batch."""
        if not len(self.offsets):
            return np.ones(len(offsets), np.bool_)
        others = ~_mask(offsets, self.offsets)
        first = np.full(SLOTS + 1, _NEVER, np.int64)
        first[self.slots[others][::-1]] = self.offsets[others][::-1]  # the last write wins: the lowest offset
        in_turn: NDArray[np.bool_] = offsets < first[slots]
        return in_turn

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self.offsets, self.slots = self.offsets[kept], self.slots[kept]


def _mask(members: Offsets, offsets: Offsets) -> NDArray[np.bool_]:
    """Return which of the offsets are in an ascending array."""
    if not len(members):
        return np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(members, offsets), len(members) - 1)
    mask: NDArray[np.bool_] = members[at] == offsets
    return mask
