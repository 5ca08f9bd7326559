# Striping and quorums: which bookies of an ensemble store an entry, what they have acked, and what follows from it.
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum:
    ENSEMBLE_LIMIT = 64     # an ensemble is a bit set in one word
    RUN_LIMIT = 1024        # runs of out-of-order acks that one bookie may have waiting: 16 KiB


cdef extern from *:
    """
    /* No entry is above: what is computed from one lies at most an ensemble or two further, and fits into 64 bits. */
    #define REPLOG_ENTRY_LIMIT (INT64_MAX - 128)
    """
    const int64_t ENTRY_LIMIT "REPLOG_ENTRY_LIMIT"


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


ctypedef struct Quorums:
    int ensemble, write, ack


# Entries [start, stop), without those that are not striped to the bookie.
ctypedef struct Run:
    int64_t start
    int64_t stop


# Out-of-order acks of one bookie: ascending, disjoint, no two of them adjacent.
ctypedef struct Waiting:
    Run *runs
    int count, capacity


# Entry e goes to indexes (e + k) mod E, k < Qw; so index i stores e if and only if it is less than Qw after e's.
cdef inline int distance(int64_t entry, int64_t index, int ensemble) noexcept nogil:
    """Steps from the first index of the entry's write set up to `index`: (index - entry) mod E."""
    cdef int64_t steps = (index - entry) % ensemble
    return <int>(steps + ensemble if steps < 0 else steps)


cdef inline bint is_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    return distance(entry, index, ensemble) < write


cdef inline int64_t next_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """The lowest entry from `entry` on that index stores."""
    cdef int steps = distance(entry, index, ensemble)
    return entry if steps < write else entry + steps - write + 1


cdef inline int64_t previous_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """The highest entry up to `entry` that index stores; negative: none."""
    cdef int steps = distance(entry, index, ensemble)
    return entry if steps < write else entry - (ensemble - steps)


cdef inline int64_t members_below(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """How many of the entries [0, entry) index stores."""
    cdef int64_t rest = entry % ensemble
    cdef int64_t low = index - write + 1    # a period's members: [low, index], or round its end when low < 0
    cdef int64_t inside
    if low >= 0:
        inside = min(max(rest - low, 0), <int64_t>write)
    else:
        inside = min(rest, <int64_t>index + 1) + max(rest - low - ensemble, 0)
    return entry // ensemble * write + inside


# Arguments from Python: raise InvalidArgumentError.
cdef int64_t entry_of(object value, str name) except -1
cdef int within(object value, int64_t low, int64_t high, str name) except -1
cdef Quorums quorums_of(object ensemble_size, object write_quorum, object ack_quorum) except *

cdef int64_t kth(int64_t *values, int count, int k) noexcept nogil
cdef bint windows_covered(int ensemble, int write, int ack, uint64_t unknown) noexcept nogil


cdef class AckTracker:
    # `awaited` is the whole progress of a bookie: the lowest entry striped to it whose ack did not join the prefix.
    cdef readonly int ensemble_size, write_quorum, ack_quorum
    cdef readonly int64_t first, lap, confirmed
    cdef int64_t next_of[ENSEMBLE_LIMIT]
    cdef Waiting waiting[ENSEMBLE_LIMIT]
    cdef uint8_t order[ENSEMBLE_LIMIT]      # indexes by what they await, as of the last computation
    cdef public int64_t released            # the owner has let go of all below
    cdef int64_t lives[ENSEMBLE_LIMIT]      # how often a place was given away
    cdef uint64_t muted, heard_of           # a bit per index

    # For other modules, under the GIL or the caller's own lock.
    cdef int push(self, int64_t entry) noexcept nogil
    cdef int take(self, int index, int64_t first, int64_t last) noexcept nogil
    cdef int take_up_to(self, int index, int64_t entry) noexcept nogil
    cdef int64_t complete(self, int copies) noexcept nogil
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
