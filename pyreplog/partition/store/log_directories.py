"""The report of a broker's directories: their replicas with sizes, and the free space of their disks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyreplog.partition.topic_partition import TopicPartition


class ReplicaSize(NamedTuple):
    """A replica in a directory.

    Attributes:
        partition: topic and number of the partition.
        size: bytes of its files on the disk, including preallocated space.
        offset_lag: offsets from its high watermark to the end of its log.
    """

    partition: TopicPartition
    size: int
    offset_lag: int


class LogDirectory(NamedTuple):
    """A directory of a broker.

    Attributes:
        path: path of the directory.
        error: the error with which its disk failed; "": the disk works.
        replicas: the open replicas, by name.
        total_bytes: size of the disk; -1: unknown.
        usable_bytes: free bytes for this process; -1: unknown.
    """

    path: Path
    error: str = ""
    replicas: tuple[ReplicaSize, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1


def describe_directory(path: Path, replicas: tuple[ReplicaSize, ...]) -> LogDirectory:
    """Return the report of a directory, with the free space of its disk. Blocks for the disk."""
    try:
        status = os.statvfs(path)
    except OSError as error:
        return LogDirectory(path, str(error))
    return LogDirectory(path, "", replicas, status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)
