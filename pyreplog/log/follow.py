"""Following a log: where a follower stands, and iterating over what comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from pyreplog._native.record import Record, RecordBatch
from pyreplog.errors import TruncatedError

if TYPE_CHECKING:
    from pyreplog.log.access import Access

_HEADER = 24  # length, CRC, stamp, time: what tells one record from another in its place


class Cursor:
    """The place of one follower: the next entry it wants, and where that lies."""

    def __init__(self, log: Access, entry: int, batch_bytes: int) -> None:
        self.entry = entry
        self._log, self._batch_bytes = log, batch_bytes
        self._position: int | None = None
        self._truncations = log._truncations
        self._last: bytes | None = None  # header of the last record given out

    def is_due(self) -> bool:
        """Whether `take` has something to give, or to raise."""
        return self._log.end > self.entry or self._log._truncations != self._truncations

    def take(self) -> RecordBatch | None:
        """The entries from here on that are visible now, about `batch_bytes` of them; None when there are none.

        Errors: as scan; TruncatedError when entries that were given out have been cut since.
        """
        log = self._log
        if log._truncations != self._truncations:
            self._truncations, self._position = log._truncations, None
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
        self.entry = batch[-1].entry + 1
        self._last = bytes(batch[-1].raw[:_HEADER])
        return batch

    def _check_not_cut(self) -> None:
        """After a truncation: the last record given out must still be the one in the log."""
        if self._last is None:
            return
        end = self._log.end
        if end < self.entry or bytes(self._log.read(self.entry - 1).raw[:_HEADER]) != self._last:
            raise TruncatedError(f"entries before {self.entry}, where this follower was, have been cut")


class Follower:
    """Iterator and asynchronous iterator over the records of `follow`; one of the two at a time."""

    def __init__(self, log: Access, cursor: Cursor, timeout: float | None) -> None:
        self._log, self._cursor, self._timeout = log, cursor, timeout

    def __iter__(self) -> Iterator[Record]:
        while self._log._wait_for(self._cursor, self._timeout):
            yield from self._cursor.take() or ()

    async def __aiter__(self) -> AsyncIterator[Record]:
        while await self._log._reached(self._cursor.entry, self._timeout):
            for record in self._cursor.take() or ():
                yield record
