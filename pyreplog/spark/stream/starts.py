"""The start of a query at a time, if the entries that would tell it are damaged."""

from __future__ import annotations

from dataclasses import replace

from pyreplog.spark.stream.source_partitions import StreamSource
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.reading import read
from pyreplog.tables.schema import default_columns
from pyreplog.tables.slices import Range


def search_around_damage(
    source: StreamSource, key: Partition, offsets: Range, time_us: int, options: ReadOptions
) -> int:
    """Return the offset after the last readable entry that was appended before a time.

    Entries between it and the first readable entry of that time or later are damaged; the tasks do with them what the
    mode says. source: `look` was called. offsets: range to search; append times do not decrease in it. Raises the
    errors of `StreamSource.slices` and of reading, except those of damage.
    """
    low, high = offsets
    while low < high:
        middle = (low + high) // 2
        first = _first(source, key, (middle, high), options)
        if first is None or first[1] >= time_us:
            high = middle
        else:
            low = first[0] + 1
    return low


def _first(source: StreamSource, key: Partition, offsets: Range, options: ReadOptions) -> tuple[int, int] | None:
    """Return (offset, append time) of the first readable entry; None: none is."""
    options = replace(options, mode="DROPMALFORMED", columns=("offset", "timestamp"), verify_checksum=True)
    for batch in read(tuple(source.slices([(key, offsets)])), default_columns(options), options):
        if batch.num_rows:
            return batch["offset"][0].as_py(), batch["timestamp"][0].value
    return None
