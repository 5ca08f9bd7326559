"""Cuts logs into tasks of equal size, Spark's partitions: large segments are split at records, and small ones share a
task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import ConfigError, ReplogError
from pyreplog.log import indexes
from pyreplog.tables import objects
from pyreplog.tables.cluster.cluster_slices import cluster_slices
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.log_slices import Part, log_slices
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.slices import Slice

TASKS_MAX = 1_000_000
"""Tasks of one read, at most; enough for 250 TiB with the default size."""

_SMALL = 16  # slices below this fraction of a task are not cut

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
    """Return the number of tasks for `total` bytes: at least `least`, each of up to `most` bytes plus a sixteenth.

    Without the sixteenth, a few bytes more than the tasks of all cores would be one more task, for which all other
    cores wait.
    """
    return max(-(-total // (most + most // _SMALL)), least, 1)


def pack(slices: Sequence[tuple[Part, int]], most: int, least: int) -> list[tuple[Part, ...]]:
    """Distribute slices over tasks of equal weight, in order. Raises ConfigError if there would be more than TASKS_MAX.

    There are `task_count` tasks, or fewer if the slices cannot be cut often enough. slices: with their weights in
    bytes.
    """
    total = sum(weight for _, weight in slices)
    count = task_count(total, most, least)
    if count > TASKS_MAX:
        raise ConfigError(
            f"maxPartitionBytes: expected at most {TASKS_MAX:,} tasks, found {count:,} of {most:,} bytes each"
        )
    tasks: dict[int, list[Part]] = {}
    at = 0
    for whole, weight in slices:
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
    """Yield the parts of a slice that is cut near these of its `weight` bytes, each with the byte in its middle."""
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
    """Return the index of a slice; None: the segment is being written or damaged, or its index is, so it is not cut."""
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
