# Where threads wait for a position; see parking.pyx.
from libc.stdint cimport int64_t, uint32_t


cdef struct Sleeper:
    int64_t position
    uint32_t woken
    Sleeper *next
    Sleeper *previous


cdef class ParkingLot:
    cdef readonly int64_t reached
    cdef Sleeper ring             # threads whose position is not reached
    cdef Sleeper ready            # threads that are to be woken
    cdef int waking               # how many were woken, and do not run yet
    cdef unsigned long leader     # thread that leads; 0: nobody
    cdef bint open

    cpdef reach(self, int64_t position)
    cdef void wake_next(self) noexcept
    cdef void wake(self, Sleeper *sleeper) noexcept
