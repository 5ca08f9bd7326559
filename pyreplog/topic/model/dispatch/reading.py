"""The reads of one subscription: their start and size, the order of their results, and retries after a failure."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.effects import ReadEntries
from pyreplog.topic.model.dispatch.offsets import within
from pyreplog.topic.model.dispatch.redelivery import Ranges

READS_MAX = 2
FORGOTTEN_MAX = 8
"""No read begins while so many reads from before a rewind are pending."""

RETRY_FIRST_US, RETRY_MAX_US = 100_000, 10_000_000

BYTES_FIRST = 1 << 20
BYTES_MAX = 8 << 20
RECORD_BYTES = 72
"""Bytes of an entry's record in addition to its value."""

_SLACK = 1.1
_WEIGHT = 8  # of the average message size so far, relative to one result


class Reread(NamedTuple):
    """A repeated read of messages. of_blocked: they stay blocked in the selector until they are delivered."""

    id: int
    ranges: Ranges
    of_blocked: bool


@dataclass(slots=True)
class _ReadAhead:
    """A read of messages that were never delivered."""

    id: int
    offset: int
    end: int  # of the batch, once the result is there
    batch: MessageBatch | None = None


class Reading:
    """Reads ahead, several reads at a time; besides, one read at a time of messages to be delivered again, in their
    order.

    A rewind forgets the pending reads: their results are ignored. The size of reads doubles while consumers keep up,
    and never exceeds their room by much.

    Attributes:
        position: offset of the next message to be handed on; earlier messages were handed on, or skipped.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.reread: Reread | None = None
        self.retry_us = 0
        self.failures = 0
        self.error = ""
        self._ahead: list[_ReadAhead] = []  # by offset
        self._unanswered = 0  # number of pending ones
        self._forgotten: set[int] = set()
        self._last_id = 0
        self._bytes_max = BYTES_FIRST  # of one read
        self._message_bytes = 0.0  # estimated stored bytes of a message; 0: unknown

    # ---- state ---------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Number of pending reads, without forgotten ones."""
        return self._unanswered + (self.reread is not None)

    @property
    def forgotten(self) -> int:
        return len(self._forgotten)

    @property
    def is_idle(self) -> bool:
        """No read ahead is pending, and no result waits for an earlier one."""
        return not self._ahead

    def may_begin(self, now_us: int) -> bool:
        under_way = self._unanswered + (self.reread is not None)
        return under_way < READS_MAX and len(self._forgotten) < FORGOTTEN_MAX and now_us >= self.retry_us

    # ---- beginning ------------------------------------------------------------------------------------------

    def begin_again(self, ranges: Ranges, *, of_blocked: bool) -> ReadEntries:
        """Return a read of messages that were read before."""
        self._last_id += 1
        self.reread = Reread(self._last_id, ranges, of_blocked)
        starts, ends = ranges
        messages = int(ends[-1] - starts[0])
        return ReadEntries(self._last_id, int(starts[0]), int(ends[-1]), self._bytes_for(messages))

    def begin_ahead(self, end: int, capacity: int) -> ReadEntries | None:
        """Return the next read ahead for so many messages; None: the pending reads suffice, or reach the end."""
        offset = self.position
        for read in self._ahead:
            if read.offset > offset:  # a gap: read up to the read behind it
                end = min(end, read.offset)
                break
            offset = max(offset, read.end)
        wanted = capacity
        for read in self._ahead:
            if read.batch is None:
                wanted -= read.end - read.offset
        if offset >= end or wanted <= 0:
            return None
        size = self._bytes_for(wanted)
        if self._message_bytes:
            end = min(end, offset + min(int(size / self._message_bytes) + 1, wanted))
        self._last_id += 1
        read = _ReadAhead(self._last_id, offset, end)
        if self._ahead:
            bisect.insort(self._ahead, read, key=lambda read: read.offset)
        else:
            self._ahead.append(read)
        self._unanswered += 1
        return ReadEntries(self._last_id, offset, end, size)

    def _bytes_for(self, messages: int) -> int:
        """Return a little more than the bytes of so many messages, to avoid another read for the last few."""
        if not self._message_bytes:
            return self._bytes_max
        return min(self._bytes_max, int(messages * self._message_bytes * _SLACK) + 1)

    # ---- results --------------------------------------------------------------------------------------------

    def starts_at(self, read_id: int) -> int | None:
        """Return where a read began; None: it was forgotten, and this was its result."""
        if self.reread is not None and self.reread.id == read_id:
            return int(self.reread.ranges[0][0])
        self._forgotten.discard(read_id)
        for read in self._ahead:
            if read.id == read_id:
                return read.offset
        return None

    def answered(self, read_id: int, batch: MessageBatch) -> tuple[MessageBatch | None, Reread | None]:
        """Note the result of a read, whole entries.

        Returns, for a replay, the requested messages and the ranges that were not read.
        """
        self.failures, self.retry_us, self.error = 0, 0, ""
        if messages := len(batch):
            size = (batch.stored_bytes + RECORD_BYTES * batch.entries) / messages
            self._message_bytes += (size - self._message_bytes) / _WEIGHT if self._message_bytes else size
        reread = self.reread
        if reread is None or reread.id != read_id:
            for read in self._ahead:
                if read.id == read_id and read.batch is None:
                    read.batch, read.end = batch, batch.end
                    self._unanswered -= 1
            return None, None
        self.reread = None
        starts, ends = reread.ranges
        wanted = batch.select(np.flatnonzero(within(batch.offset, starts, ends)))
        is_unread = ends > batch.end
        return wanted, reread._replace(ranges=(np.maximum(starts[is_unread], batch.end), ends[is_unread]))

    def ready(self) -> list[MessageBatch]:
        """Return the results that can be handed on now, in order, each entry once."""
        ready = []
        while self._ahead and self._ahead[0].offset <= self.position and (batch := self._ahead[0].batch) is not None:
            del self._ahead[0]
            fresh = 0 if batch.first >= self.position else int(np.searchsorted(batch.offset, self.position))
            self.position = max(self.position, batch.end)
            if fresh < len(batch):
                ready.append(batch.slice(fresh, len(batch)))
        return ready

    def failed(self, read_id: int, why: str, now_us: int) -> Reread | None:
        """Note that a read failed; the same range is read again later. Returns the ranges of a replay."""
        self.error = why
        self.retry_us = now_us + min(RETRY_FIRST_US << min(self.failures, 16), RETRY_MAX_US)
        self.failures += 1
        reread = self.reread
        if reread is not None and reread.id == read_id:
            self.reread = None
            return reread
        self._ahead = [read for read in self._ahead if read.id != read_id]
        self._unanswered = sum(read.batch is None for read in self._ahead)
        return None

    # ---- moving ---------------------------------------------------------------------------------------------

    def kept_up(self) -> None:
        """Note that a result was delivered at once."""
        self._bytes_max = min(2 * self._bytes_max, BYTES_MAX)

    def fell_behind(self) -> None:
        """Note that a part of a result waits for room."""
        self._bytes_max = max(self._bytes_max // 2, BYTES_FIRST)

    def pass_over(self, offset: int) -> None:
        """Skip all messages below an offset."""
        if offset > self.position:
            self.position = offset

    def restart(self, position: int) -> None:
        """Continue at a position, forward or back; results of pending reads are ignored."""
        self._forgotten.update(read.id for read in self._ahead if read.batch is None)
        self.position, self._ahead, self._unanswered = position, [], 0
        if self.reread is not None:
            self._forgotten.add(self.reread.id)
            self.reread = None
