"""The values that are written, and the proof that they were."""

from __future__ import annotations

import random

from pyreplog import CommitLog, LogReader

VALUES = 64
"""Distinct values of a workload, written in turn: entry n holds number n % VALUES."""

BATCH = 256
SIZES = {100: "100 B", 1024: "1 KiB", 16384: "16 KiB", 65536: "64 KiB"}
STRIDE_HEADER = 32


def make_values(size: int) -> list[bytes]:
    """Random bytes, the same in every run."""
    source = random.Random(size)
    return [source.randbytes(size) for _ in range(VALUES)]


def in_turn(values: list[bytes], count: int) -> list[bytes]:
    """`count` references to the values, in turn."""
    return (values * (count // len(values) + 1))[:count]


def stride(size: int) -> int:
    """Bytes that a record with a value of `size` bytes takes in a log."""
    return (STRIDE_HEADER + size + 7) & ~7


def verify(log: CommitLog | LogReader, values: list[bytes], end: int) -> str:
    """Read back all that the log still holds and compare it with what was written; says how much that was.

    end: the number of entries that were written.
    """
    if log.end != end:
        raise ValueError(f"{log}: {end} entries were written")
    first = entry = log.start
    for batch in log.read():
        offsets, data = batch.packed()
        expected = b"".join([values[n % len(values)] for n in range(entry, entry + len(batch))])
        if data.tobytes() != expected or len(offsets) != len(batch) + 1:
            raise ValueError(f"{log}: entries from {entry} on are not what was written")
        entry += len(batch)
    if entry != end:
        raise ValueError(f"{log}: read back to entry {entry} of {end}")
    return f"{end - first:,} entries" if first == 0 else f"the last {end - first:,} of {end:,} entries"
