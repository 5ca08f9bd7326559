"""The entries of a topic in append: queued, in a ledger that has not confirmed them, confirmed. No I/O.

Outcomes come in the order of submission, also when ledgers fail: entries that a ledger kept get their offsets, the
others go to the front of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog._native.machines.named_tuples import make_named
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, PublishBatch
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition

GROUP_BYTES = 1 << 20
"""Approximate bytes of queued entries that are sent together."""

REFUSALS_MAX = 3
"""Attempts for a batch that bookies refuse, each alone and in another ledger."""


class PendingAppend(NamedTuple):
    """Batches in a ledger, the future of their confirmation, and their first entry there."""

    future: AppendFuture[Any]
    batches: list[PublishBatch]
    first: int


class AppendPipeline:
    """The entries of one topic in append.

    Attributes:
        end: confirmed end of the topic.
        entries: entries that were handed to the open ledger.
        size: their bytes.
    """

    def __init__(self, end: TopicPosition) -> None:
        self.end = end
        self.entries = self.size = self._created_us = 0
        self._queue: deque[PublishBatch] = deque()
        self._queued_bytes = 0
        self._pending: deque[PendingAppend] = deque()
        self._added_bytes, self._added_entries = end.size, end.entries  # up to `end`, plus those without an outcome
        self._unstored = 0  # batches that the last ledger did not keep: the first ones of the queue
        self._suspects = 0  # first batches without an outcome, of which bookies refuse one: each is sent alone

    @property
    def is_queued(self) -> bool:
        """Whether batches wait for a ledger."""
        return bool(self._queue)

    @property
    def is_due(self) -> bool:
        """Whether batches are to be sent now.

        The first batch is sent at once. Batches that come while the ledger is busy are sent together, because a few
        large requests cost much less than many small ones. A suspect of a refusal is sent when nothing else is pending.
        """
        return bool(self._queue) and (not self._pending or (not self._suspects and self._queued_bytes >= STAGE_BYTES))

    @property
    def has_pending(self) -> bool:
        """Whether a ledger has entries that it did not confirm."""
        return bool(self._pending)

    @property
    def pending(self) -> tuple[int, int]:
        """Bytes and entries without an outcome."""
        end = self.end  # read first, so that entries added meanwhile count
        return self._added_bytes - end.size, self._added_entries - end.entries

    def add(self, batches: Sequence[PublishBatch]) -> None:
        self._queue.extend(batches)
        size = entries = 0
        for batch in batches:
            size, entries = size + batch.entry_bytes, entries + len(batch.entries)
        self._queued_bytes += size
        self._added_bytes += size
        self._added_entries += entries

    # ---- sending --------------------------------------------------------------------------------------

    def begin_ledger(self, created_us: int) -> None:
        """Send the queued batches to a new ledger."""
        self.entries, self.size, self._created_us = 0, 0, created_us

    def is_full(self, config: TopicConfig, now_us: int) -> bool:
        """Return whether the next ledger is due. An empty ledger stays open, however old it is."""
        if not self.entries:
            return False
        return self.is_old(config, now_us) or self.entries >= config.roll_entries or self.size >= config.roll_bytes

    def is_old(self, config: TopicConfig, now_us: int) -> bool:
        """Return whether the open ledger is too old.

        So is one that seems to be created as far in the future, because the clock was set back: its append times stand
        still until then.
        """
        return abs(now_us - self._created_us) >= config.roll_ms * 1000

    def take(self, entries_max: int) -> list[PublishBatch]:
        """Return the next batches to be sent, at least one, with about GROUP_BYTES and at most `entries_max` entries.

        A suspect of a refusal is taken alone. The caller passes them to `sent`, `put_back` or `refuse`.
        """
        queue = self._queue
        taken = [queue.popleft()]
        size, entries = taken[0].entry_bytes, len(taken[0].entries)
        while queue and not self._suspects:
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

    def sent(self, batches: list[PublishBatch], future: AppendFuture[Any]) -> None:
        """Note that the open ledger took batches."""
        self._pending.append(make_named(PendingAppend, future, batches, self.entries))
        for batch in batches:
            self.entries += len(batch.entries)
            self.size += batch.entry_bytes

    # ---- outcomes -------------------------------------------------------------------------------------------

    def take_confirmed(self) -> tuple[list[PublishBatch], BaseException | None]:
        """Return the batches that were confirmed since, in order, with their offsets, and the error of the next one."""
        confirmed: list[PublishBatch] = []
        while self._pending and self._pending[0].future.done():
            error = self._pending[0].future.exception()
            if error is not None:
                return confirmed, error
            append = self._pending.popleft()
            self._confirm(append.batches)
            self._clear(len(append.batches))
            confirmed += append.batches
        return confirmed, None

    def _confirm(self, batches: Sequence[PublishBatch]) -> None:
        offset, entries, size = self.end
        for batch in batches:
            first = offset if batch.first_offset < 0 else batch.first_offset
            offset, entries = offset + sum(batch.counts), entries + len(batch.entries)
            size += batch.entry_bytes
            batch.offsets = range(first, offset)
        self.end = make_named(TopicPosition, offset, entries, size)

    def end_ledger(self, entries: int) -> list[PublishBatch]:
        """Note that the ledger was closed with so many entries; return the batches that it kept.

        The others go to the front of the queue.
        """
        kept: list[PublishBatch] = []
        unstored: list[PublishBatch] = []
        for append in self._pending:
            room = entries - append.first
            for batch in append.batches:
                count = len(batch.entries)
                if count <= room:
                    self._confirm([batch])
                    self._clear(1)
                    kept.append(batch)
                else:
                    self._split(batch, max(room, 0))
                    unstored.append(batch)
                room -= count
        self._pending.clear()
        self._unstored = len(unstored)
        self.put_back(unstored)
        return kept

    def _clear(self, count: int) -> None:
        """Note that the first batches without an outcome have one now: they are no suspects."""
        self._suspects = max(self._suspects - count, 0)

    def _split(self, batch: PublishBatch, count: int) -> None:
        """Note that the first `count` entries of a batch are stored, and cut them off."""
        if not count:
            return
        if batch.first_offset < 0:
            batch.first_offset = self.end.offset
        messages, size = sum(batch.counts[:count]), sum(map(len, batch.entries[:count]))
        self.end = TopicPosition(self.end.offset + messages, self.end.entries + count, self.end.size + size)
        batch.cut(count, size)

    def drop(self) -> list[PublishBatch]:
        """Remove and return all batches without an outcome, in order."""
        dropped = [batch for append in self._pending for batch in append.batches]
        self._pending.clear()
        self._clear(len(dropped))
        self._forget(dropped)
        return dropped + self.drop_queued()

    def drop_queued(self) -> list[PublishBatch]:
        """Remove and return the queued batches."""
        dropped = list(self._queue)
        self._queue.clear()
        self._queued_bytes = self._unstored = 0
        self._suspects = min(self._suspects, sum([len(append.batches) for append in self._pending]))
        self._forget(dropped)
        return dropped

    def refuse(self, batches: Sequence[PublishBatch]) -> None:
        """Forget batches that were taken, because no ledger can store them."""
        self._clear(len(batches))
        self._forget(batches)

    def _forget(self, batches: Sequence[PublishBatch]) -> None:
        self._added_bytes -= sum([batch.entry_bytes for batch in batches])
        self._added_entries -= sum([len(batch.entries) for batch in batches])

    def note_refusal(self) -> list[PublishBatch]:
        """Note that bookies refused a batch which the last ledger did not keep; return it after too many attempts.

        Which batch it was is known if it was the only one. Otherwise each of them is sent alone from now on.
        """
        unstored, self._unstored = self._unstored, 0
        self._suspects = max(self._suspects, unstored)
        if unstored != 1:
            return []
        first = self.take(0)
        first[0].refusals += 1
        if first[0].refusals >= REFUSALS_MAX:
            self.refuse(first)
            return first
        self.put_back(first)
        return []


def together(
    batches: Sequence[PublishBatch],
) -> tuple[Sequence[bytes], Sequence[int], Sequence[bytes | None] | None]:
    """Return the entries of several batches, the number of messages of each entry, and its attributes, or None."""
    if len(batches) == 1:
        return batches[0].entries, batches[0].counts, batches[0].attributes
    entries = [entry for batch in batches for entry in batch.entries]
    counts = [count for batch in batches for count in batch.counts]
    if all(batch.attributes is None for batch in batches):
        return entries, counts, None
    attributes: list[bytes | None] = []
    for batch in batches:
        attributes += [None] * len(batch.entries) if batch.attributes is None else batch.attributes
    return entries, counts, attributes
