"""Reads ahead: several ranges of a ledger are on their way while the caller handles one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.future import AppendFuture

AHEAD_BYTES = 8 << 20
"""About so many bytes are on their way at a time, and at least two ranges."""

REPLY_BYTES = 2 << 20
"""About so many bytes are asked of one bookie at a time: few requests, and a reply is still in the processor's cache
when it is verified. The sizes of records are estimated by those of the records before."""

RANGE_BYTES_MAX = 8 << 20
"""The greatest size of a range, whose entries come from several bookies. A range whose records are larger than
estimated comes in several batches."""

Begin = Callable[[int, int], AppendFuture[RecordBatch]]
Finish = Callable[[AppendFuture[RecordBatch], int, int], RecordBatch]


class _ReadRange(NamedTuple):
    future: AppendFuture[RecordBatch]
    start: int
    end: int


def read_ahead(
    start: int, end: int, ensemble_size: int, write_quorum: int, record_bytes: int, begin: Begin, finish: Finish
) -> Iterator[RecordBatch]:
    """Yield the entries [start, end) in batches, in order.

    Each range is one entry longer than a multiple of the ensemble size, so that the next one begins at another bookie.
    An iterator that is dropped leaves its reads behind; they end by themselves.

    Args:
        start: number of the first entry.
        end: number of the entry to stop before.
        ensemble_size: number of bookies over which the entries are striped.
        write_quorum: number of copies of each entry.
        record_bytes: estimated size of a record.
        begin: begins to read a range; the batch has at least the first entry of it.
        finish: waits for the future that `begin` gave. Its errors end the iteration.
    """
    range_bytes = min(REPLY_BYTES * ensemble_size // write_quorum, RANGE_BYTES_MAX // 2)
    pending_max = max(AHEAD_BYTES // range_bytes, 2)
    pending: deque[_ReadRange] = deque()
    next_start, count = start, _entries(range_bytes, record_bytes, ensemble_size)
    while start < end:
        while len(pending) < pending_max and next_start < end:
            stop = min(next_start + count, end)
            pending.append(_ReadRange(begin(next_start, stop), next_start, stop))
            next_start = stop
        read_range = pending.popleft()
        batch = finish(*read_range)
        start = batch[-1].entry + 1
        record_bytes = batch.next_position // len(batch)  # next_position: where the last record of the batch ends
        count = _entries(range_bytes, record_bytes, ensemble_size)
        if start + count < read_range.end:  # records are much larger than estimated: plan the ranges anew
            pending.clear()
            next_start = start
        elif start < read_range.end:  # records are somewhat larger, or another fragment begins
            pending.appendleft(_ReadRange(begin(start, read_range.end), start, read_range.end))
        yield batch


def _entries(range_bytes: int, record_bytes: int, ensemble_size: int) -> int:
    return range_bytes // max(record_bytes, 1) // ensemble_size * ensemble_size + 1
