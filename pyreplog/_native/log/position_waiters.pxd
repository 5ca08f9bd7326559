# Futures of appends to a synced log that wait for their sync.
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture


cdef class PositionWaiters:
    cdef list waiting             # futures, ascending by the position that each waits for
    cdef list ready               # futures whose position is synced, to be settled by `drain`
    cdef int64_t synced           # position before which all bytes are synced
    cdef object failure           # error of a failed sync, after which `synced` does not advance; or None
    cdef public bint asleep       # the committing thread must be asked for a commit
    cdef int add(self, int64_t position, AppendFuture future) except -1
