"""Entries of a topic on their way: queued, in a ledger that has not confirmed them, confirmed. Pure.

Whatever becomes of the ledgers, outcomes come in the order of submission: what a ledger kept has its offsets, what it
did not goes to the front of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, PublishBatch
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition

GROUP_BYTES = 1 << 20
"""What waits is sent together, up to about so much."""

REFUSALS_MAX = 3
"""So often an entry that bookies refuse is tried, each time in another ledger."""


class PendingAppend(NamedTuple):
    """Batches in a ledger, and what says when they are confirmed; their first entry there."""

    future: AppendFuture[Any]
    batches: list[PublishBatch]
    first: int


class AppendPipeline:
    """end: of the topic, as confirmed. entries, size: handed to the ledger that is open."""

    def __init__(self, end: TopicPosition) -> None:
        self.end = end
        self.entries = self.size = self._created_us = 0
        self._queue: deque[PublishBatch] = deque()
        self._queued_bytes = 0
        self._flights: deque[PendingAppend] = deque()
        self._added_bytes, self._added_entries = end.size, end.entries  # up to `end`, and what has no outcome

    @property
    def is_queued(self) -> bool:
        """Something waits for a ledger."""
        return bool(self._queue)

    @property
    def is_due(self) -> bool:
        """Something is to be sent now. Nobody waits for company; what comes while a ledger is at others goes together,
        as many small requests cost much more than a few."""
        return bool(self._queue) and (not self._flights or self._queued_bytes >= STAGE_BYTES)

    @property
    def is_flying(self) -> bool:
        """A ledger has something that it did not confirm."""
        return bool(self._flights)

    @property
    def pending(self) -> tuple[int, int]:
        """Bytes and entries that have no outcome."""
        end = self.end  # read first: what is added meanwhile counts
        return self._added_bytes - end.size, self._added_entries - end.entries

    def add(self, batches: Sequence[PublishBatch]) -> None:
        self._queue.extend(batches)
        size = entries = 0
        for batch in batches:
            size, entries = size + batch.entry_bytes, entries + len(batch.entries)
        self._queued_bytes += size
        self._added_bytes += size
        self._added_entries += entries

    # ---- into a ledger --------------------------------------------------------------------------------------

    def begin_ledger(self, created_us: int) -> None:
        """What is queued goes into a new ledger."""
        self.entries, self.size, self._created_us = 0, 0, created_us

    def is_full(self, config: TopicConfig, now_us: int) -> bool:
        """Whether the next ledger is due. One that is empty serves on, however old it is."""
        if not self.entries:
            return False
        return self.is_old(config, now_us) or self.entries >= config.roll_entries or self.size >= config.roll_bytes

    def is_old(self, config: TopicConfig, now_us: int) -> bool:
        """Whether the open ledger is; or was begun as far ahead, by a clock that was set back since: its append times
        stand still until then."""
        return abs(now_us - self._created_us) >= config.roll_ms * 1000

    def take(self, entries_max: int) -> list[PublishBatch]:
        """The next ones to be sent, at least one: together, while they have about GROUP_BYTES and `entries_max`
        entries. Say what became of them: `flew`, or `put_back`."""
        queue = self._queue
        taken = [queue.popleft()]
        size, entries = taken[0].entry_bytes, len(taken[0].entries)
        while queue:
            size, entries = size + queue[0].entry_bytes, entries + len(queue[0].entries)
            if size > GROUP_BYTES or entries > entries_max:
                break
            taken.append(queue.popleft())
        for batch in taken:
            self._queued_bytes -= batch.entry_bytes
        return taken

    def put_back(self, batches: Sequence[PublishBatch]) -> None:
        self._queue.extendleft(reversed(batches))
        self._queued_bytes += sum([batch.entry_bytes for batch in batches])

    def flew(self, batches: list[PublishBatch], future: AppendFuture[Any]) -> None:
        """The open ledger took them."""
        self._flights.append(PendingAppend(future, batches, self.entries))
        for batch in batches:
            self.entries += len(batch.entries)
            self.size += batch.entry_bytes

    # ---- outcomes -------------------------------------------------------------------------------------------

    def land(self) -> tuple[list[PublishBatch], BaseException | None]:
        """Those that were confirmed since, in order, their offsets noted; and why the next one was not."""
        landed: list[PublishBatch] = []
        while self._flights and self._flights[0].future.done():
            error = self._flights[0].future.exception()
            if error is not None:
                return landed, error
            flight = self._flights.popleft()
            self._confirm(flight.batches)
            landed += flight.batches
        return landed, None

    def _confirm(self, batches: Sequence[PublishBatch]) -> None:
        offset, entries, size = self.end
        for batch in batches:
            first = offset if batch.first_offset < 0 else batch.first_offset
            offset, entries = offset + sum(batch.counts), entries + len(batch.entries)
            size += batch.entry_bytes
            batch.offsets = range(first, offset)
        self.end = TopicPosition(offset, entries, size)

    def end_ledger(self, entries: int) -> list[PublishBatch]:
        """The ledger has an end, behind so many entries: those that it kept. The rest is the first of the queue."""
        kept: list[PublishBatch] = []
        rest: list[PublishBatch] = []
        for flight in self._flights:
            room = entries - flight.first
            for batch in flight.batches:
                count = len(batch.entries)
                if count <= room:
                    self._confirm([batch])
                    kept.append(batch)
                else:
                    self._split(batch, max(room, 0))
                    rest.append(batch)
                room -= count
        self._flights.clear()
        self.put_back(rest)
        return kept

    def _split(self, batch: PublishBatch, count: int) -> None:
        """Its first `count` entries are in the ledger for good."""
        if not count:
            return
        if batch.first_offset < 0:
            batch.first_offset = self.end.offset
        messages, size = sum(batch.counts[:count]), sum(map(len, batch.entries[:count]))
        self.end = TopicPosition(self.end.offset + messages, self.end.entries + count, self.end.size + size)
        batch.cut(count, size)

    def drop(self) -> list[PublishBatch]:
        """All that have no outcome, in order: nothing more is done for them."""
        left = [batch for flight in self._flights for batch in flight.batches]
        self._flights.clear()
        self._forget(left)
        return left + self.drop_queued()

    def drop_queued(self) -> list[PublishBatch]:
        """Those that wait: no ledger will have them."""
        left = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._forget(left)
        return left

    def refuse(self, batches: Sequence[PublishBatch]) -> None:
        """Of what was taken: no ledger takes them."""
        self._forget(batches)

    def _forget(self, batches: Sequence[PublishBatch]) -> None:
        self._added_bytes -= sum([batch.entry_bytes for batch in batches])
        self._added_entries -= sum([len(batch.entries) for batch in batches])

    def refuse_first(self) -> list[PublishBatch]:
        """Bookies refuse the first of those that wait; if that is once too often, it waits no longer."""
        if not self._queue:
            return []
        first = self.take(0)
        first[0].refusals += 1
        if first[0].refusals >= REFUSALS_MAX:
            self.refuse(first)
            return first
        self.put_back(first)
        return []


def together(batches: Sequence[PublishBatch]) -> tuple[Sequence[bytes], Sequence[int]]:
    """Their entries, and how many messages each has."""
    if len(batches) == 1:
        return batches[0].entries, batches[0].counts
    entries = [entry for batch in batches for entry in batch.entries]
    return entries, [count for batch in batches for count in batch.counts]
