"""Cutting logs into tasks of equal bytes: large segments are split where records begin, small ones packed together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import ConfigError, ReplogError
from pyreplog.log import indexes
from pyreplog.tables import objects
from pyreplog.tables.cluster.clusterplan import cluster_slices
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logslices import Part, log_slices
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.slices import Slice

TASKS_MAX = 1_000_000
"""Of one read: 250 TiB of the usual ones."""

_SMALL = 16  # what is smaller than this part of a task is not worth a cut

logger = logging.getLogger(__name__)


def plan(options: ReadOptions) -> list[tuple[Part, ...]]:
    """Plan a read: find where the logs or ledgers end, and cut them into tasks.

    Entries that are appended later are not read.

    Args:
        options: what to read.

    Returns:
        The slices of each task.

    Raises:
        NotALogError: a path holds no log.
        ConfigError: options do not fit what the paths hold.
        TrimmedError: an offset was removed.
        OutOfRangeError: an offset does not exist.
        CorruptionError: a segment file cannot be read, in mode "FAILFAST".
        ReplogError: as the metadata store, the bookies or the object store.
    """
    folder = cluster_of(options.paths)
    if folder is None and options.cluster is None:
        return pack(log_slices(options), options.max_partition_bytes, options.min_partitions)
    return pack(cluster_slices(folder, options), options.max_partition_bytes, options.min_partitions)


def task_count(total: int, most: int, least: int) -> int:
    """How many tasks so many bytes are: at least `least`, each of `most` bytes, or a sixteenth more. A few bytes beyond
    what fits into tasks for all cores are not worth another one, for which all but one core would wait."""
    return max(-(-total // (most + most // _SMALL)), least, 1)


def pack(found: Sequence[tuple[Part, int]], most: int, least: int) -> list[tuple[Part, ...]]:
    """Tasks of equal weight, in order: as many as `task_count` says, as far as there are places to cut at. found:
    slices and their weights in bytes. ConfigError: these are more than TASKS_MAX."""
    total = sum(weight for _, weight in found)
    count = task_count(total, most, least)
    if count > TASKS_MAX:
        raise ConfigError(
            f"maxPartitionBytes: expected at most {TASKS_MAX:,} tasks, found {count:,} of {most:,} bytes each"
        )
    tasks: dict[int, list[Part]] = {}
    at = 0
    for whole, weight in found:
        numbers = range(at * count // total, (at + weight) * count // total + 1)
        cuts = [cut - at for k in numbers if at < (cut := k * total // count) < at + weight]
        if weight * _SMALL * count < total:
            cuts = []
        parts = _parts(whole, weight, cuts) if isinstance(whole, Slice) else whole.parts(cuts)
        for part, middle in parts:
            tasks.setdefault((at + middle) * count // total, []).append(part)
        at += weight
    return [tuple(task) for _, task in sorted(tasks.items())]


def _parts(whole: Slice, weight: int, cuts: list[int]) -> Iterator[tuple[Slice, int]]:
    """A slice cut at about these of its `weight` bytes, with the middle of each part."""
    index = _index_of(whole) if cuts else None
    if index is None:
        yield whole, weight // 2
        return
    start, before = whole.start, 0
    for cut in cuts:
        place = index.before(whole.start + cut * whole.size // weight)
        if place > start and place < whole.until:
            yield replace(whole, start=start, until=place), (before + cut) // 2
            start, before = place, cut
    yield replace(whole, start=start), (before + weight) // 2


def _index_of(whole: Slice) -> SparseIndex | None:
    """Where its records begin; None: it cannot be cut, being written, damaged or without an intact index."""
    if whole.fault is not None:
        return None
    if isinstance(whole, objects.ObjectSlice):
        return whole.index()
    try:
        segment = map_locked(whole.path, whole.log.uuid, whole.base, whole.epoch)
        return indexes.load(Path(whole.log.directory), segment)
    except (OSError, ReplogError) as error:
        logger.info("%s is read in one piece: %s", whole.path, error)
        return None
