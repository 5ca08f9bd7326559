"""Where a query begins that starts at a time, when what was to tell it is damaged."""

from __future__ import annotations

from dataclasses import replace

from pyreplog.spark.stream.tracks import TrackSource
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.reading import read
from pyreplog.tables.schema import default_columns
from pyreplog.tables.slices import Range


def search_around_damage(feed: TrackSource, key: Partition, offsets: Range, time_us: int, options: ReadOptions) -> int:
    """The offset behind the last message, or entry, that can be read and was appended before a time: what cannot be
    read between that and the first one of then or later is for the tasks, which do what the mode says.

    feed: has been looked at. offsets: among which to search; append times do not go back in them. Errors: those of
    `TrackSource.slices` and of reading, but for damage.
    """
    low, high = offsets
    while low < high:
        middle = (low + high) // 2
        found = _first(feed, key, (middle, high), options)
        if found is None or found[1] >= time_us:
            high = middle
        else:
            low = found[0] + 1
    return low


def _first(feed: TrackSource, key: Partition, offsets: Range, options: ReadOptions) -> tuple[int, int] | None:
    """Offset and append time of the first that can be read; None: there is none."""
    options = replace(options, mode="DROPMALFORMED", columns=("offset", "timestamp"), verify_checksum=True)
    for batch in read(tuple(feed.slices([(key, offsets)])), default_columns(options), options):
        if batch.num_rows:
            return batch["offset"][0].as_py(), batch["timestamp"][0].value
    return None
