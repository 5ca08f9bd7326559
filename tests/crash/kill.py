"""kill -9 of a process in the middle of its appends, round after round on one directory.

Several threads append; each value is a thread's number and its count so far, and an append is acknowledged through a
pipe when it returns. What a round left is read by the next one, which goes on from there: so a thread's values in
the log must count up without a gap, and reach at least as far as was acknowledged, synced or not.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyreplog
from pyreplog.config import LogConfig
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader

from .process import in_background

_ACK = struct.Struct("<HQ")
Counts = dict[int, int]
"""For each thread, how many of its values there are."""


def run(seed: int, directory: Path, *, rounds: int) -> None:
    """AssertionError when anything acknowledged is missing, doubled or out of order after any round."""
    rng = Random(f"kill {seed}")
    shared: dict[str, Any] = {"segment_bytes": rng.choice((64, 64, 256)) << 10}
    batches = Random(f"kill {seed} batches")  # rounds that open the log for record batches
    threads = rng.choice((1, 3))
    if threads == 1:  # with one thread, the last values that retention leaves tell how far it came
        shared["retention_bytes"] = 4 * shared["segment_bytes"]
    counts: Counts = {}
    for number in range(rounds):
        durability = rng.choice(("appended", "interval", "synced"))
        settings = {**shared, "durability": durability, "spare_segments": rng.choice((1, 2))}
        is_batched = batches.random() < 0.3
        counts = _merge(counts, _one_round(directory, settings, threads, rng, is_batched))
        try:
            mode = rng.choice(("a", "r", "only the next round"))
            if counts and mode != "only the next round":
                counts = _checked(directory, mode, counts)
        except AssertionError as error:
            raise AssertionError(f"round {number}, {settings}: {error}") from None
    _checked(directory, "a", counts)


def _checked(directory: Path, mode: str, least: Counts) -> Counts:
    """What the log holds; AssertionError when that is less than was acknowledged."""
    with _open(directory, mode) as log:
        count = counted(log)
    missing = {t: (n, count.get(t, 0)) for t, n in least.items() if count.get(t, 0) < n}
    assert not missing, f"(acknowledged, found) by thread: {missing}"
    return count


def _open(directory: Path, mode: str) -> CommitLog | LogReader:
    return pyreplog.open(directory, "r") if mode == "r" else pyreplog.open(directory)


def _merge(a: Counts, b: Counts) -> Counts:
    return {thread: max(a.get(thread, 0), b.get(thread, 0)) for thread in a.keys() | b.keys()}


def counted(log: CommitLog | LogReader) -> Counts:
    """Read all; AssertionError unless each thread's values count up by one."""
    counts: Counts = {}
    for batch in log.read():
        for record in batch:
            thread, number, _ = record.value.split(b",", 2)
            expected = counts.get(int(thread), int(number))  # the first ones may have been trimmed
            assert int(number) == expected, (
                f"entry {record.entry}: expected number {expected}, found {record.value!r:.40}"
            )
            counts[int(thread)] = expected + 1
    return counts


# ---- one process's life ----------------------------------------------------------------------------------------------


def _one_round(
    directory: Path, settings: dict[str, Any], threads: int, rng: Random, is_batched: bool
) -> Counts:  # fmt: skip
    """Start a process that appends, kill it after some acknowledgements; what it had acknowledged until then."""
    acks, child_end = os.pipe()
    seed, report = rng.randbytes(8), directory.with_suffix(".report")
    wanted = _ACK.size * int(10 ** rng.uniform(0, 2.3 if settings["durability"] == "synced" else 3.7))
    early = rng.uniform(0, 0.02) if rng.random() < 0.3 else None  # in the middle of opening, or soon after
    work = partial(_append_for_ever, directory, settings, seed, threads, child_end, is_batched)
    with in_background(work, report) as pid:
        os.close(child_end)
        with open(acks, "rb") as pipe:
            data = pipe.read(wanted) if early is None else _nothing_for(early)
            if early is not None or len(data) == wanted:
                os.kill(pid, signal.SIGKILL)
            data += pipe.read()
    counts: Counts = {}
    for thread, number in _ACK.iter_unpack(data):
        counts[thread] = max(counts.get(thread, 0), number)
    return counts


def _nothing_for(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""


def _append_for_ever(
    directory: Path, settings: dict[str, Any], seed: bytes, threads: int, acks: int, is_batched: bool
) -> None:  # fmt: skip
    log = CommitLog(
        directory, LogConfig(**settings), create=True, clock=None, files=None, record_batches=is_batched
    )  # fmt: skip
    with log.freeze_files():  # retention waits
        counts = counted(log)
    workers = [
        threading.Thread(target=_append, args=(log, Random(seed + bytes([t])), t, counts.get(t, 0), acks))
        for t in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _append(log: CommitLog, rng: Random, thread: int, number: int, acks: int) -> None:
    ways: tuple[Callable[[list[bytes]], object], ...] = (
        lambda values: log.append(values[0]),
        log.append_batch,
        lambda values: log.submit_batch(values).result(30.0),
    )
    weights: tuple[int, ...] = (8, 1, 1)
    if log.record_batches:
        ways += (lambda values: log.append_record_batches(values, [1 + len(value) % 50 for value in values]),)
        weights += (3,)
    while True:
        way = rng.choices(ways, weights)[0]
        count = 1 if way is ways[0] else rng.randint(1, 40)
        values = [b"%d,%d," % (thread, number + i) + bytes(rng.choice((0, 60, 200, 4000))) for i in range(count)]
        way(values)
        number += count
        os.write(acks, _ACK.pack(thread, number))
