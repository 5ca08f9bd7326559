"""The reads of one subscription: what is read next and how much, answers put in order, retries after a failure."""

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
"""No more reads are begun while so many of before a rewind have no answer."""

RETRY_FIRST_US, RETRY_MAX_US = 100_000, 10_000_000

BYTES_FIRST = 1 << 20
BYTES_MAX = 8 << 20
RECORD_BYTES = 72
"""Bytes of an entry's record beside its value."""

_SLACK = 1.1
_WEIGHT = 8  # of the average size of messages so far, against one answer


class Reread(NamedTuple):
    """A read of messages that were read before. of_blocked: they stay put aside until they are delivered."""

    id: int
    ranges: Ranges
    of_blocked: bool


@dataclass(slots=True)
class _ReadAhead:
    """A read of messages that were never delivered."""

    id: int
    offset: int
    end: int  # once it is answered: of the batch
    batch: MessageBatch | None = None


class Reading:
    """Reads ahead, several at a time, and beside them one read at a time of messages that come again, so that these
    stay in order.

    position: offset of the next message to be handed on; all before it were, or need not be. A read that a rewind
    overtakes is forgotten: its answer moves nothing. The size of reads doubles while consumers keep up, and never
    exceeds their room by much.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.again: Reread | None = None
        self.retry_us = 0
        self.failures = 0
        self.error = ""
        self._ahead: list[_ReadAhead] = []  # by offset
        self._unanswered = 0  # of these
        self._forgotten: set[int] = set()
        self._last_id = 0
        self._bytes_max = BYTES_FIRST  # of one read
        self._message_bytes = 0.0  # stored bytes of a message, about; 0: unknown

    # ---- how many there are ---------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Reads without an answer, but for forgotten ones."""
        return self._unanswered + (self.again is not None)

    @property
    def forgotten(self) -> int:
        return len(self._forgotten)

    @property
    def is_idle(self) -> bool:
        """No read ahead is under way, and none waits for one before it."""
        return not self._ahead

    def may_begin(self, now_us: int) -> bool:
        under_way = self._unanswered + (self.again is not None)
        return under_way < READS_MAX and len(self._forgotten) < FORGOTTEN_MAX and now_us >= self.retry_us

    # ---- beginning ------------------------------------------------------------------------------------------

    def begin_again(self, ranges: Ranges, *, of_blocked: bool) -> ReadEntries:
        """Read messages once more that were read before."""
        self._last_id += 1
        self.again = Reread(self._last_id, ranges, of_blocked)
        starts, ends = ranges
        messages = int(ends[-1] - starts[0])
        return ReadEntries(self._last_id, int(starts[0]), int(ends[-1]), self._bytes_for(messages))

    def begin_ahead(self, end: int, capacity: int) -> ReadEntries | None:
        """The next read ahead for so many messages; None: those that are under way suffice, or reach the end."""
        offset = self.position
        for read in self._ahead:
            if read.offset > offset:  # a gap: up to the read behind it
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
        """A little more than so many messages take, rather than one more read for the last few."""
        if not self._message_bytes:
            return self._bytes_max
        return min(self._bytes_max, int(messages * self._message_bytes * _SLACK) + 1)

    # ---- answers --------------------------------------------------------------------------------------------

    def starts_at(self, read_id: int) -> int | None:
        """Where a read began; None: it is forgotten, and this was its answer."""
        if self.again is not None and self.again.id == read_id:
            return int(self.again.ranges[0][0])
        self._forgotten.discard(read_id)
        for read in self._ahead:
            if read.id == read_id:
                return read.offset
        return None

    def answered(self, read_id: int, batch: MessageBatch) -> tuple[MessageBatch | None, Reread | None]:
        """An answer came, of whole entries. Of a replay: the messages asked for, and what else was asked for."""
        self.failures, self.retry_us, self.error = 0, 0, ""
        if messages := len(batch):
            size = (batch.stored_bytes + RECORD_BYTES * batch.entries) / messages
            self._message_bytes += (size - self._message_bytes) / _WEIGHT if self._message_bytes else size
        again = self.again
        if again is None or again.id != read_id:
            for read in self._ahead:
                if read.id == read_id and read.batch is None:
                    read.batch, read.end = batch, batch.end
                    self._unanswered -= 1
            return None, None
        self.again = None
        starts, ends = again.ranges
        wanted = batch.select(np.flatnonzero(within(batch.offset, starts, ends)))
        left = ends > batch.end
        return wanted, again._replace(ranges=(np.maximum(starts[left], batch.end), ends[left]))

    def ready(self) -> list[MessageBatch]:
        """Answers that can be handed on now, in order; entries that two reads brought, once."""
        ready = []
        while self._ahead and self._ahead[0].offset <= self.position and (batch := self._ahead[0].batch) is not None:
            del self._ahead[0]
            fresh = 0 if batch.first >= self.position else int(np.searchsorted(batch.offset, self.position))
            self.position = max(self.position, batch.end)
            if fresh < len(batch):
                ready.append(batch.slice(fresh, len(batch)))
        return ready

    def failed(self, read_id: int, why: str, now_us: int) -> Reread | None:
        """A read brought nothing: another one reads the same later. The ranges of a replay, if it was one."""
        self.error = why
        self.retry_us = now_us + min(RETRY_FIRST_US << min(self.failures, 16), RETRY_MAX_US)
        self.failures += 1
        again = self.again
        if again is not None and again.id == read_id:
            self.again = None
            return again
        self._ahead = [read for read in self._ahead if read.id != read_id]
        self._unanswered = sum(read.batch is None for read in self._ahead)
        return None

    # ---- moving ---------------------------------------------------------------------------------------------

    def kept_up(self) -> None:
        """All of an answer was delivered at once."""
        self._bytes_max = min(2 * self._bytes_max, BYTES_MAX)

    def fell_behind(self) -> None:
        """Some of an answer waits for room."""
        self._bytes_max = max(self._bytes_max // 2, BYTES_FIRST)

    def pass_over(self, offset: int) -> None:
        """Nothing below is wanted any more."""
        if offset > self.position:
            self.position = offset

    def restart(self, position: int) -> None:
        """Read on from there, forward or back; answers of reads that are under way count for nothing."""
        self._forgotten.update(read.id for read in self._ahead if read.batch is None)
        self.position, self._ahead, self._unanswered = position, [], 0
        if self.again is not None:
            self._forgotten.add(self.again.id)
            self.again = None
