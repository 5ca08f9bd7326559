"""Entries that arrive a second time: equal bytes are stored once, other bytes are refused."""

from __future__ import annotations

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.log.record import Record
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.protocol import Request
from pyreplog.errors import CorruptionError, OtherRecordError

_STAMP = slice(8, 12)
"""The only field of a record that the log itself writes; see FORMAT.md."""


def are_stored(log: EntryLog, request: Request) -> bool:
    """Whether all entries of an ADD are stored already. A damaged copy does not count; the new one replaces it.

    Raises OtherRecordError if another record is stored as one of these entries.
    """
    batch = parse_entries(request.records, ledger=request.ledger, first=request.first, last=request.last)
    stored = sum(_is_stored(log, request.ledger, record) for record in batch)
    return stored == len(batch) and batch.next_position == memoryview(request.records).nbytes


def _is_stored(log: EntryLog, ledger: int, record: Record) -> bool:
    try:
        stored, _ = log.read(ledger, record.entry, record.entry + 1, 1)
    except CorruptionError:
        return False
    if stored and _unstamped(stored) != _unstamped(record.raw):
        raise OtherRecordError(
            record.position, f"the record that is stored as entry {record.entry} of ledger {ledger}", "another one"
        )
    return bool(stored)


def _unstamped(raw: bytes | memoryview) -> bytes:
    record = bytearray(raw)
    record[_STAMP] = bytes(4)
    return bytes(record)
