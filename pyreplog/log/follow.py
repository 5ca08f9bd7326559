"""Following a log: where a follower stands, and iterating over what comes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from pyreplog._native.batch import RecordBatch
from pyreplog._native.record import Record
from pyreplog._native.segment import Pin, Segment
from pyreplog.errors import TruncatedError

if TYPE_CHECKING:
    from pyreplog.log.access import Access

SLICE_US = 200_000  # a sleeping follower looks up this often, for Ctrl-C and a killed writer
_HEADER = 24  # length, CRC, stamp, time: what tells one record from another in its place


class Cursor:
    """The place of one follower: the next entry it wants, and where that lies."""

    def __init__(self, log: Access, entry: int, batch_bytes: int) -> None:
        self.entry = entry
        self._log, self._batch_bytes = log, batch_bytes
        self._position: int | None = None
        self._held: tuple[Pin, Segment] | None = None  # the segment that the last entries came from
        self._truncations = log._truncations
        self._last: bytes | None = None  # header of the last one given out; a copy: recovery cuts in place

    def is_due(self) -> bool:
        """Whether `take` has something to give, or to raise."""
        return self._log.end > self.entry or self._log._truncations != self._truncations

    def wait(self, timeout: float | None) -> RecordBatch | None:
        """The next entries, waited for; None when `timeout` seconds have passed without any.

        Errors: as scan; TruncatedError when entries that were given out have been cut since.
        """
        log = self._log
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            log._check_open()
            if self._held is not None and self._position is not None:
                left = SLICE_US if deadline is None else min(SLICE_US, max(0, int((deadline - time.monotonic()) * 1e6)))
                batch = log._follow(self._held[1], self._position, self._batch_bytes, self._truncations, left)
                if batch is not None and len(batch):
                    return self._given(batch)
            if not log._wait_for(self, deadline):
                return None
            batch = self.take()
            if batch is not None:
                return batch

    def take(self) -> RecordBatch | None:
        """The entries from here on that are visible now, about `batch_bytes` of them; None when there are none.

        Errors: as `wait`.
        """
        log = self._log
        if log._truncations != self._truncations:
            self._truncations, self._position, self._held = log._truncations, None, None
            self._check_not_cut()
        if self.entry >= log.end:
            return None
        if self._position is None:
            self._position = log._position_of(self.entry)
        batch = log._batch_at(self._position, self._batch_bytes, -1)
        if batch is None:
            return None
        self._position = batch.next_position
        if not len(batch):
            return None
        self._held = log._hold(batch[-1].position)
        return self._given(batch)

    def _given(self, batch: RecordBatch) -> RecordBatch:
        self._position = batch.next_position
        last = batch[-1]
        self._last, self.entry = bytes(last.raw[:_HEADER]), last.entry + 1
        return batch

    def _check_not_cut(self) -> None:
        """After a truncation: the last record given out must still be the one in the log."""
        if self._last is None:
            return
        end = self._log.end
        if end >= self.entry and self.entry - 1 < self._log.start:
            return  # trimmed since: there is nothing left to compare
        if end < self.entry or self._log.read(self.entry - 1).raw[:_HEADER] != self._last:
            raise TruncatedError(f"entries before {self.entry}, where this follower was, have been cut")


class Follower:
    """Iterator and asynchronous iterator over the records of `follow`; one of the two at a time."""

    def __init__(self, log: Access, cursor: Cursor, timeout: float | None) -> None:
        self._log, self._cursor, self._timeout = log, cursor, timeout

    def __iter__(self) -> Iterator[Record]:
        while (batch := self._cursor.wait(self._timeout)) is not None:
            yield from batch

    async def __aiter__(self) -> AsyncIterator[Record]:
        while await self._log._reached(self._cursor.entry, self._timeout) or self._cursor.is_due():
            for record in self._cursor.take() or ():
                yield record
