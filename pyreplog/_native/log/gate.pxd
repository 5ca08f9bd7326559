# Threads wait here for group commits, and one of them leads.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t


cdef class CommitGate:
    cdef uint32_t words[2]        # futex words of groups with even and with odd numbers
    cdef int parked[2]            # threads that sleep on each word
    cdef int64_t taken_end        # position behind the group that was taken last
    cdef uint32_t group           # number of the group that was taken last
    cdef unsigned long leader     # thread that leads; 0: none
    cdef unsigned long writer     # thread that writes; 0: none
    cdef PyThread_type_lock io    # held by the writer
    cdef unsigned long turn       # woken thread that waits for the GIL or holds it; 0: none
    cdef int64_t taken_bytes      # bytes of the group that was taken last
    cdef int members              # threads of the group that was committed last, its leader included
    cdef int64_t taken_ns         # time at which the group was taken
    cdef int64_t commit_ns        # duration of the last commit
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
