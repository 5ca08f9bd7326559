"""Positions in a log, for everything that replicates one. Any thread may use them."""

from typing import NamedTuple

from pyreplog._native.machines.named cimport named


class LogPosition(NamedTuple):
    """A boundary between two records.

    Attributes:
        position: bytes from the beginning of the log.
        entry: number of the entry that begins there.
    """

    position: int
    entry: int


class AppendedOffsets(NamedTuple):
    """Where an append went.

    Attributes:
        offsets: the offsets of its entries.
        end: the end of the log behind them: what a produce with acks=-1 waits for.
    """

    offsets: range
    end: LogPosition


cdef object appended_at(int64_t entry, int64_t count, int64_t end):
    return named(AppendedOffsets, (range(entry, entry + count), mark_at(end, entry + count)))


cdef object mark_at(int64_t position, int64_t entry):
    return named(LogPosition, (position, entry))
