"""Reads the entries of other clusters in a topic, by their offsets at their origins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidEntryError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import LastEntry, Origin
from pyreplog.topic.owner.managed.entry_reader import EntryBatch, StoredEntry
from pyreplog.topic.owner.topic import Topic

Then = Callable[[LastEntry | None, ReplogError | None], object]


def read_entry(topic: Topic, positions: TopicPositions, origin: Origin, first: int, then: Then) -> None:
    """Read the entry that holds a message of another cluster. Never waits.

    Args:
        topic: the topic.
        positions: its positions.
        origin: origin of the message.
        first: offset of the message at the origin.
        then: is called with the entry; with None if it was trimmed, or never stored here; or with the error of the
            read, which may be tried again. In any thread.
    """
    offsets, _ = positions.translation.to_local(origin, (np.array([first]), np.array([first + 1])))
    if not len(offsets):
        then(None, None)
        return

    def entry_read(read: AppendFuture[EntryBatch]) -> None:
        error = read.exception()
        if isinstance(error, TrimmedError | OutOfRangeError):
            then(None, None)
        elif error is not None:
            then(None, error if isinstance(error, ReplogError) else ReplogError(str(error)))
        else:
            try:
                then(_last_entry(read.result().entries[0]), None)
            except InvalidEntryError as malformed:
                then(None, malformed)

    try:
        read: AppendFuture[EntryBatch] = topic.managed.entries.read(int(offsets[0]), bytes_max=1)
    except ReplogError as error:
        then(None, error)
        return
    read.add_done_callback(lambda _: entry_read(read))


def _last_entry(entry: StoredEntry) -> LastEntry:
    attribute = OriginAttribute.from_bytes(entry.origin or b"")
    end = attribute.first + entry.messages
    return LastEntry(attribute.first, end, crc32c(entry.value), attribute.publish_time_us)
