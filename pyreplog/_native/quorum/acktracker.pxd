# What the bookies of an ensemble have acked, and what follows from it.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyreplog._native.quorum.quorum cimport ENSEMBLE_LIMIT


cdef enum:
    RUN_LIMIT = 1024        # runs of out-of-order acks that one bookie may have waiting: 16 KiB


# What an ack did; negative: it is refused and changed nothing.
cdef enum AckStatus:
    ACK_MOVED = 1           # the bookie's progress went on
    ACK_KEPT = 0            # known before, or waiting for the acks in front of it
    ACK_INDEX = -1          # no such index in the ensemble
    ACK_NOT_PUSHED = -2     # an entry above LAP, or below the tracker's first
    ACK_NOT_MEMBER = -3     # an entry that is not striped to this bookie
    ACK_ORDER = -4          # a range that ends before it begins
    ACK_RUNS = -5           # out of order in more pieces than may wait
    ACK_NO_MEMORY = -6


# Entries [start, stop), without those that are not striped to the bookie.
ctypedef struct Run:
    int64_t start
    int64_t stop


# Out-of-order acks of one bookie: ascending, disjoint, no two of them adjacent.
ctypedef struct Waiting:
    Run *runs
    int count, capacity


cdef class AckTracker:
    # `awaited` is the whole progress of a bookie: the lowest entry striped to it whose ack did not join the prefix.
    cdef readonly int ensemble_size, write_quorum, ack_quorum
    cdef readonly int64_t first, lap, confirmed
    cdef int64_t next_of[ENSEMBLE_LIMIT]
    cdef Waiting waiting[ENSEMBLE_LIMIT]
    cdef uint8_t order[ENSEMBLE_LIMIT]      # indexes by what they await, as of the last computation
    cdef public int64_t released            # the owner has let go of all below
    cdef int64_t lives[ENSEMBLE_LIMIT]      # how often a place was given away
    cdef uint64_t muted, heard_of, excused  # a bit per index

    # For other modules, under the GIL or the caller's own lock.
    cdef int push(self, int64_t entry) noexcept nogil
    cdef int take(self, int index, int64_t first, int64_t last) noexcept nogil
    cdef int take_up_to(self, int index, int64_t entry) noexcept nogil
    cdef int64_t complete(self, int copies) noexcept nogil
    cdef int64_t settled(self) noexcept nogil
    cdef int64_t confirm_complete(self) noexcept nogil
    cdef int drop(self, uint64_t indexes, int64_t start) noexcept nogil

    cdef bint news(self) noexcept nogil

    cdef int judge(self, int index, int64_t entry) noexcept nogil
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
