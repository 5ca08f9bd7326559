"""The reads of one subscription that are under way, and when to try again after one failed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.effects import ReadEntries
from pyreplog.topic.model.dispatch.offsets import within
from pyreplog.topic.model.dispatch.readahead import ReadAhead
from pyreplog.topic.model.dispatch.readsize import ReadSize
from pyreplog.topic.model.dispatch.replay import Ranges

READS_MAX = 2
FORGOTTEN_MAX = 8
"""No more reads are begun while so many of before a rewind have no answer."""

RETRY_FIRST_US, RETRY_MAX_US = 100_000, 10_000_000


class Reread(NamedTuple):
    """A read of messages that were read before. of_blocked: they stay put aside until they are delivered."""

    id: int
    ranges: Ranges
    of_blocked: bool


class Reading:
    """One read for replays at a time, so that these stay in order, beside those that read on.

    A read that a rewind overtakes is forgotten: its answer moves nothing.
    """

    def __init__(self, position: int) -> None:
        self.ahead = ReadAhead(position)
        self.size = ReadSize()
        self.again: Reread | None = None
        self.retry_us = 0
        self.failures = 0
        self.error = ""
        self._forgotten: set[int] = set()
        self._last_id = 0

    @property
    def under_way(self) -> int:
        """Reads without an answer, but for forgotten ones."""
        return self.ahead.unanswered + (self.again is not None)

    @property
    def forgotten(self) -> int:
        return len(self._forgotten)

    def may_begin(self, now_us: int) -> bool:
        under_way = self.ahead.unanswered + (self.again is not None)
        return under_way < READS_MAX and len(self._forgotten) < FORGOTTEN_MAX and now_us >= self.retry_us

    def begin_again(self, ranges: Ranges, *, of_blocked: bool) -> ReadEntries:
        self._last_id += 1
        self.again = Reread(self._last_id, ranges, of_blocked)
        starts, ends = ranges
        messages = int(ends[-1] - starts[0])
        return ReadEntries(self._last_id, int(starts[0]), int(ends[-1]), self.size.bytes_for(messages))

    def begin_ahead(self, end: int, capacity: int) -> ReadEntries | None:
        """The next read for so many messages; None: those that are under way suffice, or reach the end."""
        offset, bound = self.ahead.next()
        end = end if bound is None else min(bound, end)
        wanted = capacity - self.ahead.expected
        if offset >= end or wanted <= 0:
            return None
        size = self.size.bytes_for(wanted)
        if (count := self.size.messages_in(size)) is not None:
            end = min(end, offset + min(count, wanted))
        self._last_id += 1
        self.ahead.begin(self._last_id, offset, end)
        return ReadEntries(self._last_id, offset, end, size)

    def starts_at(self, read_id: int) -> int | None:
        """Where a read began; None: it is forgotten, and this was its answer."""
        if self.again is not None and self.again.id == read_id:
            return int(self.again.ranges[0][0])
        self._forgotten.discard(read_id)
        return self.ahead.find(read_id)

    def answered(self, read_id: int, batch: MessageBatch) -> tuple[MessageBatch | None, Reread | None]:
        """An answer came. If it is that of a replay: the messages asked for, and what else was asked for."""
        self.failures, self.retry_us, self.error = 0, 0, ""
        self.size.learn(batch)
        again = self.again
        if again is None or again.id != read_id:
            self.ahead.answered(read_id, batch)
            return None, None
        self.again = None
        starts, ends = again.ranges
        found = batch.select(np.flatnonzero(within(batch.offset, starts, ends)))
        left = ends > batch.end
        return found, again._replace(ranges=(np.maximum(starts[left], batch.end), ends[left]))

    def failed(self, read_id: int, why: str, now_us: int) -> Reread | None:
        """What a replay asked for, if it was one."""
        self.error = why
        self.retry_us = now_us + min(RETRY_FIRST_US << min(self.failures, 16), RETRY_MAX_US)
        self.failures += 1
        again = self.again
        if again is not None and again.id == read_id:
            self.again = None
            return again
        self.ahead.failed(read_id)
        return None

    def restart(self, position: int) -> None:
        """Read on from anywhere; whatever is under way counts for nothing."""
        self._forgotten.update(self.ahead.restart(position))
        if self.again is not None:
            self._forgotten.add(self.again.id)
            self.again = None
