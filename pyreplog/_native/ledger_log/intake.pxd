# Appends encoded entries for other native code; see intake.pyx.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.log.appender cimport Appender


cdef class EntryIntake:
    cdef Appender log

    cdef int64_t put(self, const uint8_t *p, int64_t length) except -1
