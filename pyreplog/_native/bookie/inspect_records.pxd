# Reads ids and LACs from the headers of encoded records; see inspect_records.pyx.
from libc.stdint cimport int64_t, uint8_t


ctypedef struct Seen:
    int64_t count       # entries
    int64_t highest     # entry id
    int64_t lac         # highest LAC
    int64_t at          # offset of the first unwanted record; if there is none, of the end of the last record


# Read the headers of one or more records. Return False unless all are entries of `ledger` from `first` to `last`.
cdef bint inspect_headers(const uint8_t *p, int64_t length, int64_t ledger, int64_t first, int64_t last, Seen *seen) noexcept nogil
