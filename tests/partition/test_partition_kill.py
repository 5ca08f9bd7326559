"""kill -9 of a process with both replicas of a partition, round after round on the same directories.

Threads append to whichever replica leads, the other one fetches, and they change their roles. What both have is
acknowledged through a pipe. In the next round either may lead, also the shorter one, from which the other truncates what
was not acknowledged.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from pyreplog.errors import ReplicaError
from pyreplog.log.fsck.check import check
from pyreplog.partition.store.partition_log import PartitionLog
from tests.crash.process import in_background
from tests.ha.streams import uncommitted

from .partition_logs import catch_up, epoch, fetch, follow_from, open_replica

_ACK = struct.Struct("<Q")
THREADS = 2


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_records_of_both_replicas_survive_kill_9(tmp_path: Path, durability: str, seed: int) -> None:
    rng, acknowledged = Random(f"{seed} {durability}"), 0
    for _ in range(12):
        acknowledged = max(acknowledged, _one_round(tmp_path, durability, rng))
        logs = [open_replica(tmp_path / name, durability=durability) for name in "ab"]
        with logs[0], logs[1]:
            shorter, longer = sorted(map(uncommitted, logs), key=len)
            assert longer[: len(shorter)] == shorter
            assert min(log.end_mark.entry for log in logs) >= acknowledged
            counted(longer)
            histories = sorted((log.history.starts for log in logs), key=len)
            assert histories[1][: len(histories[0])] == histories[0]
    assert not any(damage.costs_entries for name in "ab" for damage in check(tmp_path / name).damages)


def counted(values: list[bytes]) -> list[int]:
    """How many values each thread has appended; AssertionError unless they count up by one."""
    counts = [0] * THREADS
    for value in values:
        thread, number, _ = value.split(b",", 2)
        assert int(number) == counts[int(thread)]
        counts[int(thread)] += 1
    return counts


def _one_round(folder: Path, durability: str, rng: Random) -> int:
    """Start a process, and kill it after some acknowledgements. Returns up to which offset it had acknowledged."""
    acks, child_end = os.pipe()
    early = rng.uniform(0, 0.05) if rng.random() < 0.3 else None  # in the middle of opening, or soon after
    wanted = _ACK.size * rng.randint(1, 150)
    work = partial(_append_for_ever, folder, durability, rng.randbytes(8), child_end)
    with in_background(work, folder / "report") as pid:
        os.close(child_end)
        with open(acks, "rb") as pipe:
            if early is None:
                data = pipe.read(wanted)
            else:
                time.sleep(early)
                data = b""
            if early is not None or len(data) == wanted:
                os.kill(pid, signal.SIGKILL)
            data += pipe.read()
    return max((offset for (offset,) in _ACK.iter_unpack(data)), default=0)


def _append_for_ever(folder: Path, durability: str, seed: bytes, acks: int) -> None:
    rng = Random(seed)
    names = rng.sample("ab", 2)
    leader, follower = (open_replica(folder / name, durability=durability) for name in names)
    follow_from(leader, follower)
    counts, room = counted(uncommitted(leader)), threading.Semaphore(5)
    for number, count in enumerate(counts):
        arguments = (leader, follower), Random(seed + bytes([number])), number, count, room
        threading.Thread(target=_append, args=arguments, daemon=True).start()
    number = max(leader.history.last.number, follower.history.last.number)
    while True:
        number += 1
        leader.lead(epoch(number))
        for _ in range(rng.randint(1, 40)):
            fetch(leader, follower, rng.choice((1, 1000, 20_000, 200_000)))
            os.write(acks, _ACK.pack(follower.end_mark.entry))
            room.release(2)
            if rng.random() < 0.1:
                rng.choice((leader, follower)).sync()
        leader.stop_leading()
        catch_up(leader, follower)
        leader, follower = follower, leader


def _append(
    logs: tuple[PartitionLog, ...], rng: Random, thread: int, number: int, room: threading.Semaphore
) -> None:  # fmt: skip
    """To whichever log leads, and not far ahead of the other. A record batch takes as many offsets as it likes."""
    while room.acquire():
        count = rng.choice((1, 1, 3, 20))
        values = [b"%d,%d," % (thread, number + i) + bytes(rng.choice((0, 60, 900, 6000))) for i in range(count)]
        while not any(_try_append(log, values) for log in logs):
            time.sleep(0)
        number += count


def _try_append(log: PartitionLog, values: list[bytes]) -> bool:
    try:
        if len(values) == 3:
            log.append_records(values, [1, 2, 30])
        else:
            log.append_messages(values)
    except ReplicaError:
        return False
    return True
