# Futures of appends to a synced log that wait for their sync.
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture


cdef class PositionWaiters:
    cdef list waiting             # futures, by the positions that they wait for
    cdef list ready               # futures whose position is synced, and which are not settled yet
    cdef int64_t synced           # position up to which all is synced
    cdef object failure           # why it does not advance any more, or None
    cdef public bint asleep
    cdef int add(self, int64_t position, AppendFuture future) except -1
