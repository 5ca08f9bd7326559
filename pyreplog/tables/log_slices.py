"""The slices of logs that a read needs, before they are cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pyreplog.errors import ConfigError
from pyreplog.tables import objects, partitions, ranges
from pyreplog.tables.logs import LogSnapshot, take_snapshot
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ANY, ISOLATIONS, ReadOptions
from pyreplog.tables.paths import bookie_of, log_directories, names_of, offloaded_urls
from pyreplog.tables.slices import Range, Slice

if TYPE_CHECKING:
    from pyreplog.tables.cluster.entry_slices import EntrySlice

Part: TypeAlias = "Slice | EntrySlice"


def log_slices(options: ReadOptions) -> list[tuple[Slice, int]]:
    """Return uncut slices of the logs that the paths of a read lead to, with their sizes. Raises the errors of `plan`.

    Offloaded logs are included.
    """
    for name, is_given in (("replica", options.replica != ANY), ("topics", options.reads_topics)):
        if is_given:
            raise ConfigError(
                f"{name}: {options.paths[0]} is no cluster; expected an embedded cluster, or the option cluster"
            )
    logs = [
        (log, bookie_of(log.directory)) for log in partitions.chosen(take_snapshots(options.paths), options.isolation)
    ]
    offloaded = objects.load_logs(options, beside=[log.directory for log, _ in logs])
    if offloaded and options.isolation != ISOLATIONS[0]:
        raise ConfigError(
            f"isolation: {offloaded[0].storage.url} is an offloaded log, which does not say which transactions were "
            "aborted: expected read_uncommitted"
        )
    slices = slices_of(logs, options, beside=[log.partition for log in offloaded])
    return slices + [part for log in offloaded for part in objects.object_slices(log, options)]


def take_snapshots(paths: Sequence[str]) -> list[LogSnapshot]:
    """Return snapshots of the logs that paths lead to.

    Each has a name of its own, which no offloaded log of the read has either. Raises the errors of `log_directories`
    and `take_snapshot`.
    """
    directories = log_directories(paths)
    called = names_of(directories, offloaded_urls(paths))
    return [replace(take_snapshot(directory), called=called[str(directory)]) for directory in directories]


def slices_of(
    logs: list[tuple[LogSnapshot, str | None]],
    options: ReadOptions,
    existing: tuple[Range, ...] | None = None,
    beside: Sequence[Partition] = (),
) -> list[tuple[Slice, int]]:
    """Return uncut slices of logs that a read needs, with their approximate sizes in bytes. Raises the errors of
    `plan`.

    logs: (snapshot, bookie that the log belongs to). existing: ranges of ledgers that are not deleted; None: unknown.
    beside: partitions of the other logs of the read.
    """
    ranges.check_offsets([log for log, _ in logs], options, beside)
    for log, _ in logs:
        _check_faults(log, options)
    return [part for log, bookie in logs for part in ranges.segment_slices(log, options, bookie, existing)]


def _check_faults(log: LogSnapshot, options: ReadOptions) -> None:
    for segment in log.segments:
        if segment.fault is not None and options.mode == "FAILFAST":
            raise segment.fault
