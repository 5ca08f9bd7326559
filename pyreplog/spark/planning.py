"""Cutting logs into tasks of equal bytes: large segments are split where records begin, small ones packed together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pyreplog._native.sparse import SparseIndex
from pyreplog.errors import ReplogError
from pyreplog.log import indexes
from pyreplog.spark import ranges
from pyreplog.spark.held import hold
from pyreplog.spark.logs import LogSnapshot, look
from pyreplog.spark.options import ReadOptions
from pyreplog.spark.paths import log_directories
from pyreplog.spark.slices import Slice

_SMALL = 16  # what is smaller than this part of a task is not worth a cut

logger = logging.getLogger(__name__)


def plan(options: ReadOptions) -> list[tuple[Slice, ...]]:
    """The slices of each task. Where the logs end is settled here: what is appended later is not read.

    Errors: NotALogError, ConfigError, TrimmedError and OutOfRangeError (an offset that is not there), CorruptionError
    (a segment file that cannot be read, in mode FAILFAST).
    """
    logs = [look(directory) for directory in log_directories(options.paths)]
    ranges.check_offsets(logs, options)
    for log in logs:
        _check_faults(log, options)
    found = [part for log in logs for part in ranges.stretches(log, options)]
    return pack(found, options.max_partition_bytes, options.min_partitions)


def _check_faults(log: LogSnapshot, options: ReadOptions) -> None:
    for segment in log.segments:
        if segment.fault is not None and options.mode == "FAILFAST":
            raise segment.fault


def pack(found: list[tuple[Slice, int]], most: int, least: int) -> list[tuple[Slice, ...]]:
    """Tasks of equal weight, in order: at least `least`, as far as there are places to cut at, and none much heavier
    than `most`. found: slices and their weights in bytes."""
    total = sum(weight for _, weight in found)
    count = max(-(-total // most), least, 1)
    tasks: dict[int, list[Slice]] = {}
    at = 0
    for whole, weight in found:
        numbers = range(at * count // total, (at + weight) * count // total + 1)
        cuts = [cut - at for k in numbers if at < (cut := k * total // count) < at + weight]
        if weight * _SMALL * count < total:
            cuts = []
        for part, middle in _parts(whole, weight, cuts):
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
        place = index.before(whole.start + cut * whole.bytes // weight)
        if place > start and place < whole.until:
            yield replace(whole, start=start, until=place), (before + cut) // 2
            start, before = place, cut
    yield replace(whole, start=start), (before + weight) // 2


def _index_of(whole: Slice) -> SparseIndex | None:
    """Where its records begin; None: it cannot be cut, being written, damaged or without an intact index."""
    if whole.fault is not None:
        return None
    try:
        segment = hold(whole.path, whole.log.uuid, whole.base, whole.epoch)
        return indexes.load(Path(whole.log.directory), segment)
    except (OSError, ReplogError) as error:
        logger.info("%s is read in one piece: %s", whole.path, error)
        return None
