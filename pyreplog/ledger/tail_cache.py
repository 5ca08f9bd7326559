"""A cache of the batch that was appended to a ledger last, for readers that read it as soon as it is confirmed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.serial_executor import SerialExecutor

KEPT_BYTES = 64 << 10
"""Size of the largest batch that is kept, bytes. For a larger one, asking a bookie costs little more in proportion."""


class TailCache(SerialExecutor):
    """Keeps one small batch, from its append until the readers that were informed of it have run.

    The batch is in memory until then anyway, because it is being sent; an idle ledger keeps nothing. The cache does not
    know which entries are confirmed: callers of `read` check that before. Any thread.
    """

    def __init__(self, ledger: int) -> None:
        self._ledger = ledger
        self._batch: EntryBatch | None = None
        self._released: EntryBatch | None = None

    def keep(self, batch: EntryBatch) -> None:
        """Keep the batch that was appended last, if its buffer, which it may share with others, is small."""
        self._batch = batch if memoryview(batch.records).nbytes <= KEPT_BYTES else None

    def read(self, start: int, end: int, bytes_max: int) -> RecordBatch | None:
        """Read confirmed entries as `Ledger.read_range`; None: the cache does not have them."""
        batch = self._batch
        if batch is None or not batch.first <= start <= batch.last:
            return None
        records = batch.records
        if start > batch.first or end <= batch.last or batch.nbytes > bytes_max:
            records = _part(batch, start, min(end, batch.last + 1), bytes_max)
        return parse_entries(records, ledger=self._ledger, first=start, last=end - 1)

    def release(self) -> None:
        """Drop the batch after the readers that this thread has informed of it have run."""
        self._released = self._batch
        self._go_on()

    def _run(self) -> None:
        """Drop the batch, unless a newer one was appended meanwhile."""
        if self._batch is self._released:
            self._batch = None
        self._released = None


def _part(batch: EntryBatch, start: int, end: int, bytes_max: int) -> memoryview:
    """Return the records of entries [start, end): at least one, and no more than `bytes_max` bytes."""
    offsets = cast(Sequence[int], batch.offsets)
    index, stop = start - batch.first, end - batch.first
    stop = min(stop, max(bisect_right(offsets, offsets[index] + bytes_max) - 1, index + 1))
    return memoryview(batch.records)[offsets[index] : offsets[stop]]
