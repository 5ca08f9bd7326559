# The position of a follower, and its next records.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.log.log_view_base cimport LogViewBase
from pyreplog._native.log.record cimport Record
from pyreplog._native.log.segment cimport Pin


cdef enum:
    HEADER = 24                   # bytes that identify a record at its position: length, CRC, stamp, ..., time


cdef class LogFollowerBase:
    cdef LogViewBase log
    cdef public int64_t entry
    cdef public int64_t position
    cdef public Pin held
    cdef public uint32_t truncations
    cdef int64_t timeout_us, batch_bytes
    cdef uint8_t header[HEADER]   # of the last returned record
    cdef bint has_given
    cdef void pass_record(self, const uint8_t *p, int64_t entry, int64_t next_position) noexcept
    cdef bint is_told(self) noexcept
    cdef Record record_here(self)
    cdef object batch_here(self)
    cdef object wait(self, bint many)
    cdef bint wait_until_due(self, int64_t deadline) except -1
