"""Following a log: what a follower does when the next entry is not simply the next record of the segment at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.place import Place
from pyreplog._native.log.record import Record
from pyreplog.errors import TruncatedError

if TYPE_CHECKING:
    from pyreplog.log.access import Access


class Follower(Place):
    """Iterator and asynchronous iterator over the records of `follow`; one of the two at a time."""

    def __init__(self, log: Access, entry: int, timeout_us: int, batch_bytes: int) -> None:
        self._log, self._timeout_us, self._batch_bytes = log, timeout_us, batch_bytes

    async def __aiter__(self) -> AsyncIterator[Record]:
        timeout = None if self._timeout_us < 0 else self._timeout_us / 1e6
        while await self._log._reached(self.entry, timeout) or self.is_due():
            for record in self._closer_look(self._batch_bytes) or ():
                yield record

    def is_due(self) -> bool:
        """Whether there is something to give, or to raise."""
        return self._log.end > self.entry or self._log._truncations != self.truncations

    def _closer_look(self, batch_bytes: int) -> RecordBatch | None:
        """The entries from here on that are visible now, about `batch_bytes` of them; None when there are none.

        Errors: as scan; TruncatedError when entries that were given out have been cut since.
        """
        log = self._log
        if log._truncations != self.truncations:
            self.truncations, self.position, self.held = log._truncations, -1, None
            self._check_not_cut()
        if self.entry >= log.end:
            return None
        if self.position < 0:
            self.position = log._position_of(self.entry)
        batch = log._batch_at(self.position, batch_bytes, -1)
        if batch is None:
            return None
        if len(batch):
            self.held, _ = log._hold(batch[-1].position)
        return self.give(batch)

    def _check_not_cut(self) -> None:
        """After a truncation: the last record given out must still be the one in the log."""
        last = self.last_header
        if last is None:
            return
        end = self._log.end
        if end >= self.entry and self.entry - 1 < self._log.start:
            return  # trimmed since: there is nothing left to compare
        if end < self.entry or self._log.read(self.entry - 1).raw[: len(last)] != last:
            raise TruncatedError(f"entries before {self.entry}, where this follower was, have been cut")
