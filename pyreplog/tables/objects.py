"""Offloaded logs: the parts of objects that a read needs, from manifests and indexes. No record is fetched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import ConfigError, CorruptionError, FormatVersionError
from pyreplog.log import names
from pyreplog.offload import index as indexes
from pyreplog.offload import manifest as manifests
from pyreplog.offload.index import ObjectIndex
from pyreplog.offload.manifest import LogIdentity, Offloaded, SealedObject
from pyreplog.offload.storage import Storage
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import names_of, offloaded_urls
from pyreplog.tables.ranges import bounded, times_of
from pyreplog.tables.slices import NO_PARTITION, LogName, Range, RecordFilter, Slice, SliceOrigin

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObjectLog:
    """An offloaded log at one moment. called: name that tells it from the other logs of the read."""

    storage: Storage
    manifest: Offloaded
    called: str

    @property
    def partition(self) -> Partition:
        """The name of the log in startingOffsets and endingOffsets."""
        return self.called, NO_PARTITION


@dataclass(frozen=True, kw_only=True)
class ObjectSlice(Slice):
    """A slice of a segment that is stored as an object."""

    storage: Storage
    item: SealedObject
    identity: LogIdentity

    @property
    def origin(self) -> SliceOrigin:
        """The origin of the segment file that the object is a copy of."""
        return SliceOrigin(self.log.topic, NO_PARTITION, names.segment_path(Path(), self.base).name)

    def index(self) -> SparseIndex | None:
        """Return where records begin; None: the index object is missing or damaged. Raises StorageError."""
        index = _index(self)
        return None if index is None else index.sparse


def load_logs(options: ReadOptions, beside: Sequence[Path] = ()) -> list[ObjectLog]:
    """Return the offloaded logs that options name. Raises the errors of `manifest.load` and `Storage`.

    Each has a name of its own, which no log in the directories `beside` has either.
    """
    urls = offloaded_urls(options.paths)
    called = names_of(beside, urls)
    places = [Storage(url, options.storage_options) for url in urls]
    return [ObjectLog(storage, manifests.load(storage), called[storage.url]) for storage in places]


def object_slices(log: ObjectLog, options: ReadOptions) -> list[tuple[Slice, int]]:
    """Return uncut slices of an offloaded log that a read needs, with their sizes in bytes.

    Raises TrimmedError or OutOfRangeError (an offset does not exist, and failOnDataLoss is set), ConfigError and
    StorageError.
    """
    if options.ledgers is not None:
        raise ConfigError(f"ledgers: {log.storage.url} is a log by itself and holds no ledgers")
    times, manifest = times_of(options), log.manifest
    low, high = options.starting_offsets.of(log.partition), options.ending_offsets.of(log.partition)
    lenient = not options.fail_on_data_loss
    entries = bounded(log.storage.url, low, high, manifest.start, manifest.end, lenient=lenient)
    wanted = RecordFilter(None if entries == (manifest.start, manifest.end) else entries, times)
    parts = [_slice(log, item, wanted) for item in manifest.segments]
    if wanted.entries is not None:
        parts = [cut for part in parts if (cut := _in_entries(part, wanted.entries)) is not None]
    if times is not None:
        parts = [cut for part in parts if (cut := _in_times(part, times)) is not None]
    return [(part, part.size) for part in parts if part.size > 0]


def _slice(log: ObjectLog, item: SealedObject, wanted: RecordFilter) -> ObjectSlice:
    storage, manifest = log.storage, log.manifest
    return ObjectSlice(
        LogName(storage.url, log.called, manifest.identity.uuid), storage.of(item.name), item.base, item.epoch,
        HEADER_BYTES, item.stop, item.stop, wanted, storage=storage, item=item, identity=manifest.identity,
    )  # fmt: skip


# ---- ranges ----------------------------------------------------------------------------------------------------


def _in_entries(part: ObjectSlice, wanted: Range) -> ObjectSlice | None:
    """Cut a slice down to a range of entries, as exactly as index blocks allow; None: it has none of them."""
    item, (low, high) = part.item, wanted
    if not (item.first_entry < high and low < item.end_entry and low < high):
        return None
    if item.first_entry >= low and item.end_entry <= high:
        return part
    index = _index(part)
    # Numbers are unique, so the block that begins with `low` is the first one with it: hence low + 1.
    return part if index is None else _cut(part, index, item.first_entry + index.entries, low + 1, high)


def _in_times(part: ObjectSlice, wanted: Range) -> ObjectSlice | None:
    """Cut a slice down to a range of append times, as `_in_entries` does for entries."""
    item, (low, high) = part.item, wanted
    if not (item.time_low < high and low <= item.time_high and low < high):
        return None
    if item.time_low >= low and item.time_high < high:
        return part
    index = _index(part)
    return part if index is None else _cut(part, index, index.times, low, high)


def _cut(part: ObjectSlice, index: ObjectIndex, keys: NDArray[np.int64], low: int, high: int) -> ObjectSlice:
    """Cut a slice to the blocks from the last one that begins below `low` to the last one that begins below `high`.

    keys: keys of the first records of the blocks, ascending.
    """
    first, behind = np.searchsorted(keys, low), np.searchsorted(keys, high)
    start = int(index.places[first - 1]) if first else HEADER_BYTES
    until = int(index.places[behind]) if behind < len(keys) else part.until
    return replace(part, start=max(part.start, start), until=min(part.until, until))


def _index(part: ObjectSlice) -> ObjectIndex | None:
    try:
        return indexes.load(part.storage, part.identity, part.item)
    except (CorruptionError, FormatVersionError) as error:
        logger.warning("%s is read without its index: %s", part.path, error)
        return None
