# The state of one ledger on a bookie, as fields that native code reads; see ledger_state_base.pyx.
from libc.stdint cimport int64_t


cdef class LedgerStateBase:
    cdef public int64_t ledger, last, lac, explicit_lac, fresh, committing
    cdef public bytes key
    cdef public bint fenced, limbo, copied


cdef class Uncommitted:
    cdef public list waiting
    cdef list touched, committing

    cdef int note(self, LedgerStateBase state, int64_t first) except -1
    cdef list take(self)
    cdef int settle(self) except -1
