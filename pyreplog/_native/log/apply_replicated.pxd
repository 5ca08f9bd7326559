# Records of another log's stream, and the commit point at which readers stop.
from libc.stdint cimport int64_t

from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.segment cimport Segment


cdef class MirrorLogBase(Appender):
    cdef public int64_t _received_end
    cdef public object _commit
    cdef int64_t write(self, Segment segment, object buffer, int64_t position) except -1
    cpdef bint show_reached(self, int64_t position, int64_t entry) except -1
