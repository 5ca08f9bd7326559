"""Entries that come a second time: the same bytes are stored once, other bytes are refused."""

from __future__ import annotations

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.log.record import Record
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.protocol import Request
from pyreplog.errors import CorruptionError, OtherRecordError

_STAMP = slice(8, 12)
"""The one field of a record that a log writes; see FORMAT.md."""


def are_stored(log: EntryLog, request: Request) -> bool:
    """Whether all entries of an ADD can be read here already. A damaged copy is none: the new one takes its place.

    Errors: OtherRecordError, a different record is stored under the id of one of them.
    """
    batch = parse_entries(request.records, ledger=request.ledger, first=request.first, last=request.last)
    known = sum(_is_stored(log, request.ledger, record) for record in batch)
    return known == len(batch) and batch.next_position == memoryview(request.records).nbytes


def _is_stored(log: EntryLog, ledger: int, record: Record) -> bool:
    try:
        found, _ = log.read(ledger, record.entry, record.entry + 1, 1)
    except CorruptionError:
        return False
    if found and _unstamped(found) != _unstamped(record.raw):
        raise OtherRecordError(
            record.position, f"the record that is stored as entry {record.entry} of ledger {ledger}", "another one"
        )
    return bool(found)


def _unstamped(raw: bytes | memoryview) -> bytes:
    found = bytearray(raw)
    found[_STAMP] = bytes(4)
    return bytes(found)
