# Striping and quorums: which bookies of an ensemble store an entry.
from libc.stdint cimport int64_t, uint64_t


cdef enum:
    ENSEMBLE_LIMIT = 64     # an ensemble is a bit set in one word


cdef extern from *:
    """
    /* No entry is above: what is computed from one lies at most an ensemble or two further, and fits into 64 bits. */
    #define REPLOG_ENTRY_LIMIT (INT64_MAX - 128)
    """
    const int64_t ENTRY_LIMIT "REPLOG_ENTRY_LIMIT"


ctypedef struct Quorums:
    int ensemble, write, ack


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
cdef int64_t int64_of(object value, str name) except? -1
cdef int64_t entry_of(object value, str name) except -1
cdef int within(object value, int64_t low, int64_t high, str name) except -1
# A bit per index.
cdef uint64_t indexes_of(object indexes, int ensemble, str name) except? 0
cdef Quorums quorums_of(object ensemble_size, object write_quorum, object ack_quorum) except *
