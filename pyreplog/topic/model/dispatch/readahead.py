"""Reads of what was never delivered, several at a time, their answers put in order."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from pyreplog._native.topic.messages import MessageBatch


@dataclass(slots=True)
class _Reading:
    id: int
    offset: int
    end: int  # once it is answered, what it reached
    batch: MessageBatch | None = None


class ReadAhead:
    """Where the reading is. Answers of reads that were begun before `restart` are not known any more.

    position: offset of the next message to be handed on; all before it were, or need not be.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._line: list[_Reading] = []  # by offset
        self.unanswered = 0
        """Reads under way: how many."""

    @property
    def is_idle(self) -> bool:
        """No read is under way, and none waits for one before it."""
        return not self._line

    @property
    def under_way(self) -> list[int]:
        """Ids of the reads without an answer."""
        return [reading.id for reading in self._line if reading.batch is None]

    @property
    def expected(self) -> int:
        """How many messages those may bring."""
        count = 0
        for reading in self._line:
            if reading.batch is None:
                count += reading.end - reading.offset
        return count

    def next(self) -> tuple[int, int | None]:
        """Where to read next, and up to where when something behind it is read already."""
        at = self.position
        for reading in self._line:
            if reading.offset > at:
                return at, reading.offset
            at = max(at, reading.end)
        return at, None

    def begin(self, read_id: int, offset: int, end: int) -> None:
        reading = _Reading(read_id, offset, end)
        if self._line:
            bisect.insort(self._line, reading, key=lambda reading: reading.offset)
        else:
            self._line.append(reading)
        self.unanswered += 1

    def find(self, read_id: int) -> int | None:
        """The offset that a read began at."""
        for reading in self._line:
            if reading.id == read_id:
                return reading.offset
        return None

    def answered(self, read_id: int, batch: MessageBatch) -> None:
        for reading in self._line:
            if reading.id == read_id and reading.batch is None:
                reading.batch, reading.end = batch, batch.end
                self.unanswered -= 1

    def ready(self) -> list[MessageBatch]:
        """What can be handed on now, in order; entries that two reads brought, once."""
        ready = []
        while self._line and self._line[0].offset <= self.position and (found := self._line[0].batch) is not None:
            del self._line[0]
            fresh = 0 if found.first >= self.position else int(np.searchsorted(found.offset, self.position))
            self.position = max(self.position, found.end)
            if fresh < len(found):
                ready.append(found.slice(fresh, len(found)))
        return ready

    def failed(self, read_id: int) -> None:
        """What it was to read is read by another."""
        self._line = [reading for reading in self._line if reading.id != read_id]
        self.unanswered = len(self.under_way)

    def pass_over(self, offset: int) -> None:
        """Nothing below is wanted any more."""
        if offset > self.position:
            self.position = offset

    def restart(self, position: int) -> list[int]:
        """Go anywhere; the ids of reads whose answers count for nothing now."""
        forgotten = self.under_way
        self.position, self._line, self.unanswered = position, [], 0
        return forgotten
