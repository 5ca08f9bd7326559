"""Logs of a partition's replicas, and what flows between them, as tests need it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from pyreplog.clock import Clock
from pyreplog.log.runtime import LogRuntime
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.store.partition_log import AppendedOffsets, PartitionLog
from pyreplog.stream.log_position import LogPosition
from tests.ha.streams import SEGMENT_BYTES, config

UUID = bytes(range(16))
ALL = LogPosition(1 << 62, 1 << 62)


def open_replica(
    path: Path, runtime: LogRuntime | None = None, clock: Clock | None = None, **settings: Any
) -> PartitionLog:  # fmt: skip
    return PartitionLog.open_or_create(path, config(**settings), uuid=UUID, runtime=runtime, clock=clock)


def epoch(number: int, leader: str = "a") -> LeaderEpoch:
    return LeaderEpoch(number, leader)


def append(log: PartitionLog, rng: Random, number: int = 0) -> AppendedOffsets:
    """Some record batches, or messages, of sizes that fill segments in all ways. number: of the first value."""
    sizes = [rng.choice((0, 7, 300, 1500, 9000)) for _ in range(rng.randint(1, 5))]
    values = [b"%d," % (number + i) + rng.randbytes(size) for i, size in enumerate(sizes)]
    if rng.random() < 0.5:
        return log.append_messages(values)
    return log.append_records(values, [rng.choice((1, 2, 30)) for _ in values])


def fetch(leader: PartitionLog, follower: PartitionLog, max_bytes: int = 1 << 20) -> None:
    follower.append_fetched(leader.read_frames(follower.end_mark, max_bytes))


def catch_up(leader: PartitionLog, follower: PartitionLog, rng: Random | None = None) -> None:
    """All that the leader has."""
    while follower.end_mark != leader.end_mark:
        fetch(leader, follower, 1 << 20 if rng is None else rng.choice((1, 100, 5000, 100_000)))


def follow_from(leader: PartitionLog, follower: PartitionLog) -> None:
    """Cut or reset what the leader does not have, as the machines do, and take what it has."""
    point = follower.history.common_point(follower.end_mark, leader.history, leader.end_mark)
    if point is None or point < max(follower.start_mark, leader.start_mark):
        follower.reset(leader.start_mark, leader.history)
    else:
        follower.truncate_to(point)
    catch_up(leader, follower)


def fill_up(log: PartitionLog, left: int) -> None:
    """Append messages until `left` bytes of a segment are free, those for its blank counted: 32, or a multiple of 8."""
    while (gap := SEGMENT_BYTES - log.end_mark.position % SEGMENT_BYTES - left) != 0:
        size = min(gap, 4000) if gap >= 32 else 4000  # of a record; the next segment, perhaps
        if 0 < gap - size < 32:
            size -= 32
        log.append_messages([bytes(size - 32)])
