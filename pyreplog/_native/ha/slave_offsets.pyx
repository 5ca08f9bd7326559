"""The parser of what a RocketMQ slave reports to its master: bare offsets.

Threads: one parser belongs to one thread or task at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t

from pyreplog._native.net.frame cimport load_i64


@cython.final
cdef class SlaveOffsetParser:
    """Offsets a RocketMQ slave reports: nothing but big-endian i64 words, cut anywhere.

    RocketMQ's master reads only the last word of what arrived, so that the start request in the first word can be
    lost; this parser returns all of them. Whether an offset is possible (not negative, not above the master's end)
    is for the replication protocol to judge.
    """

    cdef bytes rest                 # 0 to 7 bytes of the next word

    def __cinit__(self):
        self.rest = b""

    def feed(self, data, /):
        """Return the offsets that `data` (bytes-like) completes, in order."""
        cdef bytes words = b"".join((self.rest, data))
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(words)
        cdef Py_ssize_t at, whole = len(words) // 8 * 8
        self.rest = words[whole:]
        return [load_i64(p + at) for at in range(0, whole, 8)]
