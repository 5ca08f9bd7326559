"""What the directories of a broker hold, and how much room their disks have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyreplog.partition.topic_partition import TopicPartition


class ReplicaSize(NamedTuple):
    """A replica in a directory.

    Attributes:
        partition: its name.
        size: bytes that its files take on the disk, with room that is prepared for records.
        offset_lag: offsets from its high watermark to the end of its log.
    """

    partition: TopicPartition
    size: int
    offset_lag: int


class LogDirectory(NamedTuple):
    """A directory of a broker.

    Attributes:
        path: of it.
        error: why its disk failed; "": it works.
        replicas: those that are open, by name.
        total_bytes: size of the disk; -1: it is not known.
        usable_bytes: bytes of it that are free for this process; -1: they are not known.
    """

    path: Path
    error: str = ""
    replicas: tuple[ReplicaSize, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1


def describe_directory(path: Path, replicas: tuple[ReplicaSize, ...]) -> LogDirectory:
    """Return a directory with its replicas and the room of its disk. Blocks for the disk."""
    try:
        status = os.statvfs(path)
    except OSError as error:
        return LogDirectory(path, str(error))
    return LogDirectory(path, "", replicas, status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)
