# Striping and quorums: compute which bookies of an ensemble store an entry.
from libc.stdint cimport int64_t, uint64_t


cdef enum:
    ENSEMBLE_LIMIT = 64     # one word holds a bit for each bookie of an ensemble


cdef extern from *:
    """
    /* The highest entry id. Results lie at most two ensembles above an id, so that they fit into 64 bits. */
    #define REPLOG_ENTRY_LIMIT (INT64_MAX - 128)
    """
    const int64_t ENTRY_LIMIT "REPLOG_ENTRY_LIMIT"


ctypedef struct Quorums:
    int ensemble, write, ack


# Entry e goes to the indexes (e + k) mod E, k < Qw. So index i stores e if and only if (i - e) mod E < Qw.
cdef inline int distance(int64_t entry, int64_t index, int ensemble) noexcept nogil:
    """Return (index - entry) mod E, the steps from the first index of the entry's write set to `index`."""
    cdef int64_t steps = (index - entry) % ensemble
    return <int>(steps + ensemble if steps < 0 else steps)


cdef inline bint is_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    return distance(entry, index, ensemble) < write


cdef inline int64_t next_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """Return the lowest entry from `entry` on that the bookie at `index` stores."""
    cdef int steps = distance(entry, index, ensemble)
    return entry if steps < write else entry + steps - write + 1


cdef inline int64_t previous_member(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """Return the highest entry up to `entry` that the bookie at `index` stores; negative: none."""
    cdef int steps = distance(entry, index, ensemble)
    return entry if steps < write else entry - (ensemble - steps)


cdef inline int64_t members_below(int64_t entry, int index, int ensemble, int write) noexcept nogil:
    """Return how many of the entries [0, entry) the bookie at `index` stores."""
    cdef int64_t rest = entry % ensemble
    cdef int64_t low = index - write + 1    # members in a period: [low, index]; if low < 0, they go on at its end
    cdef int64_t inside
    if low >= 0:
        inside = min(max(rest - low, 0), <int64_t>write)
    else:
        inside = min(rest, <int64_t>index + 1) + max(rest - low - ensemble, 0)
    return entry // ensemble * write + inside


# Convert arguments from Python, or raise InvalidArgumentError.
cdef int64_t int64_of(object value, str name) except? -1
cdef int64_t entry_of(object value, str name) except -1
cdef int within(object value, int64_t low, int64_t high, str name) except -1
# Return a word with one bit for each index.
cdef uint64_t indexes_of(object indexes, int ensemble, str name) except? 0
cdef Quorums quorums_of(object ensemble_size, object write_quorum, object ack_quorum) except *
