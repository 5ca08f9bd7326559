"""Entries that arrive a second time: equal bytes are stored once, other bytes are refused."""

from __future__ import annotations

import numpy as np

from pyreplog._native.ledger_log.entries import compare_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog.bookie.entry_log import EntryReader
from pyreplog.bookie.protocol import READ_BYTES_MAX, Request
from pyreplog.errors import CorruptionError, InvalidRecordsError, OtherRecordError

_STEP_MAX = 255
"""Entries with the same distance up to this one are looked up without those between them, as a stripe of a ledger."""


def are_stored(log: EntryReader, request: Request) -> bool:
    """Return whether all entries of an ADD are stored already.

    A damaged copy does not count as stored; the new one replaces it. Raises OtherRecordError if another record is
    stored under the number of one of these entries.
    """
    batch = parse_entries(request.records, ledger=request.ledger, first=request.first, last=request.last)
    try:
        stored = _count_stored(log, request, batch)
    except (CorruptionError, InvalidRecordsError):  # one of them is damaged: check them one by one
        stored = sum(_is_stored(log, request.ledger, record) for record in batch)
    return stored == len(batch) and batch.next_position == memoryview(request.records).nbytes


def _count_stored(log: EntryReader, request: Request, batch: RecordBatch) -> int:
    """Count the entries that are stored with equal bytes, a few megabytes of stored records at a time.

    Raises CorruptionError and InvalidRecordsError for damage, and OtherRecordError.
    """
    first, last = int(batch.entry[0]), int(batch.entry[-1])
    distances = np.unique(np.diff(batch.entry))
    step = int(distances[0]) if len(distances) == 1 and distances[0] <= _STEP_MAX else 1
    start, count = first, 0
    while start <= last:
        stored, stop = log.lend(request.ledger, start, last + 1, READ_BYTES_MAX, step, 1)
        if len(stored):
            parsed = parse_entries(stored, ledger=request.ledger, first=start, last=stop - 1)
            if parsed.next_position < len(stored):
                raise InvalidRecordsError(parsed.next_position, "an intact record", "damage")
            equal, differs = compare_entries(request.records, stored)
            if differs >= 0:
                raise _other_record(request.ledger, batch[int(np.searchsorted(batch.position, differs))])
            count += equal
        start = stop
    return count


def _is_stored(log: EntryReader, ledger: int, record: Record) -> bool:
    try:
        stored, _ = log.read(ledger, record.entry, record.entry + 1, 1)
    except CorruptionError:
        return False
    if stored and compare_entries(record.raw, stored)[1] >= 0:
        raise _other_record(ledger, record)
    return bool(stored)


def _other_record(ledger: int, record: Record) -> OtherRecordError:
    return OtherRecordError(
        record.position, f"the record that is stored as entry {record.entry} of ledger {ledger}", "another one"
    )
