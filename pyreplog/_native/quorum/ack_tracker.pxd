# Counts the acks of an ensemble's bookies, and computes up to which entry the ledger is complete.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyreplog._native.quorum.quorum cimport ENSEMBLE_LIMIT


cdef enum:
    RUN_LIMIT = 1024        # greatest number of waiting runs of one bookie: 16 KiB


# The effect of an ack. If it is negative, the ack was refused and changed nothing.
cdef enum AckStatus:
    ACK_MOVED = 1           # the bookie's progress moved
    ACK_KEPT = 0            # the ack was known, or waits for the acks before it
    ACK_INDEX = -1          # the ensemble has no such index
    ACK_NOT_PUSHED = -2     # an entry is above the LAP, or below the first entry of the tracker
    ACK_NOT_MEMBER = -3     # an entry is not striped to this bookie
    ACK_ORDER = -4          # the range ends before it begins
    ACK_RUNS = -5           # RUN_LIMIT runs wait already
    ACK_NO_MEMORY = -6


# Those of the entries [start, stop) that are striped to the bookie.
ctypedef struct Run:
    int64_t start
    int64_t stop


# Runs of acks of one bookie that came out of order. They ascend, are disjoint, and do not touch each other.
ctypedef struct Waiting:
    Run *runs
    int count, capacity


cdef class AckTracker:
    # `next_of` is the progress of a bookie: the lowest entry striped to it that the prefix of its acks does not reach.
    cdef readonly int ensemble_size, write_quorum, ack_quorum
    cdef readonly int64_t first, lap, confirmed
    cdef int64_t next_of[ENSEMBLE_LIMIT]
    cdef Waiting waiting[ENSEMBLE_LIMIT]
    cdef uint8_t order[ENSEMBLE_LIMIT]      # indexes, ascending by `next_of` at the last computation
    cdef public int64_t released            # the owner has released all entries below this one
    cdef int64_t lives[ENSEMBLE_LIMIT]      # how often the place was given to another bookie
    cdef uint64_t muted, heard_of, excused  # one bit for each index

    # For other modules, under the GIL or the caller's own lock.
    cdef int push(self, int64_t entry) noexcept nogil
    cdef int take(self, int index, int64_t first, int64_t last) noexcept nogil
    cdef int take_up_to(self, int index, int64_t entry) noexcept nogil
    cdef int64_t complete(self, int copies) noexcept nogil
    cdef int64_t settled(self) noexcept nogil
    cdef int64_t confirm_complete(self) noexcept nogil
    cdef int drop(self, uint64_t indexes, int64_t start) noexcept nogil

    cdef bint news(self) noexcept nogil

    cdef int check_member(self, int index, int64_t entry) noexcept nogil
    cdef int set_aside(self, Waiting *waiting, int64_t start, int64_t stop) noexcept nogil
    cdef void join(self, int index) noexcept nogil
    cdef void sort(self) noexcept nogil
    cdef bint moved(self, int status, int index, object acked) except -1
    cdef int index_of(self, object index) except -1


cdef class Part:
    cdef readonly AckTracker tracker
    cdef readonly int place
    cdef readonly int64_t first, last
    cdef int64_t life

    cdef bint counts(self) noexcept
    cdef bint acknowledge(self) noexcept
