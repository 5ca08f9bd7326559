"""Logs of partitions among the logs of a read: each partition once, up to what its isolation lets readers see."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from pyreplog.log.reader import LogReader
from pyreplog.partition.store.partition_reader import PartitionReader, aborted_ranges, partition_name
from pyreplog.tables.logs import LogSnapshot
from pyreplog.tables.options import Isolation


def chosen(logs: Iterable[LogSnapshot], isolation: Isolation) -> list[LogSnapshot]:
    """Return the logs of a read. Of the replicas of a partition, which have one uuid, the one that is committed
    furthest counts; its `called` is the id of its topic. Other logs stay as they are.

    Args:
        logs: the logs that the paths lead to.
        isolation: see `ReadOptions`.

    Raises:
        CorruptionError: a record is damaged, or the first one of a segment.
        FormatVersionError: a later version wrote a file beside the segments.
    """
    partitions: dict[bytes, LogSnapshot] = {}
    others: list[LogSnapshot] = []
    for log in logs:
        name = partition_name(log.directory)
        if name is None:
            others.append(log)
            continue
        partition = apply_isolation(replace(log, called=name.topic_id, partition=name.number), isolation)
        known = partitions.get(log.uuid)
        if known is None or known.ends.end < partition.ends.end:
            partitions[log.uuid] = partition
    return [*others, *sorted(partitions.values(), key=lambda log: (log.called, log.partition))]


def apply_isolation(log: LogSnapshot, isolation: Isolation) -> LogSnapshot:
    """Return what readers of an isolation see of a partition's log. Raises as `chosen`."""
    with closing(LogReader(log.directory)) as reader:
        partition = PartitionReader(reader)
        log = log.up_to(*partition.high_watermark)
        if isolation == "read_uncommitted":
            return log
        stable = partition.last_stable()
        return replace(log.up_to(*stable), aborted=aborted_ranges(partition.aborted()))
