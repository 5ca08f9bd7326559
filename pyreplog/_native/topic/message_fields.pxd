# The fields of messages besides keys and values, given as columns in one call.
from libc.stdint cimport int64_t, uint8_t


cdef enum:
    NAME_MAX = 0xffff         # greatest size of a producer's or a property's name, bytes


cdef class Int64Column:
    cdef int64_t *at
    cdef Py_ssize_t count

    cdef bint copy(self, column, str name) except -1
    cdef int take(self, column, str name, none) except -1


cdef class Properties:
    cdef bytearray data
    cdef const uint8_t *start     # address of the data, once the data are complete
    cdef int64_t *ends

    cdef int put(self, properties) except -1
