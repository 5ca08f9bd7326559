"""Finding entries by the producers' times, which need not ascend: whole blocks are skipped by their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.segment import HEADER_BYTES, Segment

if TYPE_CHECKING:
    from pyreplog.log.access import Access


def scan(log: Access, low: int, high: int) -> Iterator[RecordBatch]:
    """Batches of the entries with an event time in [low, high)."""
    while log._refresh():  # a reader learns of new segments when it asks
        continue
    table = log._segment_table()
    ends = [first for _, first, _ in table[1:]] + [log.end]
    for (base, first, _), end in zip(table, ends, strict=True):
        if first < end:
            held, segment = log._hold(base)
            yield from _in_segment(log, segment, end, low, high)
            del held


def _in_segment(log: Access, segment: Segment, end: int, low: int, high: int) -> Iterator[RecordBatch]:
    index = segment.index
    if index is None or index.entries < end - segment.first_entry:
        log._load_index(segment, end - 1)
        index = segment.index
    assert index is not None, "_load_index gives a segment its index"
    extent = log._extent(segment, log._visible())
    for start, stop in index.event_time_blocks(low, high):
        stop = min(stop, extent)
        offset = index.before(max(start, HEADER_BYTES))
        while offset < stop:
            batch = segment.scan(offset, extent, until=stop)
            offset = batch.next_position - segment.base
            chosen = _chosen(batch, segment.base + start, low, high)
            if len(chosen):
                yield chosen


def _chosen(batch: RecordBatch, position: int, low: int, high: int) -> RecordBatch:
    """Of a batch, the records from `position` on that have an event time in the range."""
    times = batch.event_time
    return batch.select(((times >= low) & (times < high) & (batch.position >= position)).nonzero()[0])
