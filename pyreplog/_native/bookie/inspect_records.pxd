# What encoded records say of themselves; see inspect_records.pyx.
from libc.stdint cimport int64_t, uint8_t


ctypedef struct Seen:
    int64_t count       # entries
    int64_t highest     # entry id
    int64_t lac         # highest LAC
    int64_t at          # offset of the first that is not wanted, or where the last one ends


# Look at records, which must be entries of `ledger` from `first` to `last`, at least one; False: they are not.
cdef bint look(const uint8_t *p, int64_t length, int64_t ledger, int64_t first, int64_t last, Seen *seen) noexcept nogil
