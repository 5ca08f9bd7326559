"""Offloaded logs: which stretches of which objects are read, by the manifest and the indexes. No record is fetched."""

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
    """An offloaded log at one moment. called: what it is, beside others."""

    storage: Storage
    found: Offloaded
    called: str

    @property
    def partition(self) -> Partition:
        """As it is named in startingOffsets and endingOffsets."""
        return self.called, NO_PARTITION


@dataclass(frozen=True, kw_only=True)
class ObjectSlice(Slice):
    """A slice of a segment that is an object."""

    storage: Storage
    item: SealedObject
    identity: LogIdentity

    @property
    def origin(self) -> SliceOrigin:
        """As of the segment file that the object was copied from."""
        return SliceOrigin(self.log.topic, NO_PARTITION, names.segment_path(Path(), self.base).name)

    def index(self) -> SparseIndex | None:
        """Where its records begin; None: its object is missing or damaged. StorageError."""
        found = _index(self)
        return None if found is None else found.sparse


def look(options: ReadOptions, beside: Sequence[Path] = ()) -> list[ObjectLog]:
    """The offloaded logs among what options name, each called differently, also than the logs in the directories
    `beside`. Errors: as of `manifest.load`, `Storage`."""
    urls = offloaded_urls(options.paths)
    called = names_of(beside, urls)
    places = [Storage(url, options.storage_options) for url in urls]
    return [ObjectLog(storage, manifests.load(storage), called[storage.url]) for storage in places]


def object_slices(log: ObjectLog, options: ReadOptions) -> list[tuple[Slice, int]]:
    """Slices, uncut, of all that is wanted of an offloaded log, and how many bytes each is.

    Errors: TrimmedError, OutOfRangeError: an offset is not there, and that matters; ConfigError; StorageError.
    """
    if options.ledgers is not None:
        raise ConfigError(f"ledgers: {log.storage.url} is a log by itself and holds no ledgers")
    times, found = times_of(options), log.found
    low, high = options.starting_offsets.of(log.partition), options.ending_offsets.of(log.partition)
    lenient = not options.fail_on_data_loss
    entries = bounded(log.storage.url, low, high, found.start, found.end, lenient=lenient)
    wanted = RecordFilter(None if entries == (found.start, found.end) else entries, times)
    parts = [_slice(log, item, wanted) for item in found.segments]
    if wanted.entries is not None:
        parts = [cut for part in parts if (cut := _in_entries(part, wanted.entries)) is not None]
    if times is not None:
        parts = [cut for part in parts if (cut := _in_times(part, times)) is not None]
    return [(part, part.size) for part in parts if part.size > 0]


def _slice(log: ObjectLog, item: SealedObject, wanted: RecordFilter) -> ObjectSlice:
    storage, found = log.storage, log.found
    return ObjectSlice(
        LogName(storage.url, log.called, found.identity.uuid), storage.of(item.name), item.base, item.epoch,
        HEADER_BYTES, item.stop, item.stop, wanted, storage=storage, item=item, identity=found.identity,
    )  # fmt: skip


# ---- ranges ----------------------------------------------------------------------------------------------------


def _in_entries(part: ObjectSlice, wanted: Range) -> ObjectSlice | None:
    """Without what lies before or behind a range of entries, to within a block of the index; None: all of it does."""
    item, (low, high) = part.item, wanted
    if not (item.first_entry < high and low < item.end_entry and low < high):
        return None
    if item.first_entry >= low and item.end_entry <= high:
        return part
    found = _index(part)
    # No number comes twice: the block that begins with `low` is the first one.
    return part if found is None else _cut(part, found, item.first_entry + found.entries, low + 1, high)


def _in_times(part: ObjectSlice, wanted: Range) -> ObjectSlice | None:
    """As `_in_entries`, of append times."""
    item, (low, high) = part.item, wanted
    if not (item.time_low < high and low <= item.time_high and low < high):
        return None
    if item.time_low >= low and item.time_high < high:
        return part
    found = _index(part)
    return part if found is None else _cut(part, found, found.times, low, high)


def _cut(part: ObjectSlice, found: ObjectIndex, keys: NDArray[np.int64], low: int, high: int) -> ObjectSlice:
    """From the last block that begins below `low` to before the first that begins at `high` or above. keys: of the
    blocks' first records, ascending."""
    first, behind = np.searchsorted(keys, low), np.searchsorted(keys, high)
    start = int(found.places[first - 1]) if first else HEADER_BYTES
    until = int(found.places[behind]) if behind < len(keys) else part.until
    return replace(part, start=max(part.start, start), until=min(part.until, until))


def _index(part: ObjectSlice) -> ObjectIndex | None:
    try:
        return indexes.load(part.storage, part.identity, part.item)
    except (CorruptionError, FormatVersionError) as error:
        logger.warning("%s is read without its index: %s", part.path, error)
        return None
