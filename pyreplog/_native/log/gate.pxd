# Waiting for group commits.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t


cdef class CommitGate:
    cdef uint32_t words[2]
    cdef int parked[2]
    cdef int64_t taken_end        # position after the group being committed, or committed last
    cdef uint32_t group           # number of that group
    cdef unsigned long leader     # thread that leads; 0: none
    cdef unsigned long writer     # thread that writes; 0: none
    cdef PyThread_type_lock io    # held by the writer
    cdef unsigned long turn       # woken thread that waits for the GIL, or has it; 0: none
    cdef int64_t taken_bytes      # of the group that was taken last
    cdef int members              # threads of the group that was committed last, its leader included
    cdef int64_t taken_ns         # when the group was taken, and how long its commit took
    cdef int64_t commit_ns
    cdef public int64_t synced

    cpdef bint lead(self) noexcept
    cpdef gather(self)
    cpdef begin_io(self)
    cpdef end_io(self)
    cpdef abandon(self)
    cpdef uint32_t note_taken(self, int64_t end) noexcept
    cpdef park(self, int64_t position)
    cpdef resign(self, uint32_t group)
    cpdef wake_all(self)
    cdef int wake(self, int own, int own_count, int next_count, bint takes_turn) except -1
