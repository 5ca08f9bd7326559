"""Three-valued reads: here are the records, they are definitely not here, or nobody can tell."""

from __future__ import annotations

from pyreplog._native.entries import parse_entries
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.ledgerstate import LedgerState
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, Request, Status
from pyreplog.errors import CorruptionError


def read_entries(log: EntryLog, request: Request, state: LedgerState | None) -> Reply:
    """The reply to a READ, of entries that are durable. CorruptionError: whether the first one is here is unknown."""
    ledger, first = request.ledger, request.first
    if state is None:
        return Reply(Status.OK, ledger, first, request.last)
    last = min(request.last, state.durable_below - 1)
    bytes_max = min(request.limit or READ_BYTES_MAX, READ_BYTES_MAX)
    records, after = _read_intact(log, request, last, bytes_max)
    if state.limbo:
        after = _first_missing(records, request, after)
        if after == first:
            why = b"entries of the ledger may have been lost in a crash"
            return Reply(Status.UNKNOWN, ledger, first, request.last, state.lac, why)
        records, after = log.read(ledger, first, after - 1, bytes_max, request.step)
    return Reply(Status.OK, ledger, first, after - 1, state.lac, records)


def _read_intact(log: EntryLog, request: Request, last: int, bytes_max: int) -> tuple[bytes, int]:
    """As EntryLog.read, but damage behind the first entry only ends the read somewhere before it (BookKeeper #4789)."""
    while True:
        try:
            return log.read(request.ledger, request.first, last, bytes_max, request.step)
        except CorruptionError:
            if last == request.first:
                raise
            last = request.first + (last - request.first) // 2


def _first_missing(records: bytes, request: Request, after: int) -> int:
    """First entry of those asked for, below `after`, that is not among the records; `after` when all are."""
    expected = request.first
    if records:
        for entry in parse_entries(records, ledger=request.ledger, first=request.first, last=after - 1).entry.tolist():
            if entry != expected:
                break
            expected += request.step
    return min(expected, after)
