"""Three-valued reads: here are the records, they are definitely not here, or nobody can tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.ledgerstate import LedgerState
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request
from pyreplog.errors import CorruptionError, InvalidRecordsError


def read_entries(log: EntryLog, request: Request, state: LedgerState | None) -> Reply:
    """The reply to a READ, of entries that are durable, not verified: the reader does that, and asks somebody else.

    CorruptionError: whether the first one is here is unknown.
    """
    ledger, first = request.ledger, request.first
    if state is None:
        return Reply(ReplyStatus.OK, ledger, first, request.last)
    if first > state.last:
        return _lost(request, state) if state.limbo else Reply(ReplyStatus.OK, ledger, first, request.last, state.lac)
    end = min(request.last + 1, state.durable_below)
    bytes_max = min(request.limit or READ_BYTES_MAX, READ_BYTES_MAX)
    records, after = _read_intact(log, request, end, bytes_max)
    if state.limbo:
        after = _first_missing(records, request, after)
        if after == first:
            return _lost(request, state)
        records, after = log.lend(ledger, first, after, bytes_max, request.step, request.run)
    return Reply(ReplyStatus.OK, ledger, first, after - 1, state.lac, records)


def _lost(request: Request, state: LedgerState) -> Reply:
    why = b"entries of the ledger may have been lost in a crash"
    return Reply(ReplyStatus.LIMBO, request.ledger, request.first, request.last, state.lac, why)


def _read_intact(log: EntryLog, request: Request, end: int, bytes_max: int) -> tuple[bytes | memoryview, int]:
    """As EntryLog.lend, but damage behind the first entry only ends the read somewhere before it (BookKeeper #4789)."""
    while True:
        try:
            return log.lend(request.ledger, request.first, end, bytes_max, request.step, request.run)
        except CorruptionError:
            if end == request.first + 1:
                raise
            end = request.first + (end - request.first + 1) // 2


def _first_missing(records: bytes | memoryview, request: Request, after: int) -> int:
    """First entry of those asked for, below `after`, that is not intact among the records; `after` when all are."""
    try:
        found = parse_entries(records, ledger=request.ledger, first=request.first, last=after - 1).entry
    except InvalidRecordsError:
        return request.first
    asked = request.asked(len(found) + 1)
    return min(int(asked[consecutive(found, asked)]), after)


def consecutive(found: npt.NDArray[np.int64], asked: npt.NDArray[np.int64]) -> int:
    """How many entries, from the first one asked for on, were found without a gap."""
    gaps = np.flatnonzero(found != asked[: len(found)])
    return int(gaps[0]) if len(gaps) else len(found)
