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


cdef object mark_at(int64_t position, int64_t entry):
    return named(LogPosition, (position, entry))
