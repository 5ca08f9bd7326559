"""Places in a log, which everything that replicates one counts in. Threads: any."""

from typing import NamedTuple

from pyreplog._native.machines.named cimport named


class LogPosition(NamedTuple):
    """A record boundary: position (bytes since the log began), and the number that the next entry gets there."""

    position: int
    entry: int


cdef object mark_at(int64_t position, int64_t entry):
    return named(LogPosition, (position, entry))
