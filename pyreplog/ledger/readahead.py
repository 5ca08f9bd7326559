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

Start = Callable[[int, int], AppendFuture[RecordBatch]]
Finish = Callable[[AppendFuture[RecordBatch], int, int], RecordBatch]


class _ReadRange(NamedTuple):
    future: AppendFuture[RecordBatch]
    first: int
    last: int


def read_ahead(
    first: int, last: int, ensemble_size: int, write_quorum: int, record_bytes: int, start: Start, finish: Finish
) -> Iterator[RecordBatch]:
    """Entries `first` to `last` in batches, in order.

    record_bytes: how large a record is, at a guess. start: have entries read, the first of them in any case. finish:
    wait for what it gave. Whatever that raises ends it. An iterator that is dropped leaves what is on its way behind.

    Stretches are one longer than a multiple of the ensemble, so that each begins at the next bookie.
    """
    stretch_bytes = min(REPLY_BYTES * ensemble_size // write_quorum, STRETCH_BYTES_MAX // 2)
    ahead = max(AHEAD_BYTES // stretch_bytes, 2)
    coming: deque[_ReadRange] = deque()
    following, count = first, _entries(stretch_bytes, record_bytes, ensemble_size)
    while first <= last:
        while len(coming) < ahead and following <= last:
            stop = min(following + count - 1, last)
            coming.append(_ReadRange(start(following, stop), following, stop))
            following = stop + 1
        stretch = coming.popleft()
        batch = finish(*stretch)
        first = batch[-1].entry + 1
        record_bytes = batch.next_position // len(batch)  # of a batch that was parsed, where its last record ends
        count = _entries(stretch_bytes, record_bytes, ensemble_size)
        if first + count <= stretch.last:  # records are much larger than was thought: begin anew
            coming.clear()
            following = first
        elif first <= stretch.last:  # somewhat larger, or another fragment begins
            coming.appendleft(_ReadRange(start(first, stretch.last), first, stretch.last))
        yield batch


def _entries(stretch_bytes: int, record_bytes: int, ensemble_size: int) -> int:
    return stretch_bytes // max(record_bytes, 1) // ensemble_size * ensemble_size + 1
