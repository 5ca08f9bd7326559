"""Three-valued reads: the bookie has the records, does not have them, or cannot tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog.bookie.entry_log import EntryReader
from pyreplog.bookie.ledger_state import LedgerState
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request
from pyreplog.errors import CorruptionError, InvalidRecordsError


def read_entries(log: EntryReader, request: Request, state: LedgerState | None) -> Reply:
    """Return the reply to a READ of durable entries.

    The records are not verified: the reader does that, and asks another bookie if a record is damaged. Raises
    CorruptionError if it is unknown whether the bookie has the first entry.
    """
    ledger, first = request.ledger, request.first
    if state is None:
        return Reply(ReplyStatus.OK, ledger, first, request.last)
    if first > state.last:
        return _lost(request, state) if state.limbo else Reply(ReplyStatus.OK, ledger, first, request.last, state.lac)
    end = min(request.last + 1, state.durable_below)
    bytes_max = min(request.limit or READ_BYTES_MAX, READ_BYTES_MAX)
    records, stop = _read_intact(log, request, end, bytes_max)
    if state.limbo:
        stop = _first_missing(records, request, stop)
        if stop == first:
            return _lost(request, state)
        records, stop = log.lend(ledger, first, stop, bytes_max, request.step, request.run)
    return Reply(ReplyStatus.OK, ledger, first, stop - 1, state.lac, records)


def _lost(request: Request, state: LedgerState) -> Reply:
    reason = b"entries of the ledger may have been lost in a crash"
    return Reply(ReplyStatus.LIMBO, request.ledger, request.first, request.last, state.lac, reason)


def _read_intact(log: EntryReader, request: Request, end: int, bytes_max: int) -> tuple[bytes | memoryview, int]:
    """Lend entries as EntryLog.lend does, but end the read at damage behind the first entry (BookKeeper #4789)."""
    while True:
        try:
            return log.lend(request.ledger, request.first, end, bytes_max, request.step, request.run)
        except CorruptionError:
            if end == request.first + 1:
                raise
            end = request.first + (end - request.first + 1) // 2


def _first_missing(records: bytes | memoryview, request: Request, stop: int) -> int:
    """Return the first requested entry below `stop` without an intact record; `stop`: there is none."""
    try:
        intact = parse_entries(records, ledger=request.ledger, first=request.first, last=stop - 1).entry
    except InvalidRecordsError:
        return request.first
    requested = request.asked(len(intact) + 1)
    return min(int(requested[consecutive(intact, requested)]), stop)


def consecutive(entries: npt.NDArray[np.int64], requested: npt.NDArray[np.int64]) -> int:
    """Count the requested entries up to the first gap."""
    gaps = np.flatnonzero(entries != requested[: len(entries)])
    return int(gaps[0]) if len(gaps) else len(entries)
