# What was submitted to a synced log and waits for its sync.
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture


cdef class PositionWaiters:
    cdef list waiting             # acks, by the positions they wait for
    cdef list ready               # those whose position is synced, which are not told yet
    cdef int64_t synced           # position up to which all is synced
    cdef object failure           # why it moves no more, or None
    cdef public bint asleep
    cdef int add(self, int64_t position, AppendFuture future) except -1
