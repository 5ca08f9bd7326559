# Finds and reads one entry by its number, without Python code.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.log.record cimport Record
from pyreplog._native.log.segment cimport Segment
from pyreplog._native.log.tail_page cimport Tail


cdef class LogViewBase:
    cdef readonly Tail tail
    cdef list segments            # ascending; None instead of a Segment that is not mapped
    cdef int64_t *bases           # position of each segment
    cdef int64_t *firsts          # first entry number of each segment
    cdef Py_ssize_t count
    cdef int64_t own_visible_entry
    cdef uint32_t truncations     # how often the log had been truncated when the table was made
    cdef bint live                # the tail page is up to date
    cdef Segment located            # segment of the last result of `locate`; valid until the GIL is released
    cdef int64_t visible_entry(self) noexcept
    cdef Py_ssize_t segment_of(self, const int64_t *keys, int64_t key) noexcept
    cdef int check_table(self) except -1
    cdef bint poll_for(self, object follower, object deadline) except -1
    cdef Segment mapped(self, Py_ssize_t i)
    cdef const uint8_t *locate(self, int64_t entry) except NULL
    cdef const uint8_t *walk(self, Segment segment, int64_t place, int64_t delta, int64_t stop) except NULL
