"""What was appended to a ledger last, as encoded, for those who read it as soon as they are told that it is there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.serial_executor import SerialExecutor

KEPT_BYTES = 64 << 10
"""More is not kept: reading that much from a bookie costs little of what it takes anyway."""


class TailCache(SerialExecutor):
    """One batch, if it is small, from when it was appended until those who were told had their turn.

    The writer has it that long anyway, while it is on its way; nothing stays of a ledger that is idle. It knows nothing
    of what is confirmed: who reads has looked at that before. Any thread.
    """

    def __init__(self, ledger: int) -> None:
        self._ledger = ledger
        self._batch: EntryBatch | None = None
        self._told: EntryBatch | None = None

    def keep(self, batch: EntryBatch) -> None:
        """It was appended, behind what is kept."""
        self._batch = batch if memoryview(batch.records).nbytes <= KEPT_BYTES else None  # others may lie beside it

    def read(self, start: int, end: int, bytes_max: int) -> RecordBatch | None:
        """As `Ledger.read_range`, of confirmed entries; None: they are not here."""
        batch = self._batch
        if batch is None or not batch.first <= start <= batch.last:
            return None
        records = batch.records
        if start > batch.first or end <= batch.last or batch.nbytes > bytes_max:
            records = _some_of(batch, start, min(end, batch.last + 1), bytes_max)
        return parse_entries(records, ledger=self._ledger, first=start, last=end - 1)

    def told(self) -> None:
        """Those who wait for what is confirmed were told, by this thread: it goes behind their turns."""
        self._told = self._batch
        self._go_on()

    def _run(self) -> None:
        """What was appended meanwhile stays, until that is told."""
        if self._batch is self._told:
            self._batch = None
        self._told = None


def _some_of(batch: EntryBatch, start: int, end: int, bytes_max: int) -> memoryview:
    """Records of entries [start, end), at least one, and no more than have `bytes_max` bytes."""
    offsets = cast(Sequence[int], batch.offsets)
    at, stop = start - batch.first, end - batch.first
    stop = min(stop, max(bisect_right(offsets, offsets[at] + bytes_max) - 1, at + 1))
    return memoryview(batch.records)[offsets[at] : offsets[stop]]
