"""What runs in processes of its own: `python -m benchmarks.jobs NAME ARGUMENTS`, answers as lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pyreplog
from benchmarks.entries import BATCH, in_turn, make_values, stride
from benchmarks.logs import fill
from benchmarks.proc import anonymous_bytes

_SEGMENTS_BEFORE = 4


def follow(path: str, count: int) -> None:
    """Follow a log; nanoseconds from the stamp in each of `count` entries to having it."""
    clock, taken = time.monotonic_ns, []
    with pyreplog.open(path, "r") as reader:
        records = reader.follow(reader.end)
        _tell("ready")
        for record in records:
            taken.append(clock() - int.from_bytes(record.value, "little"))
            if len(taken) == count:
                break
    _tell(taken)


def hear(path: str, count: int) -> None:
    """Sleep on a bare futex; nanoseconds from each of `count` ringings to being awake."""
    from benchmarks.limits import bare

    with Path(path).open("r+b") as file:
        bell = bare.Bell(file.fileno())
    _tell("ready")
    _tell([bell.hear(seen) for seen in range(count)])


def crash(path: str, size: int, count: int, segment_bytes: int) -> NoReturn:
    """Append `count` entries, tell where they begin and end, and die of SIGKILL."""
    log = pyreplog.open(path, segment_bytes=segment_bytes)
    start = log.end_position
    fill(log, make_values(size), count)
    _tell({"start": start, "end": log.end_position})
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def grow(path: str, size: int, segments: int, segment_bytes: int) -> None:
    """Write so many segments; private memory and state before and after."""
    per_segment = segment_bytes // stride(size) // BATCH * BATCH
    entries = in_turn(make_values(size), BATCH)
    with pyreplog.open(path, segment_bytes=segment_bytes) as log:

        def write(segments: int) -> dict[str, int]:
            for _ in range(segments * per_segment // BATCH):
                log.append_batch(entries)
            log.sync()  # seals, indexes and unmaps what is behind the active segment
            return {"private": anonymous_bytes([os.getpid()]), "state": log.stats().state_bytes, "entries": log.end}

        before, after = write(_SEGMENTS_BEFORE), write(segments)
    mapped = sum(index.stat().st_size for index in Path(path).glob("*.idx"))
    _tell({"before": before, "after": after, "mapped": mapped})


def load_peer(name: str, path: str, size: int, count: int, seconds: float, segment_bytes: int) -> NoReturn:
    """Fill a peer without syncs, tell what it holds, and kill it and its servers. segment_bytes: pyreplog's."""
    from benchmarks.peers import PEERS, Pyreplog, load

    Pyreplog.segment_bytes = segment_bytes
    peer = PEERS[name](Path(path), synced=False)
    before = anonymous_bytes([os.getpid(), *peer.servers()])
    keys = load(peer, make_values(size), count, seconds)
    grown = anonymous_bytes([os.getpid(), *peer.servers()]) - before
    _tell({"count": len(keys), "private": grown})
    for pid in (*peer.servers(), os.getpid()):
        os.kill(pid, signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def _tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


_JOBS = {job.__name__: job for job in (follow, hear, crash, grow, load_peer)}

if __name__ == "__main__":
    _JOBS[sys.argv[1]](*json.loads(sys.argv[2]))
