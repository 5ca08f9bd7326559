"""Reading ahead: several ranges of a ledger are on their way while the caller is at one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.future import AppendFuture

AHEAD_BYTES = 8 << 20
"""On their way at a time, about; and at least two ranges."""

REPLY_BYTES = 2 << 20
"""That a bookie gives at a time, about: as little of their time as can be goes into requests, and what has arrived is
still in a processor's cache when it is verified. Sizes are guessed by the records before."""

STRETCH_BYTES_MAX = 8 << 20
"""Of a range, at most; its entries come from several bookies. When its records are larger than those before, it comes
in several batches."""

Begin = Callable[[int, int], AppendFuture[RecordBatch]]
Finish = Callable[[AppendFuture[RecordBatch], int, int], RecordBatch]


class _ReadRange(NamedTuple):
    future: AppendFuture[RecordBatch]
    start: int
    end: int


def read_ahead(
    start: int, end: int, ensemble_size: int, write_quorum: int, record_bytes: int, begin: Begin, finish: Finish
) -> Iterator[RecordBatch]:
    """Entries [start, end) in batches, in order.

    record_bytes: how large a record is, at a guess. begin: have entries [start, end) read, the first of them in any
    case. finish: wait for what it gave. Whatever that raises ends it. An iterator that is dropped leaves what is on its
    way behind.

    Stretches are one longer than a multiple of the ensemble, so that each begins at the next bookie.
    """
    stretch_bytes = min(REPLY_BYTES * ensemble_size // write_quorum, STRETCH_BYTES_MAX // 2)
    ahead = max(AHEAD_BYTES // stretch_bytes, 2)
    coming: deque[_ReadRange] = deque()
    following, count = start, _entries(stretch_bytes, record_bytes, ensemble_size)
    while start < end:
        while len(coming) < ahead and following < end:
            stop = min(following + count, end)
            coming.append(_ReadRange(begin(following, stop), following, stop))
            following = stop
        stretch = coming.popleft()
        batch = finish(*stretch)
        start = batch[-1].entry + 1
        record_bytes = batch.next_position // len(batch)  # of a batch that was parsed, where its last record ends
        count = _entries(stretch_bytes, record_bytes, ensemble_size)
        if start + count < stretch.end:  # records are much larger than was thought: begin anew
            coming.clear()
            following = start
        elif start < stretch.end:  # somewhat larger, or another fragment begins
            coming.appendleft(_ReadRange(begin(start, stretch.end), start, stretch.end))
        yield batch


def _entries(stretch_bytes: int, record_bytes: int, ensemble_size: int) -> int:
    return stretch_bytes // max(record_bytes, 1) // ensemble_size * ensemble_size + 1
