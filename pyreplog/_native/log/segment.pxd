# One mapped segment file.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.log.sparse cimport SparseIndex


cdef class Segment:
    cdef readonly object path
    cdef readonly bytes uuid
    cdef readonly int64_t base            # position of the file's first byte
    cdef readonly int64_t size
    cdef readonly int64_t first_entry     # -1: the records have no numbers
    cdef readonly uint32_t epoch
    cdef readonly uint32_t stamp
    cdef readonly bint writable
    cdef readonly int64_t end             # offset behind the last record that is known to be intact
    cdef readonly bint sealed             # a blank follows at `end`
    cdef public SparseIndex index
    cdef public object ledgers            # of a log of many ledgers: SealedIndex if sealed, else LedgerIndex
    cdef uint8_t *map
    cdef int fd
    cdef Py_ssize_t pins
    cdef bint counted(self) noexcept
    cdef int64_t likely_count(self, int64_t offset, int64_t until) noexcept


cdef class Pin:
    cdef Segment segment

cdef Pin pin(Segment segment)
