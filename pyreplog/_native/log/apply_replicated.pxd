# Records of another log's stream, and the commit point at which readers stop.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.log_position cimport Mark
from pyreplog._native.log.segment cimport Segment


# What a replica reports: the ends of what it has received and of what it has synced.
ctypedef struct Marks:
    Mark received, synced


cdef enum:
    LITTLE = 4 << 10        # most bytes that `apply_little` takes
    LITTLE_WORDS = LITTLE // 8


cdef class MirrorLogBase(Appender):
    cdef public int64_t _received_end
    cdef public object _commit, _last_synced
    cdef int64_t write(self, Segment segment, object buffer, int64_t position) except -1
    cdef bint apply_little(self, int64_t position, const uint8_t *data, int64_t size) except -1
    cdef int write_little(self, Segment segment, const uint8_t *data, int64_t size, int64_t offset) except -1
    cdef bint read_marks(self, Marks *marks) except -1
    cpdef bint show_reached(self, int64_t position, int64_t entry) except -1


# As `show_up_to`.
cdef int show_before(Appender log, int64_t position, int64_t entry) except -1
# Set the end of the log, and the end of its synced bytes, at one moment.
cdef void read_ends(Appender log, Marks *marks) noexcept
